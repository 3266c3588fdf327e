"""Choosing which matches compute the graph: those that save the most memory traffic first."""

from __future__ import annotations

from dataclasses import dataclass

from kdsl_fuse.graph import Graph
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns import ALL_PATTERNS, Match, Options
from kdsl_fuse.reasons import Reason


@dataclass(frozen=True)
class Cover:
    """Disjoint matches by the name of the value that each stores, and why other nodes have none."""

    matches: dict[str, Match]
    reasons: dict[str, Reason]


@dataclass(frozen=True)
class Savings:
    """What fusion saves against one kernel per operator."""

    bytes: int
    launches: int


def savings(graph: Graph, match: Match) -> Savings:
    """Each interior value is neither written nor read back; each operator inside is no launch."""
    interior = match.covered[:-1]
    traffic = sum(node.bytes * (1 + len(graph.consumers(node))) for node in interior)
    traffic += sum(2 * node.bytes for node in match.recomputed)
    return Savings(traffic, len(interior) + len(match.recomputed))


def choose_cover(graph: Graph, options: Options) -> Cover:
    """Greedy: the match that saves most takes its nodes, later ones grow around them."""
    facts = Facts.of(graph)
    reasons: dict[str, Reason] = {}
    candidates = _candidates(facts, options, reasons)
    candidates.sort(key=lambda m: (-savings(graph, m).bytes, facts.order[m.anchor.name]))
    claimed: set[str] = set()
    chosen: dict[str, Match] = {}
    for match in candidates:
        if any(node.name in claimed for node in match.covered):
            again = match.pattern.match(facts, match.anchor, claimed, options)
            assert isinstance(again, Match), "an anchor alone is always a legal match"
            match = again
        claimed.update(node.name for node in match.covered)
        chosen[match.root.name] = match
        for name, reason in match.refused.items():
            reasons.setdefault(name, reason)
    return Cover(chosen, {name: why for name, why in reasons.items() if name not in claimed})


def _candidates(facts: Facts, options: Options, reasons: dict[str, Reason]) -> list[Match]:
    """The best match at each anchor with nothing claimed; refusals go to `reasons`."""
    found: list[Match] = []
    for node in facts.graph:
        here: list[Match] = []
        for pattern in ALL_PATTERNS:
            if pattern.anchor != node.op.name:
                continue
            result = pattern.match(facts, node, frozenset(), options)
            if isinstance(result, Reason):
                reasons.setdefault(node.name, result)
            else:
                here.append(result)
        if here:
            found.append(max(here, key=lambda match: savings(facts.graph, match).bytes))
    return found
