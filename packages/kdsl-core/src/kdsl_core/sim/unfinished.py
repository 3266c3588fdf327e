"""Asynchronous accesses to shared memory that nobody has waited for yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import Clocks
from kdsl_core.sim.entries import AGENT_SHIFT, BELOW_EPOCH, EPOCH_SHIFT, PC_SHIFT, THREAD

NO_BARRIER = -1


@dataclass(frozen=True, eq=False)
class Writes:
    """Bytes that copies are writing (L, k): who started them, and what they complete.

    `barrier` (L,) is the mbarrier that says when they are done; where there is none, `group` (L,)
    is the thread's group of copies.
    """

    granules: Array
    entry: Array
    row: Array
    lane: Array
    group: Array
    barrier: Array

    def take(self, chosen: Array) -> Writes:
        """The part with the chosen threads, bool (L,)."""
        return Writes(
            self.granules[chosen], self.entry[chosen], self.row[chosen], self.lane[chosen],
            self.group[chosen], self.barrier[chosen],
        )  # fmt: skip


class UnfinishedWrites:
    """Writes in flight; `written` is the shadow's array of last writers, which they change."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._waiting: list[Writes] = []

    def add(self, writes: Writes) -> None:
        """Remember writes that were just started."""
        self._waiting.append(writes)

    def refine(self, factor: int) -> None:
        """Granules became smaller."""
        self._waiting = [replace(w, granules=_finer(w.granules, factor)) for w in self._waiting]

    def finish_groups(self, written: Array, finished: Array) -> None:
        """Copies of groups below `finished` (rows, 32) are done: from now on plain writes."""
        for writes in self._split(
            lambda w: (w.barrier == NO_BARRIER) & (w.group < finished[w.row, w.lane])
        ):
            epoch = self._clocks.epoch[writes.row]
            plain = (writes.entry & BELOW_EPOCH) + (epoch << EPOCH_SHIFT)
            _settle(written, writes, plain)

    def finish_phase(self, written: Array, barriers: Array, agent: Array, epoch: Array) -> None:
        """Phases of mbarriers completed: their bytes are writes of those agents at those epochs.

        Shapes: `barriers` (n,) ascending, `agent` and `epoch` (n,).
        """
        for writes in self._split(lambda w: np.isin(w.barrier, barriers)):
            at = np.searchsorted(barriers, writes.barrier)
            plain = (writes.entry & BELOW_EPOCH & ~(THREAD & ~31)) | agent[at] << AGENT_SHIFT
            _settle(written, writes, plain + (epoch[at] << EPOCH_SHIFT))

    def hand_over(self, barrier_of: Array) -> None:
        """Copies of threads so far complete at `barrier_of` (rows, 32), where that is a barrier."""
        changed = []
        for writes in self._waiting:
            new = barrier_of[writes.row, writes.lane]
            mine = (writes.barrier == NO_BARRIER) & (new != NO_BARRIER)
            changed.append(replace(writes, barrier=np.where(mine, new, writes.barrier)))
        self._waiting = changed

    def barrier_of(self, entry: int) -> int:
        """The mbarrier at which the newest writes of an entry complete, or `NO_BARRIER`."""
        for writes in reversed(self._waiting):
            which = writes.entry == entry
            if which.any():
                return int(writes.barrier[which.argmax()])
        return NO_BARRIER

    def _split(self, is_done: Callable[[Writes], Array]) -> list[Writes]:
        done, waiting = [], []
        for writes in self._waiting:
            which = is_done(writes)
            if which.all():
                done.append(writes)
            elif which.any():
                done.append(writes.take(which))
                waiting.append(writes.take(~which))
            else:
                waiting.append(writes)
        self._waiting = waiting
        return done


def _settle(written: Array, writes: Writes, plain: Array) -> None:
    mine = written[writes.granules] == writes.entry[:, None]
    written[writes.granules[mine]] = np.broadcast_to(plain[:, None], mine.shape)[mine]


def _finer(granules: Array, factor: int) -> Array:
    finer = granules[:, :, None] * factor + np.arange(factor)
    return finer.reshape(len(granules), -1)


@dataclass(frozen=True, eq=False)
class Reads:
    """Bytes (L, k) that asynchronous units are reading for threads, in their groups (L,)."""

    granules: Array
    access: Access
    group: Array


class UnfinishedReads:
    """For each granule and warp of the cluster, its newest asynchronous read not waited for."""

    def __init__(self, granules: int, clocks: Clocks) -> None:
        self._clocks = clocks
        self._count = granules
        self._newest = np.zeros((0, 0), np.int64)  # made by the first read
        self._waiting: list[Reads] = []

    def add(self, granules: Array, access: Access, group: Array) -> None:
        """Remember reads that were just started."""
        if not self._newest.size:
            self._newest = np.zeros((self._count, self._clocks.warps), np.int64)
        entry = (group + 1 << EPOCH_SHIFT) + (access.pc << PC_SHIFT) + access.lane
        self._newest[granules, self._clocks.local[access.row][:, None]] = entry[:, None]
        self._waiting.append(Reads(granules, access, group))

    def refine(self, factor: int) -> None:
        """Granules became smaller."""
        self._count *= factor
        self._newest = np.repeat(self._newest, factor, axis=0)
        self._waiting = [replace(r, granules=_finer(r.granules, factor)) for r in self._waiting]

    def finish(self, finished: Array) -> list[Reads]:
        """Forget, and give, the reads of groups below `finished` (rows, 32)."""
        done, waiting = [], []
        for reads in self._waiting:
            access = reads.access
            which = reads.group < finished[access.row, access.lane]
            if which.any():
                done.append(Reads(reads.granules[which], access.take(which), reads.group[which]))
            if not which.all():
                left = ~which
                waiting.append(Reads(reads.granules[left], access.take(left), reads.group[left]))
        self._waiting = waiting
        for reads in done:
            row, lane = reads.access.row[:, None], reads.access.lane[:, None]
            column = self._clocks.local[row]
            old = self._newest[reads.granules, column] >> EPOCH_SHIFT
            over = old <= finished[row, lane]
            self._newest[reads.granules, column] *= ~over
        return done

    def over(self, granules: Array) -> Array | None:
        """The entries (L, k) of unfinished reads of granules, 0 for none; None for none at all."""
        if not self._waiting:
            return None
        reads = self._newest[granules]
        column = reads.argmax(axis=-1)
        newest = np.take_along_axis(reads, column[..., None], axis=-1)[..., 0]
        return np.where(newest, newest | column << AGENT_SHIFT, 0) if newest.any() else None

    def threads(self) -> list[Access]:
        """The accesses that nobody has waited for."""
        return [reads.access for reads in self._waiting]
