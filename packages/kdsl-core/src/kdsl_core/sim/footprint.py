"""Which sectors of global memory a run touches at all: what DRAM must move at the very least."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.traffic import SECTOR

_PENDING = 1 << 20  # sector numbers that wait to be made distinct
_BY_UNITS = ("atomic", "tma_reduce", "bulk_reduce")  # read and written where the memory is
_WRITES = ("st", "tma_store", "bulk_store", *_BY_UNITS)
_READS = ("ld", "cp.async", "tma_load", "tma_prefetch", "bulk_load", *_BY_UNITS)


class Footprint:
    """Distinct sectors read and written, over the whole run."""

    def __init__(self) -> None:
        self._reads = _Set()
        self._writes = _Set()

    def access(self, kind: str, address: Array, active: Array | None, size: int) -> None:
        """Note accesses of `size` bytes at int64 addresses of any shape."""
        at = address if active is None else address[active]
        ends = np.concatenate([at.reshape(-1), at.reshape(-1) + size - 1]) // SECTOR
        sectors = np.unique(ends)
        if kind in _READS:
            self._reads.add(sectors)
        if kind in _WRITES:
            self._writes.add(sectors)

    @property
    def bytes_read(self) -> int:
        """Bytes of the sectors that were read."""
        return self._reads.size * SECTOR

    @property
    def bytes_written(self) -> int:
        """Bytes of the sectors that were written."""
        return self._writes.size * SECTOR


class _Set:
    """Distinct integers, given in pieces."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._pending = 0

    def add(self, numbers: Array) -> None:
        self._parts.append(numbers)
        self._pending += numbers.size
        if self._pending > _PENDING:
            self._merge()

    @property
    def size(self) -> int:
        self._merge()
        return int(self._parts[0].size) if self._parts else 0

    def _merge(self) -> None:
        if len(self._parts) > 1:
            self._parts = [np.unique(np.concatenate(self._parts))]
        self._pending = 0
