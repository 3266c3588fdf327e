"""Loads of shared memory that an arrival at an mbarrier, or a copy, does not wait for.

An arrival releases what its thread has read to other threads, but the instruction may pass loads
whose data nobody has needed yet, and TMA then writes over what they read (docs/facts.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.groups import Group
from kdsl_core.sim.lane_releases import as_words
from kdsl_core.sim.load_uses import LoadStep

ITSELF = -1  # in place of the instruction that passed loads
ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Passed:
    """The loads that one warp had under way when the instruction `by` passed them.

    `loads` has of each its instruction, the epoch in which it was started and a mask of the lanes
    that had it under way.
    """

    by: int
    loads: tuple[tuple[int, int, int], ...]

    @property
    def since(self) -> int:
        """The first epoch in which one of them was started."""
        return min(started for _, started, _ in self.loads)

    def among(self, load: Array, epoch: Array, lanes: Array) -> Array:
        """Which reads of the warp are of these loads, bool, of the shape of all three."""
        found = np.zeros(load.shape, bool)
        for pc, started, under_way in self.loads:
            found |= (load == pc) & (epoch == started) & (lanes & under_way != 0)
        return found


class LoadsUnderWay:
    """The last execution of each load that is followed, by warp; `epoch` is the clocks'."""

    def __init__(self, epoch: Array) -> None:
        self._epoch = epoch
        self._loads = np.zeros(0, np.int64)
        self._number: dict[int, int] = {}
        self._started = self._lanes = np.zeros((0, epoch.size), np.int64)
        self._passed: dict[tuple[int, int], Passed] = {}  # by the row and the epoch that ended

    def follow(self, loads: Sequence[int]) -> None:
        """Follow some loads, which are named by their instructions."""
        self._loads = np.array(loads, np.int64)
        self._number = {pc: number for number, pc in enumerate(loads)}
        self._started, self._lanes = np.zeros((2, len(loads), self._epoch.size), np.int64)

    @property
    def followed(self) -> bool:
        """Whether there are loads to follow at all."""
        return bool(self._number)

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
        which = np.nonzero(self._lanes[:, row])[0]
        columns = self._loads[which], self._started[which, row], self._lanes[which, row]
        return Passed(by, tuple(zip(*(column.tolist() for column in columns), strict=True)))

    # -- checks --------------------------------------------------------------------------------
    def passed(self, row: int, first: int, known: Array) -> Iterator[tuple[int, Passed]]:
        """What a warp may overwrite although its clock is behind it, by the warp that loads.

        The warps of its cluster are those from `first` on, and it knows them up to the epochs
        `known`, which ended with what orders their loads before its writes.
        """
        for agent, epoch in enumerate(known.tolist()):
            found = self._passed.get((first + agent, epoch))
            if first + agent == row:
                found = self._now(row, ITSELF) if self._lanes[:, row].any() else None
            if found is not None:
                yield agent, found


def _words(group: Group) -> Array:
    """One mask (W,) for the lanes of each of a group's warps."""
    if group.mask is None:
        return np.full(group.size, ALL_LANES, np.int64)
    return as_words(group.mask).astype(np.int64)
