"""The short way to memory, of runs that look for no hazard and count nothing.

It takes accesses of whole warps that lie well inside of one allocation, or of their own shared
memory. All others go the long way.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.batch import SHARED_BASE, Batch
from kdsl_core.sim.groups import Group
from kdsl_core.sim.memory import Allocation, GlobalStore

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
Words: TypeAlias = "tuple[Array, Array]"  # of memory, and which of them (W, n) are accessed


class PlainAccess:
    """Memory as words of the size of an access."""

    def __init__(self, batch: Batch, store: GlobalStore) -> None:
        self._batch = batch
        self._store = store
        self._hints: dict[int, Allocation] = {}
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
        size = data.shape[-1]
        found = self._words(space, address, size, where, group, pc)
        if found is None:
            return False
        words, place = found
        if space == "global":
            hint = self._hints[pc]
            if not hint.writeable:
                return False
            hint.written = True
        values = np.ascontiguousarray(np.broadcast_to(data, (*place.shape, size)))
        words[place] = values if words.ndim > 1 else values.view(words.dtype)[..., 0]
        return True

    def _words(
        self, space: str, address: Array, size: int, where: Array | None, group: Group, pc: int
    ) -> Words | None:
        if group.mask is not None or size & (size - 1) or (where is not None and not where.all()):
            return None
        wide = address.view(np.int64) if address.dtype == np.uint64 else address.astype(np.int64)
        low, high = int(wide.min()), int(wide.max()) + size
        if int(np.bitwise_or.reduce(wide, axis=None)) & (size - 1):
            return None
        if space == "global":
            hint = self._hints.get(pc)
            if hint is None or low < hint.low or high > hint.high:
                hint = self._store.find(low, high)
                if hint is None:
                    return None
                self._hints[pc] = hint
            data, offset = hint.data, wide - hint.origin
        elif low < self._ends[0] or high > self._ends[1]:
            return None
        else:
            data, offset = self._batch.shared, wide + self._start[group.rows]
        offset >>= size.bit_length() - 1
        if offset.shape[0] != group.size:
            offset = np.broadcast_to(offset, (group.size, offset.shape[1]))
        return data.view(_WORDS[size]) if size in _WORDS else data.reshape(-1, size), offset
