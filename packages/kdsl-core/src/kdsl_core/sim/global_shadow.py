"""Shadow of a global allocation: unordered accesses within a block and between blocks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import Clocks
from kdsl_core.sim.shadow import ATOMIC, Conflict, Granules, entries, unordered

_EPOCH_SHIFT = 32
_IDENTITY = (1 << 10) - 1


class Releases:
    """What blocks released by fences and acquired by atomics, in the order of the run.

    A fence of a warp releases its past and what it knows of its block's past; a later atomic of
    another block acquires it. That errs towards "ordered": which atomic read which is not followed.
    """

    def __init__(self) -> None:
        self._time = 0
        self._released: dict[int, list[tuple[int, Array]]] = defaultdict(list)
        self._acquired: dict[int, int] = {}

    def fence(self, blocks: Array, known: Array) -> None:
        """Warps of linear `blocks` (W,), with clocks (W, warps), release."""
        self._time += 1
        for block, clock in zip(blocks.tolist(), known, strict=True):
            self._released[block].append((self._time, clock.copy()))

    def atomic(self, blocks: Array) -> None:
        """Warps of linear `blocks` acquire what was released so far."""
        if self._released:
            self._time += 1
            for block in np.unique(blocks).tolist():
                self._acquired[block] = self._time

    def ordered(self, block: int, entry: int, reader: int) -> bool:
        """Whether an access of `block` was released before `reader` last acquired."""
        seen = self._acquired.get(reader, 0)
        warp, epoch = entry >> 5 & 31, entry >> _EPOCH_SHIFT
        return any(time < seen and clock[warp] >= epoch for time, clock in self._released[block])


class GlobalShadow:
    """Last writer and the last two different readers of each granule of an allocation.

    Blocks are stored as number + 1, so that 0 means nobody.
    """

    def __init__(self, size: int, releases: Releases) -> None:
        self._granules = Granules(size)
        count = self._granules.count
        self._releases = releases
        self._writer = np.zeros(count, np.int64)
        self._writer_block = np.zeros(count, np.int32)
        self._reader = np.zeros((2, 0), np.int64)  # made by the first read
        self._reader_block = np.zeros((2, 0), np.int32)
        self._was_read = False
        self._was_written = False

    def read(self, clocks: Clocks, access: Access, offset: Array, block: Array) -> list[Conflict]:
        """Check a read of threads of linear blocks `block` (L,), and remember it."""
        granules = self._locate(offset, access.size)
        found: list[Conflict] = []
        if self._was_written:
            old, old_block = self._writer[granules], self._writer_block[granules]
            found = self._conflicts(clocks, access, block, old, old_block, "wrote")
        self._note_read(clocks, access, granules, block)
        return found

    def write(
        self, clocks: Clocks, access: Access, offset: Array, block: Array, atomic: bool = False
    ) -> tuple[list[Conflict], Conflict | None]:
        """Check a write, and remember it; also gives the conflict within the instruction."""
        granules = self._locate(offset, access.size)
        found: list[Conflict] = []
        if self._was_written:
            old, old_block = self._writer[granules], self._writer_block[granules]
            if atomic:
                old_block = np.where(old & ATOMIC, 0, old_block)
            found = self._conflicts(clocks, access, block, old, old_block, "wrote")
        if self._was_read:
            for slot in range(2):
                old = self._reader[slot][granules]
                old_block = self._reader_block[slot][granules]
                found += self._conflicts(clocks, access, block, old, old_block, "read")
        entry = entries(clocks, access) | (ATOMIC if atomic else 0)
        self._was_written = True
        self._writer[granules] = entry[:, None]
        self._writer_block[granules] = (block + 1)[:, None]
        if atomic:
            return found, None
        return found, self._within(granules, entry, block)

    def _within(self, granules: Array, entry: Array, block: Array) -> Conflict | None:
        kept = self._writer[granules]
        kept_block = self._writer_block[granules]
        lost = (kept != entry[:, None]) | (kept_block != (block + 1)[:, None])
        if not lost.any():
            return None
        at = np.nonzero(lost.any(axis=1))[0]
        column = lost[at].argmax(axis=1)
        return Conflict("race", at, kept[at, column], "wrote", kept_block[at, column] - 1)

    def _locate(self, offset: Array, size: int) -> Array:
        factor = self._granules.refinement(offset, size)
        if factor > 1:
            self._writer = np.repeat(self._writer, factor)
            self._writer_block = np.repeat(self._writer_block, factor)
        if factor > 1 and self._was_read:
            self._reader = np.repeat(self._reader, factor, axis=1)
            self._reader_block = np.repeat(self._reader_block, factor, axis=1)
        return self._granules.of(offset, size)

    def _conflicts(
        self,
        clocks: Clocks,
        access: Access,
        block: Array,
        old: Array,
        old_block: Array,
        other: str,
    ) -> list[Conflict]:
        if not old_block.any():
            return []
        foreign = (old_block != 0) & (old_block != (block + 1)[:, None])
        late = (old_block != 0) & ~foreign
        if late.any():
            late &= unordered(clocks, access, old)
        if foreign.any():
            late |= self._still_unordered(foreign, block, old, old_block)
        at = np.nonzero(late.any(axis=1))[0]
        if not at.size:
            return []
        column = late[at].argmax(axis=1)
        return [Conflict("race", at, old[at, column], other, old_block[at, column] - 1)]

    def _still_unordered(self, foreign: Array, block: Array, old: Array, old_block: Array) -> Array:
        late = foreign.copy()
        thread, granule = np.nonzero(foreign)
        keys = np.stack(
            [old_block[thread, granule] - 1, old[thread, granule], block[thread]], axis=1
        )
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        ordered = np.array([self._releases.ordered(*key) for key in unique.tolist()], bool)
        late[thread, granule] = ~ordered[inverse.reshape(-1)]
        return late

    def _note_read(self, clocks: Clocks, access: Access, granules: Array, block: Array) -> None:
        entry = np.broadcast_to(entries(clocks, access)[:, None], granules.shape)
        mine = np.broadcast_to((block + 1)[:, None].astype(np.int32), granules.shape)
        if self._was_read:
            old, old_block = self._reader[0][granules], self._reader_block[0][granules]
            other = (old_block != 0) & (
                (old_block != mine) | ((old & _IDENTITY) != (entry & _IDENTITY))
            )
            self._reader[1][granules[other]] = old[other]
            self._reader_block[1][granules[other]] = old_block[other]
        if not self._was_read:
            self._was_read = True
            self._reader = np.zeros((2, self._writer.size), np.int64)
            self._reader_block = np.zeros((2, self._writer.size), np.int32)
        self._reader[0][granules] = entry
        self._reader_block[0][granules] = mine
        lost = (self._reader[0][granules] != entry) | (self._reader_block[0][granules] != mine)
        if lost.any():
            self._reader[1][granules[lost]] = entry[lost]
            self._reader_block[1][granules[lost]] = mine[lost]
