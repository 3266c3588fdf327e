"""The short way to memory, of runs that look for no hazard and count nothing.

It takes accesses of whole warps that lie well inside of one allocation, or of their own shared
memory. All others go the long way.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kdsl_core.ir.protocols import Array, Sum
from kdsl_core.sim.batch import IN_BLOCK, SHARED_BASE, Batch
from kdsl_core.sim.groups import LANES, Group
from kdsl_core.sim.memory import WORDS, Allocation, GlobalStore
from kdsl_core.sim.tensor_boxes import CHUNK

_CHUNK_BITS = 4
Words: TypeAlias = "tuple[Array, Array]"  # of memory, and which of them (W, n) are accessed


class PlainAccess:
    """Memory as words of the size of an access."""

    def __init__(self, batch: Batch, store: GlobalStore) -> None:
        self._batch = batch
        self._store = store
        self._hints: dict[int, Allocation] = {}
        self._chunks_per_block = batch.shared_stride >> _CHUNK_BITS
        self._first_chunk = batch.block_of * self._chunks_per_block
        self._start = (batch.block_of * batch.shared_stride - SHARED_BASE)[:, None]
        self._ends = SHARED_BASE, SHARED_BASE + batch.shared_bytes

    def load(
        self, space: str, address: Array, size: int, where: Array | None, group: Group, pc: int
    ) -> Array | None:
        """Bytes (W, n, size); None when that takes the long way."""
        found = self._words(space, address, size, where, group, pc)
        if found is None:
            return None
        words, place = found
        return words.take(place, axis=0).view(np.uint8).reshape(*place.shape, size)

    def store(
        self, space: str, address: Array, data: Array, where: Array | None, group: Group, pc: int
    ) -> bool:
        """Write bytes (W, n, size); False when that takes the long way."""
        found = self._words(space, address, data.shape[-1], where, group, pc)
        if found is None or not self._may_write(space, pc):
            return False
        words, place = found
        values = np.ascontiguousarray(np.broadcast_to(data, (*place.shape, data.shape[-1])))
        words[place] = values if words.ndim > 1 else values.view(words.dtype)[..., 0]
        return True

    def load_lines(
        self, space: str, address: Sum, offset: int, size: int, group: Group, pc: int
    ) -> Array | None:
        """`load` where the lanes of each warp are equally far apart."""
        lines = self._lines(space, address, offset, size, group, pc)
        if lines is None:
            return None
        found = lines[0][lines[1]]
        return found.view(np.uint8).reshape(group.size, LANES, size)

    def store_lines(
        self, space: str, address: Sum, offset: int, data: Array, group: Group, pc: int
    ) -> bool:
        """`store` where the lanes of each warp are equally far apart."""
        size = data.shape[-1]
        lines = self._lines(space, address, offset, size, group, pc)
        if lines is None or not self._may_write(space, pc):
            return False
        values = np.ascontiguousarray(np.broadcast_to(data, (group.size, LANES, size)))
        lines[0][lines[1]] = values.view(lines[0].dtype)[..., 0]
        return True

    # -- asynchronous units ----------------------------------------------------------------------
    def shared_chunks(self, address: Array, row: Array, size: int) -> Array | None:
        """Which chunks of the batch's shared memory `size` bytes at addresses of rows begin with.

        None where they are not whole in their block's memory, or begin between chunks.
        """
        batch = self._batch
        inside, block = address, batch.block_of[row]
        if int(address.max()) > IN_BLOCK:
            inside, block = address & IN_BLOCK, batch.block_at(address, row)
        chunk = self.chunks_of_block(inside, size)
        return None if chunk is None else chunk + block * self._chunks_per_block

    def chunks_of_block(self, address: Array, size: int) -> Array | None:
        """`shared_chunks` of the batch's first block, for addresses that name no block."""
        low, high = int(address.min()), int(address.max()) + size
        crooked = int(np.bitwise_or.reduce(address, axis=None)) & (CHUNK - 1)
        if crooked or low < self._ends[0] or high > self._ends[1]:
            return None
        return np.asarray(address - SHARED_BASE >> _CHUNK_BITS)

    def shared_words(self) -> Array:
        """The batch's shared memory, each chunk a number that stands for its bits."""
        return self._batch.shared.view(WORDS[CHUNK])

    def get_chunks(self, chunk: Array, row: Array) -> Array:
        """Bytes (n, …, 16) of chunks (n, …), as of the first block, in the blocks of rows (n,)."""
        place = chunk.reshape(len(row), -1) + self._first_chunk[row][:, None]
        data = self._batch.shared.reshape(-1, CHUNK).take(place, axis=0)
        return data.reshape(*chunk.shape, CHUNK)

    def global_chunks(self, first: Array, behind: Array) -> tuple[Allocation, Array] | None:
        """The memory that has chunks (L, n), `behind` (n,) by chunks addresses (L,), and which.

        None where they are not in one allocation, or begin between chunks.
        """
        low, high = int(first.min()), int(first.max()) + int(behind.max()) * CHUNK
        found = self._store.find(low, high + CHUNK)
        if found is None or int(np.bitwise_or.reduce(first)) & (CHUNK - 1):
            return None
        return found, (first - found.origin >> _CHUNK_BITS)[:, None] + behind

    # -- parts -----------------------------------------------------------------------------------
    def _lines(
        self, space: str, address: Sum, offset: int, size: int, group: Group, pc: int
    ) -> Words | None:
        """All runs of 32 words so far apart in memory, and where each warp's begins."""
        row = address.row.astype(np.int64)[0]
        if size not in WORDS or row.size < LANES:
            return None
        step = int(row[1] - row[0])
        if step <= 0 or step % size or (np.diff(row) != step).any():
            return None
        last = (LANES - 1) * step
        first = address.column.astype(np.int64) + (int(row[0]) + offset)
        found = self._place(space, first, size, last + size, group, pc)
        if found is None:
            return None
        words, place = found
        runs = as_strided(words, (words.size - last // size, LANES), (size, step))
        return runs, np.broadcast_to(place[:, 0], (group.size,))

    def _may_write(self, space: str, pc: int) -> bool:
        if space != "global":
            return True
        hint = self._hints[pc]
        hint.written |= hint.writeable
        return hint.writeable

    def _words(
        self, space: str, address: Array, size: int, where: Array | None, group: Group, pc: int
    ) -> Words | None:
        if group.mask is not None or size & (size - 1) or (where is not None and not where.all()):
            return None
        wide = address.view(np.int64) if address.dtype == np.uint64 else address.astype(np.int64)
        found = self._place(space, wide, size, size, group, pc)
        if found is None or len(found[1]) == group.size:
            return found
        return found[0], np.broadcast_to(found[1], (group.size, found[1].shape[1]))

    def _place(
        self, space: str, address: Array, size: int, reach: int, group: Group, pc: int
    ) -> Words | None:
        """Where words of `size` bytes are, `reach` bytes from there on being accessed."""
        low, high = int(address.min()), int(address.max()) + reach
        if int(np.bitwise_or.reduce(address, axis=None)) & (size - 1):
            return None
        if space == "global":
            hint = self._hints.get(pc)
            if hint is None or low < hint.low or high > hint.high:
                hint = self._store.find(low, high)
                if hint is None:
                    return None
                self._hints[pc] = hint
            data, offset = hint.data, address - hint.origin
        elif low < self._ends[0] or high > self._ends[1]:
            return None
        else:
            data, offset = self._batch.shared, address + self._start[group.rows]
        offset >>= size.bit_length() - 1
        return data.view(WORDS[size]) if size in WORDS else data.reshape(-1, size), offset
