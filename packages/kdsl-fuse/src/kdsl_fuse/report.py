"""Tables for people: the graph, and what became of each of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdsl_fuse.cost import Savings, savings
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.origin import line_of

if TYPE_CHECKING:
    from kdsl_fuse.patterns import Match
    from kdsl_fuse.plan import Plan

Row = tuple[str, ...]
HEADER: Row = ("node", "operator", "line", "runs in", "bytes saved", "launches saved", "why")


def columns(rows: Sequence[Row]) -> str:
    """Rows as text columns, numbers to the right; the first row is the header."""
    padded = []
    for head, *cells in zip(*rows, strict=True):
        width = max(map(len, (head, *cells)))
        numbers = any(cells) and all(cell.isdigit() for cell in cells if cell)
        padded.append(
            [cell.rjust(width) if numbers else cell.ljust(width) for cell in (head, *cells)]
        )
    first, *rest = ("  ".join(row).rstrip() for row in zip(*padded, strict=True))
    return "\n".join([first, "-" * len(first), *rest])


def explain(plan: Plan) -> str:
    """One row per operator, then the configuration of each call and the totals."""
    rows = [HEADER]
    for name, (runs_in, saved, why) in told_of(plan).items():
        node = plan.graph[name]
        rows.append((name, str(node.op), line_of(node.loc), runs_in, *saved, why))
    total = _total(plan)
    numpy_steps = len(plan.steps) - len(plan.calls)
    counted = f"kernels: {len(plan.calls)}, NumPy steps: {numpy_steps}"
    lines = [
        columns(rows),
        *(f"call {i}: {call.header}, config {call.summary}" for i, call in enumerate(plan.calls)),
        *([str(plan.memory)] if plan.memory.values else []),
        f"planned for {plan.options}",
        f"{counted}; saved: {total.bytes} bytes of memory traffic, {total.launches} launches",
    ]
    return "\n".join(lines)


Told = tuple[str, tuple[str, str], str]
NOTHING = ("", "")


def told_of(plan: Plan) -> dict[str, Told]:
    """Of each operator: where it runs, the bytes and launches saved, and why."""
    told = _told_by_matches(plan)
    shown = (x for x in plan.graph if x.op.name != "Input" and not x.is_number)
    return {node.name: told.get(node.name) or _alone(plan, node) for node in shown}


def _told_by_matches(plan: Plan) -> dict[str, Told]:
    told: dict[str, Told] = {}
    number = {node.name: i for i, call in enumerate(plan.calls) for node in call.outputs}
    for name, match in plan.cover.matches.items():
        if name not in number:
            continue
        for node in match.recomputed:
            why = f"recomputed for each element in call {number[name]}"
            told[node.name] = (f"call {number[name]}", _saved(2 * node.bytes, 1), why)
        label = f"call {number[name]}: {plan.calls[number[name]].name}"
        for node in match.covered:
            saved, why = _member(plan.graph, match, node)
            apart = plan.cover.apart.get(node.name)
            told[node.name] = (label, saved, f"{why}; apart by {apart}" if apart else why)
    return told


def _member(graph: Graph, match: Match, node: Node) -> tuple[tuple[str, str], str]:
    stays = node in match.stores
    traffic = 0 if stays else node.bytes * (1 + len(graph.consumers(node)))
    saved = NOTHING if stays else _saved(traffic, 1)
    if node is match.anchor:
        return saved, f"{match.pattern.name}: {_operands(graph, node)}"
    stored = f", stored as {node.dtype}" if stays else ""
    return saved, f"{match.role} {match.anchor.name}{stored}"


def _operands(graph: Graph, node: Node) -> str:
    reads = graph.operands(node)
    between = " @ " if node.op.name == "MatMul" else ", "
    return f"{reads[0].dtype} {between.join(str(list(read.shape)) for read in reads)}"


def _saved(traffic: int, launches: int) -> tuple[str, str]:
    return str(traffic), str(launches)


def _alone(plan: Plan, node: Node) -> Told:
    if node.op.name == "Constant":
        return "memory", NOTHING, "an array that the function holds"
    if node.name in plan.reasons:
        reason = plan.reasons[node.name]
        return f"NumPy: {reason.code}", NOTHING, reason.sentence
    return "layout", NOTHING, "read through its strides"


def _total(plan: Plan) -> Savings:
    used = {call.outputs[-1].name for call in plan.calls}
    each = [savings(plan.graph, m) for name, m in plan.cover.matches.items() if name in used]
    return Savings(sum(s.bytes for s in each), sum(s.launches for s in each))
