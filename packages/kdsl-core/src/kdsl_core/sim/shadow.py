"""Shadow of shared memory: for each granule who wrote it last, and who has read it since.

A granule is the largest power of two that every access so far was a multiple of, so a kernel that
moves 16 bytes at a time pays a sixteenth of what single bytes would cost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import UNIT_EPOCH, Clocks
from kdsl_core.sim.entries import (
    AGENT,
    AGENT_SHIFT,
    ASYNC,
    ATOMIC,
    EPOCH_SHIFT,
    INFLIGHT,
    PC_SHIFT,
    SEVERAL,
    Conflict,
    entries,
    entry_pc,
    first_of,
    unfenced,
    unordered,
)
from kdsl_core.sim.loads_under_way import ALL_LANES, ITSELF
from kdsl_core.sim.unfinished import NO_BARRIER, UnfinishedReads, UnfinishedWrites, Writes

FIRST_GRANULE = 16


class Granules:
    """Maps byte offsets to granules, and makes granules smaller when an access asks for it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bytes = FIRST_GRANULE

    @property
    def count(self) -> int:
        """How many granules there are."""
        return -(-self.size // self.bytes)

    def refinement(self, offset: Array, size: int) -> int:
        """By how much granules must be divided before this access can be checked."""
        low = int(np.bitwise_or.reduce(offset)) | size
        unit = min(low & -low, self.bytes)
        factor = self.bytes // unit
        self.bytes = unit
        return factor

    def of(self, offset: Array, size: int) -> Array:
        """Granules (L, k) of the bytes at each offset (L,)."""
        first = offset[:, None] >> self.bytes.bit_length() - 1
        count = size // self.bytes
        return first if count == 1 else first + np.arange(count)


@dataclass(frozen=True, eq=False)
class Flight:
    """That a write goes on in the background, until its group or its mbarrier's phase is done.

    Shapes: `group` and `barrier` (L,); `barrier` is None for groups of `cp.async`.
    """

    group: Array
    barrier: Array | None = None

    def take(self, chosen: Array) -> Flight:
        """The part with the chosen threads, bool (L,)."""
        barrier = None if self.barrier is None else self.barrier[chosen]
        return Flight(self.group[chosen], barrier)


class SharedShadow:
    """The shadow of the shared memory of a batch's blocks."""

    def __init__(self, size: int, clocks: Clocks) -> None:
        self._granules = Granules(size)
        self._clocks = clocks
        self._written = np.zeros(self._granules.count, np.int64)
        self._read = self._unread()
        self._latest_read = 0
        self._writes = UnfinishedWrites(clocks)
        self._bulk_reads = UnfinishedReads(self._granules.count, clocks)

    # -- accesses ----------------------------------------------------------------------------
    def read(self, access: Access, offset: Array) -> list[Conflict]:
        """Check a read against earlier writes, and remember it."""
        granules = self._locate(offset, access.size)
        old = self._written[granules]
        found = _never(old) + self._against_writes(access, old)
        self._note_read(access, granules)
        return found

    def read_in_bulk(self, access: Access, offset: Array, group: Array) -> list[Conflict]:
        """Check a read by the TMA unit, which goes on until the bulk group (L,) is done."""
        granules = self._locate(offset, access.size)
        self._bulk_reads.add(granules, access, group)
        return self._as_unit(access, granules)

    def keep_in_bulk(self, access: Access, offset: Array, group: Array) -> None:
        """Remember bytes that the TMA unit may read until the bulk group (L,) is done."""
        self._bulk_reads.add(self._locate(offset, access.size), access, group)

    def read_matrix(self, access: Access, offset: Array, group: Array) -> list[Conflict]:
        """Check a read by a tensor core, which goes on until the wgmma group (L,) is done."""
        clocks = self._clocks
        granules = self._locate(offset, access.size)
        self._latest_read = UNIT_EPOCH
        entry = (UNIT_EPOCH + 1 + group << EPOCH_SHIFT) + (access.pc << PC_SHIFT)
        self._read[clocks.tensor_core[access.row][:, None], granules] = entry[:, None]
        return self._as_unit(access, granules)

    def _as_unit(self, access: Access, granules: Array) -> list[Conflict]:
        old = self._written[granules]
        found = _never(old) + self._against_writes(access, old)
        return found or first_of("proxy", unfenced(self._clocks.proxy, access, old), old, "wrote")

    def write(
        self, access: Access, offset: Array, flight: Flight | None = None, *, atomic: bool = False
    ) -> tuple[list[Conflict], Conflict | None]:
        """Check a write against earlier reads and writes, and remember it.

        Gives the conflicts with earlier instructions, and that of the threads of this one among
        themselves.
        """
        granules = self._locate(offset, access.size)
        old = self._written[granules]
        found = self._against_writes(access, old, atomic)
        if atomic:
            found += _never(old)
        found += self._against_reads(access, granules)
        if not found and flight is not None and flight.barrier is not None:
            found = self._against_loads(access, granules)
        entry = entries(self._clocks, access)
        if atomic:
            entry |= ATOMIC
        if flight is not None:
            entry = self._take_off(granules, entry, access, flight)
        self._written[granules] = entry[:, None]
        kept = self._written[granules]
        lost = kept != entry[:, None]
        if atomic or not lost.any():
            return found, None
        return found, first_of("race", lost, kept, "wrote")[0]

    def _take_off(self, granules: Array, entry: Array, access: Access, flight: Flight) -> Array:
        barrier = flight.barrier
        entry = entry | INFLIGHT
        if barrier is None:
            barrier = np.full(entry.shape, NO_BARRIER)
        else:
            entry |= ASYNC
        self._writes.add(Writes(granules, entry, access.row, access.lane, flight.group, barrier))
        return np.asarray(entry)

    # -- ends of asynchronous accesses ---------------------------------------------------------
    def finish_copies(self, finished: Array) -> None:
        """Copies of groups below `finished` (rows, 32) are done."""
        self._writes.finish_groups(self._written, finished)

    def finish_phase(self, barriers: Array, agent: Array, epoch: Array) -> None:
        """Phases of mbarriers (n,), ascending, completed."""
        self._writes.finish_phase(self._written, barriers, agent, epoch)

    def hand_over(self, barrier_of: Array) -> None:
        """Copies of threads so far complete at mbarriers `barrier_of` (rows, 32)."""
        self._writes.hand_over(barrier_of)

    def finish_bulk_reads(self, finished: Array) -> None:
        """Reads of bulk groups below `finished` (rows, 32) are done: from now on plain reads."""
        for done in self._bulk_reads.finish(finished):
            self._note_read(done.access, done.granules)

    def completes_at(self, entry: int) -> int:
        """The mbarrier of the transfer whose entry this is, −1 when it is not known."""
        return self._writes.barrier_of(entry)

    def unfinished_bulk_reads(self) -> list[Access]:
        """Reads of the TMA unit that nobody has waited for."""
        return self._bulk_reads.threads()

    # -- parts -----------------------------------------------------------------------------
    def _unread(self) -> Array:
        """Each agent's last read of each granule: none."""
        return np.zeros((self._clocks.readers, self._granules.count), np.int64)

    def _locate(self, offset: Array, size: int) -> Array:
        factor = self._granules.refinement(offset, size)
        if factor > 1:
            self._written = np.repeat(self._written, factor)
            self._read = self._read.repeat(factor, 1) if self._latest_read else self._unread()
            self._writes.refine(factor)
            self._bulk_reads.refine(factor)
        return self._granules.of(offset, size)

    def _against_writes(self, access: Access, old: Array, atomic: bool = False) -> list[Conflict]:
        clocks = self._clocks
        if int(old.max()) >> EPOCH_SHIFT <= clocks.everyone:
            return []
        late = unordered(clocks, access, old)
        if atomic:
            late &= (old & ATOMIC) == 0
        if not late.any():
            return []
        by_unit = (old >> AGENT_SHIFT & AGENT) >= clocks.warps
        transfers = late & (by_unit | ((old & ASYNC) != 0))
        flying = late & ~transfers & (old >= INFLIGHT)
        return (
            first_of("inflight", flying, old, "copies")
            + first_of("inflight", transfers, old, "transfers")
            + first_of("race", late & ~transfers & ~flying, old, "wrote")
        )

    def _against_reads(self, access: Access, granules: Array) -> list[Conflict]:
        found: list[Conflict] = []
        unfinished = self._bulk_reads.over(granules)
        if unfinished is not None:
            found = first_of("inflight", unfinished != 0, unfinished, "reads")
        if self._latest_read > self._clocks.everyone:
            found += self._against_past_reads(access, granules)
        return found

    def _against_past_reads(self, access: Access, granules: Array) -> list[Conflict]:
        clocks = self._clocks
        read = self._read[:, granules]
        known = clocks.known[access.row, : clocks.readers].T[..., None]
        late = (read >> EPOCH_SHIFT) > known
        if clocks.lanes.any:
            late |= self._withheld(access, read, known)
        if not late.any():
            return []
        thread, granule, agent = np.nonzero(late.transpose(1, 2, 0))
        entry = read[agent, thread, granule]
        mine = (agent == clocks.local[access.row][thread]) & (
            entry & (SEVERAL | 31) == access.lane[thread]
        )
        if mine.all():
            return []
        entry = (entry & ~SEVERAL) | agent << AGENT_SHIFT
        matrix = agent >= clocks.warps
        return [
            Conflict(code, thread[which], entry[which], did, None, granule[which], read.shape[2])
            for code, which, did in (
                ("race", ~mine & ~matrix, "read"),
                ("inflight", matrix, "multiplies"),
            )
            if which.any()
        ]

    def _against_loads(self, access: Access, granules: Array) -> list[Conflict]:
        """Loads in front of a transfer by all clocks, but which an arrival may have passed."""
        clocks, found = self._clocks, []
        for row in np.unique(access.row).tolist() if clocks.loads.followed else ():
            known = clocks.known[row, : clocks.warps]
            first = row // clocks.warps * clocks.warps
            for agent, passed in clocks.loads.passed(row, first, known):
                read = self._read[agent, granules]
                if int(read.max()) >> EPOCH_SHIFT < passed.since:
                    continue
                lanes = np.where(read & SEVERAL, ALL_LANES, 1 << (read & 31))
                late = passed.among(entry_pc(read), read >> EPOCH_SHIFT, lanes)
                late &= access.row[:, None] == row
                by = None if passed.by == ITSELF else passed.by
                entry = (read & ~SEVERAL) | agent << AGENT_SHIFT
                for conflict in first_of("inflight", late, entry, "loads"):
                    found.append(replace(conflict, passed_by=by))
        return found

    def _withheld(self, access: Access, read: Array, known: Array) -> Array:
        """Which reads (agents, L, k) are of lanes for which another lane of their warp arrived."""
        clocks = self._clocks
        agent, thread, granule = np.nonzero((read != 0) & (read >> EPOCH_SHIFT <= known))
        entry, row = read[agent, thread, granule], access.row[thread]
        other = np.where(agent < clocks.warps, row // clocks.warps * clocks.warps + agent, -1)
        lane = np.where(entry & SEVERAL, -1, entry & 31)
        late = np.zeros(read.shape, bool)
        late[agent, thread, granule] = clocks.lanes.withheld(
            row, clocks.known[row, agent], other, lane, entry >> EPOCH_SHIFT
        )
        return late

    def _note_read(self, access: Access, granules: Array) -> None:
        clocks = self._clocks
        epoch = clocks.epoch[access.row]
        self._latest_read = max(self._latest_read, int(epoch.max()))
        flat = self._read.reshape(-1)
        place = clocks.local[access.row][:, None] * self._read.shape[1] + granules
        entry = ((epoch << EPOCH_SHIFT) + (access.pc << PC_SHIFT) + access.lane)[:, None]
        if access.whole_warp:
            flat[place] = entry | SEVERAL
            return
        old = flat[place]
        same = (old >> EPOCH_SHIFT) == epoch[:, None]
        if same.any():
            several = same & ((old & (SEVERAL | 31)) != access.lane[:, None])
            entry = np.where(several, entry | SEVERAL, entry)
        flat[place] = entry
        lost = flat[place] != entry
        if lost.any():
            flat[place[lost]] |= SEVERAL


def _never(old: Array) -> list[Conflict]:
    """Bytes that nobody has written, where there are some."""
    return [] if old.all() else first_of("uninit", old == 0, old, "")
