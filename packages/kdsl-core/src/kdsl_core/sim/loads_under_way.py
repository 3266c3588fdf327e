"""Loads of shared memory that an arrival at an mbarrier, or a copy, does not wait for.

An arrival releases what its thread has read to other threads, but the instruction may pass loads
whose data nobody has needed yet, and TMA then writes over what they read (docs/facts.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.groups import Group
from kdsl_core.sim.lane_releases import as_words
from kdsl_core.sim.load_uses import LoadStep

NOBODY, ITSELF = -2, -1  # in place of the instruction that passed a load
ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Passed:
    """The loads that one warp had under way when the instruction `by` passed them.

    Shapes: of each load that is followed, the epoch in which it was started and a mask of the lanes
    that had it under way (loads,).
    """

    started: Array
    lanes: Array
    by: int


class LoadsUnderWay:
    """The last execution of each load that is followed, by warp; `epoch` is the clocks'."""

    def __init__(self, epoch: Array) -> None:
        self._epoch = epoch
        self._number: dict[int, int] = {}
        self._started = self._lanes = np.zeros((0, epoch.size), np.int64)
        self._passed: dict[tuple[int, int], Passed] = {}  # by the row and the epoch that ended

    def follow(self, loads: Sequence[int]) -> None:
        """Follow some loads, which are named by their instructions."""
        self._number = {pc: number for number, pc in enumerate(loads)}
        self._started, self._lanes = np.zeros((2, len(loads), self._epoch.size), np.int64)

    # -- what happens to them ------------------------------------------------------------------
    def step(self, pc: int, step: LoadStep, group: Group) -> None:
        """A group executes an instruction that matters to loads."""
        if not self._number:
            return
        for load in step.ends:
            self._end(self._number[load], group)
        if step.begins:
            number = self._number[pc]
            self._started[number, group.rows] = self._epoch[group.rows]
            self._lanes[number, group.rows] = _words(group)

    def end(self, group: Group) -> None:
        """A fence or a barrier waits for all loads of the group's threads."""
        if self._number:
            self._end(slice(None), group)

    def _end(self, which: int | slice, group: Group) -> None:
        self._lanes[which, group.rows] &= ~_words(group)

    def pass_by(self, rows: Array, pc: int) -> None:
        """Warps are about to close their epochs by an arrival, the instruction `pc`."""
        if not self._number:
            return
        for row in rows[self._lanes[:, rows].any(axis=0)].tolist():
            self._passed[row, int(self._epoch[row])] = self._now(row, pc)

    def _now(self, row: int, by: int) -> Passed:
        return Passed(self._started[:, row].copy(), self._lanes[:, row].copy(), by)

    # -- checks --------------------------------------------------------------------------------
    @property
    def any(self) -> bool:
        """Whether some load is under way, or was passed."""
        return bool(self._passed) or bool(self._lanes.any())

    def passed(
        self, row: Array, known: Array, other: Array, load: Array, epoch: Array, lanes: Array
    ) -> Array:
        """What passed reads that warps `row` overwrite: instructions, ITSELF or NOBODY.

        Warps `other` read in their `epoch` by the instruction `load`, in `lanes` (a mask). The
        epochs `known` of theirs ended with what orders their reads before the writes.
        Shapes: all (n,).
        """
        found = np.full(row.size, NOBODY)
        until = np.where(row == other, ITSELF, known)
        cases = np.stack([other, until, load, epoch])
        for case in np.unique(cases, axis=1).T.tolist():
            warp, ended, pc, started = case
            number = self._number.get(pc)
            loads = self._now(warp, ITSELF) if ended == ITSELF else self._passed.get((warp, ended))
            if loads is None or number is None or loads.started[number] != started:
                continue
            same = np.equal(cases.T, case).all(axis=1)
            found[same & (lanes & int(loads.lanes[number]) != 0)] = loads.by
        return found


def _words(group: Group) -> Array:
    """One mask (W,) for the lanes of each of a group's warps."""
    if group.mask is None:
        return np.full(group.size, ALL_LANES, np.int64)
    return as_words(group.mask).astype(np.int64)
