"""Who waits for whom when no warp can go on."""

from __future__ import annotations

from typing import NoReturn

from kdsl_core.sim.groups import Group
from kdsl_core.sim.hazards import Hazard
from kdsl_core.sim.machine import SimMachine
from kdsl_core.sim.parties import party_of, tuple_text
from kdsl_core.sim.wait_graph import Node, WaitGraph

_FIX_BARRIER = "let every warp that a barrier counts reach it, with the same count"
_FIX_ARRIVALS = (
    "let as many threads arrive in each phase as the mbarrier was initialised with, or initialise "
    "it with fewer arrivals"
)
_FIX_BYTES = "expect the bytes of exactly the transfers that complete at the mbarrier in one phase"
_FIX_FIRST_PHASE = (
    "let who fills a stage wait for the parity of the phase before the first, which has passed: "
    "1 in the first round of the ring, then 0, 1, …"
)
_FIX_CYCLE = "let one of them arrive before it waits"


def report_deadlock(machine: SimMachine, parked: list[Group]) -> None:
    """The hazard that all these groups wait for ever."""
    batch, reporter = machine.batch, machine.reporter
    first = min(parked, key=lambda g: int(g.index[0]))
    row, lane = int(first.index[0]), int(first.lanes()[0].argmax())
    graph = WaitGraph(machine, parked, int(batch.clocks.cluster[row]))
    why, fix = _cause(graph)
    place = f"block {tuple_text(batch.block_coordinate(row))}"
    if batch.blocks_per_cluster > 1:
        place = f"the cluster of {place}"
    others = {int(c) for group in parked for c in batch.clocks.cluster[group.index]}
    many = "blocks" if batch.blocks_per_cluster == 1 else "clusters"
    more = [f"{len(others) - 1} more {many} cannot go on either"] if len(others) > 1 else []
    loc = reporter.loc(first.stopped)
    hazard = Hazard(
        "deadlock",
        f"no warp of {place} can go on: {why}",
        loc,
        who=party_of(batch, row, lane, loc),
        notes=(*graph.lines(), *more),
        waits=tuple(graph.waits),
        fix=fix,
    )
    reporter.findings.add(hazard)


def report_runaway(machine: SimMachine, parked: list[Group], limit: int) -> NoReturn:
    """The hazard that the run has executed too much.

    Raises: HazardError, since the run cannot go on.
    """
    batch, reporter = machine.batch, machine.reporter
    row = int(machine.group.index[0])
    loc = reporter.loc(machine.pc)
    graph = WaitGraph(machine, parked, int(batch.clocks.cluster[row]))
    hazard = Hazard(
        "runaway",
        f"more than {limit:,} instructions were executed; a loop here may never end",
        loc,
        who=party_of(batch, row, int(machine.group.lanes()[0].argmax()), loc),
        notes=tuple(f"meanwhile {line}" for line in graph.lines()),
        waits=tuple(graph.waits),
        fix="check what the loop waits for, or raise `max_instructions`",
    )
    reporter.findings.add(hazard)
    raise hazard.error()


def _cause(graph: WaitGraph) -> tuple[str, str]:
    """A sentence that names the wrong bytes, the missing party or the cycle, and the fix."""
    found = _wrong_bytes(graph) or _missing_party(graph) or _cycle(graph)
    return found or ("its warps wait for others that wait themselves", _FIX_BARRIER)


def _wrong_bytes(graph: WaitGraph) -> tuple[str, str] | None:
    for node in graph.nodes:
        missing = node.awaited.missing_bytes
        if node.completes and missing:
            state = "fewer" if missing > 0 else "more"
            return (
                f"all arrivals at {node.awaited.name} have come, but its transfers brought "
                f"{abs(missing)} bytes {state} than were expected"
            ), _FIX_BYTES
    return None


def _missing_party(graph: WaitGraph) -> tuple[str, str] | None:
    for node in graph.nodes:
        name, pending = node.awaited.name, node.awaited.pending
        if pending is None or graph.arrivers(node):
            continue
        if node.awaited.phase is None or node.target is None:
            warps = f"{pending} warp{'s' if pending != 1 else ''}"
            return f"{name} misses {warps}, and no other warp gets there", _FIX_BARRIER
        at = graph.arrivals.at(node.target, completes=node.completes)
        if not at:
            return f"nothing in the kernel arrives at {name}", _FIX_ARRIVALS
        return (
            f"no warp that still runs gets to an arrival at {name} ({graph.places(at)})",
            _FIX_ARRIVALS,
        )
    return None


def _cycle(graph: WaitGraph) -> tuple[str, str] | None:
    path: list[Node] = []
    node = graph.nodes[0] if graph.nodes else None
    while node is not None and node not in path:
        path.append(node)
        node = next((other for other, _ in graph.arrivers(node)), None)
    if node is None:
        return None
    cycle = path[path.index(node) :]
    steps = [
        _step(graph, waiting, awaited)
        for waiting, awaited in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    first = any(n.awaited.phase == 0 and n.awaited.pending == n.awaited.count for n in cycle)
    fix = _FIX_FIRST_PHASE if first and len(cycle) > 1 else _FIX_CYCLE
    return f"{', and '.join(steps)}: a cycle", fix


def _step(graph: WaitGraph, node: Node, other: Node) -> str:
    """ "warp 8 waits for warps 0–7 to arrive at mbarrier empty[0]"."""
    verb = "waits" if len(node.rows) == 1 else "wait"
    whom = "their own arrival" if other is node else f"{graph.wait(other).who} to arrive"
    return f"{graph.wait(node).who} {verb} for {whom} at {node.awaited.name}"
