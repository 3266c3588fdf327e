"""Who waits for what when no warp can go on."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from kdsl_core.sim.groups import Group
from kdsl_core.sim.hazards import Hazard
from kdsl_core.sim.machine import SimMachine

_FIX = "let every warp that a barrier counts reach it, with the same count"
_FIX_MBARRIER = (
    "let as many threads arrive as the mbarrier counts, expect the bytes that the transfers bring, "
    "and start producers with the parity of the phase before the first"
)


def report_deadlock(machine: SimMachine, parked: list[Group]) -> None:
    """The hazard that all these groups wait for ever."""
    batch, reporter = machine.batch, machine.reporter
    first = min(parked, key=lambda g: int(g.index[0]))
    row = int(first.index[0])
    block = int(batch.block_of[row])
    waits = [_who_waits(machine, group, block) for group in parked]
    ended = [
        str(int(batch.local[at]))
        for at in np.nonzero(batch.block_of == block)[0]
        if not batch.alive[at].any()
    ]
    if ended:
        waits.append(f"{_warps(ended)} ended")
    place = ", ".join(map(str, batch.block_coordinate(row)))
    hazard = Hazard(
        "deadlock",
        f"no warp of block ({place}) can go on: " + "; ".join(text for text in waits if text),
        reporter.loc(first.stopped),
        block=batch.block_coordinate(row),
        thread=batch.thread_coordinate(row, 0),
        fix=_FIX_MBARRIER if any(g.waits_for == "mbarrier" for g in parked) else _FIX,
    )
    reporter.findings.add(hazard)


def report_runaway(machine: SimMachine, parked: list[Group], limit: int) -> NoReturn:
    """The hazard that the run has executed too much.

    Raises: HazardError, since the run cannot go on.
    """
    reporter = machine.reporter
    hazard = Hazard(
        "runaway",
        f"more than {limit:,} instructions were executed; a loop here may never end"
        f"{_meanwhile(machine, parked)}",
        reporter.loc(machine.pc),
        fix="check what the loop waits for, or raise `max_instructions`",
    )
    reporter.findings.add(hazard)
    raise hazard.error()


def _meanwhile(machine: SimMachine, parked: list[Group]) -> str:
    """Who waits in the first block that has waiting warps, as the rest of a sentence."""
    if not parked:
        return ""
    block = int(machine.batch.block_of[parked[0].index[0]])
    waits = [_who_waits(machine, group, block) for group in parked]
    return "; meanwhile " + "; ".join(text for text in waits if text)


def _who_waits(machine: SimMachine, group: Group, block: int) -> str:
    """ "warps 0, 1 wait at line 12 for barrier 0 (2 of 4 warps arrived)" in one block, or "" ."""
    batch = machine.batch
    rows = group.index[batch.block_of[group.index] == block]
    if not rows.size:
        return ""
    names = [str(int(batch.local[row])) for row in rows]
    loc = machine.reporter.loc(group.stopped)
    text = f"{_warps(names)} wait{'s' if len(names) == 1 else ''}"
    text += f" at {loc.short()}" if loc else ""
    return f"{text} for {_for_what(machine, group.waits_for, int(rows[0]))}"


def _for_what(machine: SimMachine, kind: str, row: int) -> str:
    batch = machine.batch
    block = int(batch.block_of[row])
    if kind == "mbarrier":
        return " and ".join(_mbarrier(machine, number) for number in machine.mbarriers.awaited(row))
    if kind == "cluster":
        arrived = machine.cluster_barriers.arrivals[
            batch.clocks.cluster == batch.clocks.cluster[row]
        ]
        count = int((arrived == arrived.max()).sum())
        return f"the cluster's barrier ({count} of {arrived.size} warps arrived)"
    if kind == "warp group":
        return "the other warps of its warp group, which have not started the same wgmma"
    if kind == "registers":
        pool = machine.register_pool
        return (
            f"{pool.wanted[row]} registers a thread, of which it has {pool.held[row]} and the "
            f"block {pool.spare[block]} to spare"
        )
    if kind == "lanes":
        return "other lanes of the warp"
    barriers = machine.barriers
    number = int(np.nonzero(barriers.waiting[block, :, batch.local[row]])[0][0])
    arrived, expected = barriers.arrived[block, number].sum(), barriers.expected[block, number]
    return f"barrier {number} ({arrived} of {expected} warps arrived)"


def _mbarrier(machine: SimMachine, number: int) -> str:
    """An mbarrier's name and what its phase misses."""
    barriers = machine.mbarriers
    pending, size = int(barriers.pending[number]), int(barriers.bytes[number])
    missing = f"{pending} of {barriers.count[number]} arrivals pending"
    if size:
        missing += f", {abs(size)} bytes {'missing' if size > 0 else 'too many'}"
    name = machine.reporter.barrier_place(barriers.address(number))
    return f"{name} (phase {barriers.phase[number]}: {missing})"


def _warps(names: list[str]) -> str:
    return f"warp{'s' if len(names) > 1 else ''} {', '.join(names)}"
