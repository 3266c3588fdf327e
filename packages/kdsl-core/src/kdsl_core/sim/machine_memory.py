"""The machine's loads, stores and atomics, and its asynchronous copies (`cp.async`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Operand, SharedAlloc
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.async_copies import AsyncCopies
from kdsl_core.sim.batch import SHARED_BASE, in_block
from kdsl_core.sim.machine_base import MachineBase
from kdsl_core.sim.shadow import Flight


class MemoryPart(MachineBase):
    """What instructions do with memory."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._copies = AsyncCopies(self.batch)

    # -- memory -----------------------------------------------------------------------------
    def load_lines(self, space: str, address: Operand, offset: int, size: int) -> Array | None:
        sums = self.sums((address,))
        if sums is None or self._plain is None:
            return None
        return self._plain.load_lines(space, sums[0], offset, size, self.group, self.pc)

    def store_lines(self, space: str, address: Operand, offset: int, data: Array) -> bool:
        sums = self.sums((address,))
        if sums is None or self._plain is None:
            return False
        return self._plain.store_lines(space, sums[0], offset, data, self.group, self.pc)

    def load(
        self,
        space: str,
        address: Array,
        size: int,
        *,
        where: Array | None = None,
        kind: str = "ld",
    ) -> Array:
        if self._plain is not None:
            found = self._plain.load(space, address, size, where, self.group, self.pc)
            if found is not None:
                return found
        access = self.access(address, size, where, kind)
        if not access.address.size:
            return np.zeros((*access.shape, size), np.uint8)
        self._count(space, access, kind)
        memory = self._global if space == "global" else self._shared
        return access.spread(memory.load(access))

    def store(
        self,
        space: str,
        address: Array,
        data: Array,
        *,
        where: Array | None = None,
        kind: str = "st",
    ) -> None:
        if self._plain is not None and self._plain.store(
            space, address, data, where, self.group, self.pc
        ):
            return
        size = data.shape[-1]
        access = self.access(address, size, where, kind)
        if not access.address.size:
            return
        self._count(space, access, kind)
        memory = self._global if space == "global" else self._shared
        memory.store(access, access.squeeze(np.broadcast_to(data, (*access.shape, size))))

    def atomic(
        self,
        space: str,
        address: Array,
        dtype: DType,
        update: Callable[[Array, Array, Array], Array],
        *,
        where: Array | None = None,
    ) -> Array:
        access = self.access(address, dtype.bytes, where, "atomic")
        old = np.zeros(access.shape, dtype.numpy)
        if not access.address.size:
            return old
        self._count(space, access, "atomic")
        memory = self._global if space == "global" else self._shared
        warp = np.searchsorted(self.group.index, access.row)

        def for_threads(at: Array, now: Array) -> Array:
            return update(now, warp[at], access.lane[at])

        return access.spread(memory.atomic(access, dtype.numpy, for_threads)[:, None])[..., 0]

    def shared_address(self, alloc: SharedAlloc) -> Array:
        own = np.full((1, 1), SHARED_BASE + alloc.offset, np.uint32)
        if self.batch.blocks_per_cluster == 1:
            return own
        return np.asarray(in_block(own, self.special("cluster_ctarank")), np.uint32)

    # -- asynchronous copies (cp.async) -----------------------------------------------------
    def async_copy(
        self, destination: Array, source: Array, size: int, source_bytes: Array | None
    ) -> None:
        if self._copied_plainly(destination, source, size, source_bytes):
            return
        to = self.access(destination, size, None, "cp.async")
        if not to.address.size:
            return
        self._count("shared", to, "cp.async")
        data = np.zeros((*to.shape, size), np.uint8)
        limits = None if source_bytes is None else np.broadcast_to(source_bytes, to.shape)
        amounts = [size] if limits is None else np.unique(limits[self.active]).tolist()
        for amount in amounts:
            if amount > 0:
                where = None if limits is None or len(amounts) == 1 else limits == amount
                data[..., :amount] += self.load(
                    "global", source, min(amount, size), where=where, kind="cp.async"
                )
        self._shared.store(to, to.squeeze(data), Flight(self._copies.group_of(to)))

    def _copied_plainly(
        self, destination: Array, source: Array, size: int, source_bytes: Array | None
    ) -> bool:
        """Copy whole pieces the short way; False where that cannot be."""
        plain, group, pc = self._plain, self.group, self.pc
        if plain is None or not (source_bytes is None or (source_bytes == size).all()):
            return False
        data = plain.load("global", source, size, None, group, pc)
        return data is not None and plain.store("shared", destination, data, None, group, pc)

    def async_commit(self) -> None:
        if self._shared.shadow:
            self._copies.commit(self.group)

    def async_wait(self, pending: int) -> None:
        if not self._shared.shadow:
            return
        self._copies.wait(self.group, pending)
        self._shared.finish_copies(self._copies.finished)

    # -- clusters ------------------------------------------------------------------------------
    def cluster_address(self, address: Array, rank: Array) -> Array:
        bad = rank >= self.batch.blocks_per_cluster
        if bad.any():
            size = self.batch.blocks_per_cluster
            text = f"asks for shared memory of a block beyond the {size} of its cluster"
            self.hazard("oob", text, where=bad)
        return np.asarray(in_block(address, rank), np.uint32)
