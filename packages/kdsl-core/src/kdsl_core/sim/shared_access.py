"""Reads and writes of the blocks' shared memory, with every check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import SHARED_BASE, Batch
from kdsl_core.sim.memory import gather, scatter, update_in_turn
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.shadow import Conflict, SharedShadow, entry_thread


class SharedAccess:
    """Shared memory of a batch: bytes, bounds, alignment and shadow."""

    def __init__(self, batch: Batch, reporter: Reporter) -> None:
        self._batch = batch
        self._reporter = reporter
        wants = reporter.findings.wants
        watched = any(wants(code) for code in ("race", "inflight", "uninit"))
        size = batch.shared.size
        self._shadow = SharedShadow(size, batch.clocks) if watched and size else None

    def load(self, access: Access) -> Array:
        """Bytes (L, size); zeros outside of shared memory."""
        offset, good = self._offsets(access)
        if good is not None:
            found = np.zeros((access.address.size, access.size), np.uint8)
            if good.any():
                found[good] = self.load(access.take(good))
            return found
        if self._shadow:
            self._report(access, self._shadow.read(access, offset), "reads")
        return gather(self._batch.shared, offset, access.size)

    def store(self, access: Access, data: Array, copy_group: Array | None = None) -> None:
        """Write bytes (L, size); dropped outside of shared memory."""
        offset, good = self._offsets(access)
        if good is not None:
            if good.any():
                group = None if copy_group is None else copy_group[good]
                self.store(access.take(good), data[good], group)
            return
        scatter(self._batch.shared, offset, data)
        if self._shadow is None:
            return
        found, within = self._shadow.write(access, offset, copy_group=copy_group)
        self._report(access, found, "writes")
        if within is not None:
            stays = (gather(self._batch.shared, offset, access.size) == data).all(axis=1)
            self._report(access, [self._of_other_value(access, within, stays)], "writes")

    def copy_in(self, access: Access, data: Array, copy_group: Array) -> None:
        """Write bytes that count as in flight until `complete` covers their group (L,)."""
        self.store(access, data, copy_group)

    def complete(self, finished: Array) -> None:
        """Copies of groups below `finished` (rows, 32) have arrived."""
        if self._shadow:
            self._shadow.complete(finished)

    def atomic(
        self, access: Access, dtype: np.dtype[Any], update: Callable[[Array, Array], Array]
    ) -> Array:
        """Read-modify-write one thread after the other; the old values (L,)."""
        offset, good = self._offsets(access)
        old = np.zeros(access.address.size, dtype)
        which = np.arange(old.size) if good is None else np.nonzero(good)[0]
        if not which.size:
            return old
        self._batch.clocks.atomic(np.unique(access.row))
        if self._shadow:
            allowed = access if good is None else access.take(good)
            found, _ = self._shadow.write(allowed, offset[which], atomic=True)
            self._report(allowed, found, "updates")
        words, place = self._batch.shared.view(dtype), offset[which] // dtype.itemsize
        old[which] = update_in_turn(words, place, lambda at, now: update(which[at], now))
        return old

    def _offsets(self, access: Access) -> tuple[Array, Array | None]:
        """Offsets into the batch's bytes, and which are allowed (None: all)."""
        inside = access.address - SHARED_BASE
        size, limit = access.size, self._batch.shared_bytes
        good = None
        if int(inside.min()) < 0 or int(inside.max()) + size > limit:
            bad = (inside < 0) | (inside + size > limit)
            self._reporter.bad_address("oob", access, "shared", bad)
            good = ~bad
        crooked = access.address & (size - 1)
        if crooked.any():
            self._reporter.bad_address("misaligned", access, "shared", crooked != 0)
            good = (crooked == 0) if good is None else good & (crooked == 0)
        if self._batch.blocks.size == 1:
            return inside, good
        return inside + self._batch.block_of[access.row] * self._batch.shared_stride, good

    def _report(self, access: Access, conflicts: list[Conflict], verb: str) -> None:
        for conflict in conflicts:
            if conflict.at.size:
                self._reporter.conflict(access, conflict, "shared", verb)

    def _of_other_value(self, access: Access, within: Conflict, stays: Array) -> Conflict:
        """Leave out lanes of one warp that wrote the same value at once: no order can differ."""
        local = self._batch.local[access.row[within.at]]
        warps = np.array([entry_thread(entry)[0] for entry in within.entry.tolist()])
        real = (warps != local) | ~stays[within.at]
        return Conflict("race", within.at[real], within.entry[real], "wrote")
