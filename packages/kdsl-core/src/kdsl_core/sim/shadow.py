"""Shadow memory: for each granule of bytes who wrote it last, and who has read it since.

A granule is the largest power of two that every access so far was a multiple of, so a kernel that
moves 16 bytes at a time pays a sixteenth of what single bytes would cost.

An entry is one integer: epoch · 2³² + instruction · 2¹¹ + atomic · 2¹⁰ + warp · 2⁵ + lane, and 0
for "never". Comparing epochs is a shift, and a whole access is checked with a few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import Clocks

INFLIGHT = 1 << 62  # later than every epoch, so that no clock has seen it
ATOMIC = 1 << 10
_THREAD = (1 << 10) - 1
_WARP_SHIFT, _WARP = 5, 31
_PC_SHIFT, _PC = 11, (1 << 21) - 1
_EPOCH_SHIFT = 32
_SEVERAL = 1 << 5  # in a reader's entry: more lanes of the warp than the one named
FIRST_GRANULE = 16


@dataclass(frozen=True, eq=False)
class Conflict:
    """Accesses of one instruction that are not ordered with earlier ones.

    `at` are positions in the access (L,); `entry` the other party's entries; `block` their block
    numbers where that may differ; `other` is "wrote", "read" or "copies".
    """

    code: str
    at: Array
    entry: Array
    other: str
    block: Array | None = None


def entry_pc(entry: int) -> int:
    """The instruction of an entry."""
    return entry >> _PC_SHIFT & _PC


def entry_thread(entry: int) -> tuple[int, int]:
    """(warp in its block, lane) of an entry."""
    return entry >> _WARP_SHIFT & _WARP, entry & 31


def entries(clocks: Clocks, access: Access) -> Array:
    """The entry of each thread of an access (L,)."""
    thread = clocks.local[access.row] << _WARP_SHIFT | access.lane
    return (clocks.epoch[access.row] << _EPOCH_SHIFT) + (access.pc << _PC_SHIFT) + thread


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


@dataclass(eq=False)
class AsyncWrite:
    """Bytes that an asynchronous copy is writing: who started it, in which of its groups."""

    granules: Array
    entry: Array
    row: Array
    lane: Array
    group: Array


class SharedShadow:
    """The shadow of the shared memory of a batch's blocks."""

    def __init__(self, size: int, clocks: Clocks) -> None:
        self._granules = Granules(size)
        self._clocks = clocks
        self._written = np.zeros(self._granules.count, np.int64)
        self._read = np.zeros((self._granules.count, clocks.warps_per_block), np.int64)
        self._latest_read = 0
        self._pending: list[AsyncWrite] = []

    def read(self, access: Access, offset: Array) -> list[Conflict]:
        """Check a read against earlier writes, and remember it."""
        granules = self._locate(offset, access.size)
        old = self._written[granules]
        found: list[Conflict] = []
        if not old.all():
            at = np.nonzero((old == 0).any(axis=1))[0]
            found.append(Conflict("uninit", at, np.zeros(at.size, np.int64), ""))
        found += self._against_writes(access, old)
        self._note_read(access, granules)
        return found

    def write(
        self,
        access: Access,
        offset: Array,
        *,
        copy_group: Array | None = None,
        atomic: bool = False,
    ) -> tuple[list[Conflict], Conflict | None]:
        """Check a write against earlier reads and writes, and remember it.

        Gives the conflicts with earlier instructions, and that of the threads of this one among
        themselves. `copy_group` (L,) makes it an asynchronous copy that stays in flight.
        """
        granules = self._locate(offset, access.size)
        old = self._written[granules]
        found = self._against_writes(access, old, atomic)
        if atomic and not old.all():
            at = np.nonzero((old == 0).any(axis=1))[0]
            found.append(Conflict("uninit", at, np.zeros(at.size, np.int64), ""))
        if self._latest_read > self._clocks.everyone:
            found += self._against_reads(access, granules)
        entry = entries(self._clocks, access)
        if atomic:
            entry |= ATOMIC
        if copy_group is not None:
            entry |= INFLIGHT
            self._pending.append(AsyncWrite(granules, entry, access.row, access.lane, copy_group))
        self._written[granules] = entry[:, None]
        kept = self._written[granules]
        lost = kept != entry[:, None]
        if atomic or not lost.any():
            return found, None
        at = np.nonzero(lost.any(axis=1))[0]
        return found, Conflict("race", at, kept[at, lost[at].argmax(axis=1)], "wrote")

    def complete(self, finished: Array) -> None:
        """Copies of groups below `finished`, (rows, 32), are done: from now on plain writes."""
        clocks, waiting = self._clocks, []
        for copy in self._pending:
            done = copy.group < finished[copy.row, copy.lane]
            if not done.any():
                waiting.append(copy)
                continue
            granules, entry, row = copy.granules[done], copy.entry[done], copy.row[done]
            plain = (entry & ((1 << _EPOCH_SHIFT) - 1)) + (clocks.epoch[row] << _EPOCH_SHIFT)
            mine = self._written[granules] == entry[:, None]
            self._written[granules[mine]] = np.broadcast_to(plain[:, None], granules.shape)[mine]
            left = ~done
            if left.any():
                rest = AsyncWrite(
                    copy.granules[left], copy.entry[left], copy.row[left], copy.lane[left],
                    copy.group[left],
                )  # fmt: skip
                waiting.append(rest)
        self._pending = waiting

    # -- parts -----------------------------------------------------------------------------
    def _locate(self, offset: Array, size: int) -> Array:
        factor = self._granules.refinement(offset, size)
        if factor > 1:
            self._written = np.repeat(self._written, factor)
            self._read = np.repeat(self._read, factor, axis=0)
            for copy in self._pending:
                finer = copy.granules[:, :, None] * factor + np.arange(factor)
                copy.granules = finer.reshape(len(finer), -1)
        return self._granules.of(offset, size)

    def _against_writes(self, access: Access, old: Array, atomic: bool = False) -> list[Conflict]:
        clocks = self._clocks
        if int(old.max()) >> _EPOCH_SHIFT <= clocks.everyone:
            return []
        late = unordered(clocks, access, old)
        if atomic:
            late &= (old & ATOMIC) == 0
        if not late.any():
            return []
        found = []
        flying = late & (old >= INFLIGHT)
        for code, which, other in (
            ("inflight", flying, "copies"),
            ("race", late & ~flying, "wrote"),
        ):
            at = np.nonzero(which.any(axis=1))[0]
            if at.size:
                found.append(Conflict(code, at, old[at, which[at].argmax(axis=1)], other))
        return found

    def _against_reads(self, access: Access, granules: Array) -> list[Conflict]:
        clocks = self._clocks
        read = self._read[granules]
        late = (read >> _EPOCH_SHIFT) > clocks.known[access.row][:, None, :]
        if not late.any():
            return []
        thread, granule, warp = np.nonzero(late)
        entry = read[thread, granule, warp]
        mine = (warp == clocks.local[access.row][thread]) & (
            entry & (_SEVERAL | 31) == access.lane[thread]
        )
        if mine.all():
            return []
        entry = (entry & ~(_WARP << _WARP_SHIFT)) | warp << _WARP_SHIFT
        return [Conflict("race", thread[~mine], entry[~mine], "read")]

    def _note_read(self, access: Access, granules: Array) -> None:
        clocks = self._clocks
        epoch = clocks.epoch[access.row]
        self._latest_read = max(self._latest_read, int(epoch.max()))
        flat = self._read.reshape(-1)
        place = granules * clocks.warps_per_block + clocks.local[access.row][:, None]
        entry = ((epoch << _EPOCH_SHIFT) + (access.pc << _PC_SHIFT) + access.lane)[:, None]
        if access.whole_warp:
            flat[place] = entry | _SEVERAL
            return
        old = flat[place]
        same = (old >> _EPOCH_SHIFT) == epoch[:, None]
        if same.any():
            several = same & ((old & (_SEVERAL | 31)) != access.lane[:, None])
            entry = np.where(several, entry | _SEVERAL, entry)
        flat[place] = entry
        lost = flat[place] != entry
        if lost.any():
            flat[place[lost]] |= _SEVERAL


def unordered(clocks: Clocks, access: Access, old: Array) -> Array:
    """Which entries (L, k) of the same block do not happen before the access, bool (L, k)."""
    row = access.row[:, None]
    late = (old >> _EPOCH_SHIFT) > clocks.known[row, old >> _WARP_SHIFT & _WARP]
    if late.any() and not access.whole_warp:
        me = clocks.local[row] << _WARP_SHIFT | access.lane[:, None]
        late &= ((old & _THREAD) != me) | (old >= INFLIGHT)
    return np.asarray(late)
