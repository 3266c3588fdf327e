"""Choosing which matches compute the graph: those that save the most time together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kdsl_fuse.cost import gain_us
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, escapes
from kdsl_fuse.patterns import Match, Options, Pattern, patterns_in_order
from kdsl_fuse.reasons import Reason

# Up to so many anchors that want the same nodes are decided together, without approximation;
# of more, so many of the next ones are looked at before the first is decided.
EXACT_ANCHORS = 10
LOOK_AHEAD = 5


@dataclass(frozen=True)
class Cover:
    """Disjoint matches by the name of the last value that each stores, and why others have none.

    `apart` says of nodes in kernels that take what is left, or anything, why they are in no other
    one.
    """

    matches: dict[str, Match]
    reasons: dict[str, Reason]
    apart: dict[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Variant:
    """A match with the names that it claims, and what it gains in µs."""

    match: Match
    names: frozenset[str]
    gain: float


Choices = list[Variant]
"""The variants at one anchor, best first."""


def choose_cover(
    graph: Graph, options: Options, patterns: Sequence[Pattern] | None = None
) -> Cover:
    """The cover with the largest gain; exact where few anchors want the same nodes."""
    patterns = patterns_in_order() if patterns is None else patterns
    fill = [pattern for pattern in patterns if getattr(pattern, "fills", False)]
    facts = Facts.of(graph)
    cover = _cover(facts, options, [pattern for pattern in patterns if pattern not in fill])
    if not fill:
        return cover
    left = facts.beside(match.covered for match in cover.matches.values())
    rest = _cover(left, options, fill)
    filled = {node.name for match in rest.matches.values() for node in match.covered}
    apart = {name: why for name, why in cover.reasons.items() if name in filled} | cover.apart
    reasons = {n: why for n, why in (rest.reasons | cover.reasons).items() if n not in filled}
    return Cover(cover.matches | rest.matches, reasons, apart)


def _cover(facts: Facts, options: Options, patterns: Sequence[Pattern]) -> Cover:
    """The best cover by some patterns of the nodes that have no kernel."""
    reasons: dict[str, Reason] = {}
    anchors = _choices(facts, options, patterns, reasons)
    while True:
        taken = [v for group in _groups(anchors) for v in _solve(group)]
        knot = _knot(facts, [variant.match for variant in taken])
        if knot is None:
            break
        anchors = [[v for v in choices if v.match is not knot] for choices in anchors]
    chosen = {variant.match.root.name: variant.match for variant in taken}
    apart = _apart(anchors, chosen, reasons)
    _tell(anchors, chosen, reasons)
    return Cover(chosen, reasons, apart)


def _apart(
    anchors: Sequence[Choices], chosen: dict[str, Match], reasons: dict[str, Reason]
) -> dict[str, Reason]:
    """Why anchors are in no better kernel: a generic one took what others refused, or it costs."""
    generic = {m.anchor.name: m for m in chosen.values() if getattr(m.pattern, "generic", False)}
    taken_by = {match.anchor.name for match in chosen.values()}
    found = {
        name: why
        for name, why in reasons.items()
        if name in generic or (name in taken_by and why.code == "KF-COST")
    }
    for match in (variant.match for choices in anchors for variant in choices):
        taken = generic.get(match.anchor.name)
        if taken is not None and taken.pattern is not match.pattern:
            found.setdefault(match.anchor.name, _slower(match))
    return found


def _slower(match: Match) -> Reason:
    """The refusal of a kernel that would take more than the one that was chosen."""
    anchor, *others = (node.name for node in match.covered)
    beside = f" in one kernel with {others[0]}" if others else ""
    return Reason(
        "KF-COST",
        f"{match.pattern.name} could compute {anchor}{beside}, but kernels of their own are faster",
    )


def _choices(
    facts: Facts, options: Options, patterns: Sequence[Pattern], reasons: dict[str, Reason]
) -> list[Choices]:
    """The legal matches at each anchor, in topological order; refusals go to `reasons`."""
    by_anchor: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        for name in pattern.anchors:
            by_anchor.setdefault(name, []).append(pattern)
    found: list[Choices] = []
    for node in facts.graph:
        if node.name in facts.home:
            continue
        here: Choices = []
        for pattern in by_anchor.get(node.op.name, ()):
            result = pattern.match(facts, node, options)
            if isinstance(result, Reason):
                reasons.setdefault(node.name, result)
                continue
            for match in result:
                leak = check(facts, match)
                if leak is None:
                    names = frozenset(x.name for x in match.covered)
                    here.append(Variant(match, names, gain_us(facts.graph, match)))
                else:
                    reasons.setdefault(node.name, leak)
        if here:
            found.append(sorted(here, key=lambda variant: -variant.gain))
    return found


def check(facts: Facts, match: Match) -> Reason | None:
    """Refuse a match with an interior value that is needed elsewhere, or one that needs itself."""
    graph = facts.graph
    members = {node.name for node in match.covered}
    for node in match.covered:
        outside = [c for c in graph.consumers(node) if c.name not in members]
        if node not in match.stores and (outside or graph.is_output(node)):
            return escapes(graph, node, members)
    return _returns(facts, match, members) if len(match.stores) > 1 else None


def _returns(facts: Facts, match: Match, members: set[str]) -> Reason | None:
    """Refuse a match in which a stored value comes back through a node outside."""
    graph, last = facts.graph, max(facts.order[name] for name in members)
    seen: set[str] = set()
    stack = [c for node in match.stores for c in graph.consumers(node) if c.name not in members]
    while stack:
        node = stack.pop()
        if node.name in seen or facts.order[node.name] > last:
            continue
        seen.add(node.name)
        for consumer in graph.consumers(node):
            if consumer.name in members:
                return Reason(
                    "KF-ESCAPES",
                    f"{consumer.name} needs {node.name}, which is computed from this kernel's own "
                    "result",
                )
            stack.append(consumer)
    return None


# -- disjoint matches -----------------------------------------------------------------------


def _groups(anchors: Sequence[Choices]) -> list[list[Choices]]:
    """Anchors that want the same nodes, directly or through others, in topological order."""
    import networkx as nx

    wants: nx.Graph[object] = nx.Graph()
    for index, choices in enumerate(anchors):
        wants.add_node(index)
        for name in frozenset().union(*(variant.names for variant in choices)):
            wants.add_edge(index, name)
    parts = ([x for x in part if isinstance(x, int)] for part in nx.connected_components(wants))
    return [[anchors[index] for index in sorted(part)] for part in parts]


def _solve(group: list[Choices]) -> Choices:
    """Disjoint variants of a group: the best, or the best within sight."""
    if len(group) == 1:
        return [variant for variant in group[0][:1] if variant.gain > 0]
    if len(group) <= EXACT_ANCHORS:
        return [variant for variant in best_packing(group, frozenset()) if variant]
    claimed: frozenset[str] = frozenset()
    taken: Choices = []
    for index in range(len(group)):
        first = best_packing(group[index : index + LOOK_AHEAD], claimed)[0]
        if first:
            taken.append(first)
            claimed |= first.names
    return taken


def best_packing(group: Sequence[Choices], claimed: frozenset[str]) -> tuple[Variant | None, ...]:
    """One variant or none of each anchor, disjoint, with the largest sum of gains."""
    rest = [0.0] * (len(group) + 1)
    for index in range(len(group) - 1, -1, -1):
        rest[index] = rest[index + 1] + max((v.gain for v in group[index]), default=0.0)
    best: tuple[float, tuple[Variant | None, ...]] = (-1.0, (None,) * len(group))

    def descend(
        index: int, names: frozenset[str], gain: float, path: tuple[Variant | None, ...]
    ) -> None:
        nonlocal best
        if gain + rest[index] <= best[0]:
            return
        if index == len(group):
            best = (gain, path)
            return
        for variant in group[index]:
            if variant.names.isdisjoint(names):
                descend(index + 1, names | variant.names, gain + variant.gain, (*path, variant))
        descend(index + 1, names, gain, (*path, None))

    descend(0, claimed, 0.0, ())
    return best[1]


def _knot(facts: Facts, matches: Sequence[Match]) -> Match | None:
    """A match of several stored values that waits for a kernel which waits for it."""
    if all(len(match.stores) == 1 for match in matches):
        return None
    import networkx as nx

    home = {node.name: index for index, match in enumerate(matches) for node in match.covered}
    waits: nx.DiGraph[object] = nx.DiGraph()
    for source, reader, _ in facts.graph.net.edges(keys=True):
        before, after = home.get(source, source), home.get(reader, reader)
        if before != after:
            waits.add_edge(before, after)
    try:
        cycle = nx.find_cycle(waits)
    except nx.NetworkXNoCycle:
        return None
    several = [matches[x] for x, _ in cycle if isinstance(x, int) and len(matches[x].stores) > 1]
    return several[0]


def _tell(anchors: Sequence[Choices], chosen: dict[str, Match], reasons: dict[str, Reason]) -> None:
    """Why nodes that no chosen match covers stayed outside."""
    covered = {node.name for match in chosen.values() for node in match.covered}
    for match in chosen.values():
        for name, reason in match.refused.items():
            reasons.setdefault(name, reason)
    for match in (variant.match for choices in anchors for variant in choices):
        for node in match.covered:
            reasons.setdefault(node.name, _passed_over(match, node))
    for name in covered & reasons.keys():
        del reasons[name]


def _passed_over(match: Match, node: Node) -> Reason:
    return Reason(
        "KF-COST",
        f"{match.pattern.name} could take {node.name} with {match.anchor.name}, but another choice "
        "of kernels is faster",
    )
