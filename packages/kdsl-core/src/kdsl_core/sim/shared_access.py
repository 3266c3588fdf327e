"""Reads and writes of shared memory, also of other blocks of the cluster, with every check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import IN_BLOCK, SHARED_BASE, Batch
from kdsl_core.sim.conflict_words import REFILLS
from kdsl_core.sim.entries import Conflict, entry_thread
from kdsl_core.sim.lifetimes import Lifetimes
from kdsl_core.sim.memory import gather, scatter, update_in_turn
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.shadow import Flight, SharedShadow

WORD = 8  # bytes of an mbarrier


class SharedAccess:
    """Shared memory of a batch: bytes, bounds, alignment and shadow.

    `barriers` says for each eight bytes whether an mbarrier lives there.
    """

    def __init__(self, batch: Batch, reporter: Reporter) -> None:
        self._batch = batch
        self._reporter = reporter
        wants = reporter.findings.wants
        watched = any(wants(code) for code in ("race", "inflight", "uninit", "proxy"))
        size = batch.shared.size
        self.shadow = SharedShadow(size, batch.clocks) if watched and size else None
        self.barriers = np.zeros(size // WORD, bool)
        self.has_barriers = False
        self._guarded = wants("barrier")
        self.unwatched = self.shadow is None and not self._guarded
        lasting = wants("exited") and batch.blocks_per_cluster > 1
        self._lifetimes = Lifetimes(batch, reporter) if lasting else None

    def touch(self, access: Access) -> None:
        """Threads themselves are about to access shared memory, perhaps of other blocks."""
        if self._lifetimes and int(access.address.max()) > IN_BLOCK:
            self._lifetimes.touch(access, self._batch.block_at(access.address, access.row))

    def meet(self, blocks: Array) -> None:
        """Warps of the batch's blocks have waited at their cluster's barrier."""
        if self._lifetimes:
            self._lifetimes.meet(blocks)

    def end(self, blocks: Array) -> None:
        """Threads of the batch's blocks ended."""
        if self._lifetimes:
            self._lifetimes.end(blocks)

    # -- ordinary accesses ---------------------------------------------------------------------
    def load(self, access: Access) -> Array:
        """Bytes (L, size); zeros outside of shared memory."""
        self.touch(access)
        offset, good = self.offsets(access)
        if good is not None:
            found = np.zeros((access.address.size, access.size), np.uint8)
            if good.any():
                found[good] = self.load(access.take(good))
            return found
        self._check_barriers(access, offset, "reads")
        if self.shadow:
            self._report(access, self.shadow.read(access, offset), "reads")
        return gather(self._batch.shared, offset, access.size)

    def store(self, access: Access, data: Array, flight: Flight | None = None) -> None:
        """Write bytes (L, size); dropped outside of shared memory.

        With `flight` the write goes on in the background.
        """
        if flight is None:
            self.touch(access)
        offset, good = self.offsets(access)
        if good is not None:
            if good.any():
                part = None if flight is None else flight.take(good)
                self.store(access.take(good), data[good], part)
            return
        self._check_barriers(access, offset, "writes")
        scatter(self._batch.shared, offset, data)
        if self.shadow is None:
            return
        found, within = self.shadow.write(access, offset, flight)
        self._report(access, found, "writes" if flight is None else REFILLS)
        if within is not None:
            stays = (gather(self._batch.shared, offset, access.size) == data).all(axis=1)
            self._report(access, [self._of_other_value(access, within, stays)], "writes")

    def atomic(
        self, access: Access, dtype: np.dtype[Any], update: Callable[[Array, Array], Array]
    ) -> Array:
        """Read-modify-write one thread after the other; the old values (L,)."""
        self.touch(access)
        offset, good = self.offsets(access)
        old = np.zeros(access.address.size, dtype)
        which = np.arange(old.size) if good is None else np.nonzero(good)[0]
        if not which.size:
            return old
        allowed = access if good is None else access.take(good)
        self._check_barriers(allowed, offset[which], "updates")
        self._batch.clocks.atomic(np.unique(access.row))
        if self.shadow:
            found, _ = self.shadow.write(allowed, offset[which], atomic=True)
            self._report(allowed, found, "updates")
        words, place = self._batch.shared.view(dtype), offset[which] // dtype.itemsize
        old[which] = update_in_turn(words, place, lambda at, now: update(which[at], now))
        return old

    def put(self, access: Access, data: Array) -> None:
        """Write bytes (L, size) that a unit brings, where nobody looks when; others are dropped."""
        offset, good = self.offsets(access)
        if good is None:
            scatter(self._batch.shared, offset, data)
        else:
            scatter(self._batch.shared, offset[good], data[good])

    # -- asynchronous accesses -----------------------------------------------------------------
    def fetch(self, access: Access) -> Array:
        """Bytes (L, size) that a unit reads; zeros outside of shared memory."""
        offset, good = self.offsets(access)
        if good is not None:
            found = np.zeros((access.address.size, access.size), np.uint8)
            if good.any():
                found[good] = self.fetch(access.take(good))
            return found
        self._check_barriers(access, offset, "reads")
        return gather(self._batch.shared, offset, access.size)

    def start_read(self, access: Access, group: Array, *, matrix: bool) -> None:
        """A unit reads until the threads' groups (L,) are done: with `matrix` the tensor core."""
        if self.shadow is None:
            return
        offset, good = self.offsets(access)
        if good is None:
            read = self.shadow.read_matrix if matrix else self.shadow.read_in_bulk
            verb = "starts a wgmma that reads" if matrix else "starts a copy from"
            self._report(access, read(access, offset, group), verb)
        elif good.any():
            self.start_read(access.take(good), group[good], matrix=matrix)

    def keep(self, access: Access, group: Array) -> None:
        """A unit may read, for nothing, until the threads' bulk groups (L,) are done."""
        if self.shadow is None:
            return
        offset, good = self.offsets(access)
        if good is None:
            self.shadow.keep_in_bulk(access, offset, group)
        elif good.any():
            self.keep(access.take(good), group[good])

    def finish_bulk_reads(self, finished: Array) -> None:
        """Reads of bulk groups below `finished` (rows, 32) are done."""
        if self.shadow:
            self.shadow.finish_bulk_reads(finished)

    def finish_copies(self, finished: Array) -> None:
        """`cp.async` of groups below `finished` (rows, 32) have arrived."""
        if self.shadow:
            self.shadow.finish_copies(finished)

    def hand_over(self, barrier_of: Array) -> None:
        """`cp.async` of threads so far complete at mbarriers (rows, 32)."""
        if self.shadow:
            self.shadow.hand_over(barrier_of)

    # -- parts -----------------------------------------------------------------------------
    def offsets(self, access: Access) -> tuple[Array, Array | None]:
        """Offsets into the batch's bytes, and which are allowed (None: all)."""
        batch, block = self._batch, None
        inside = access.address
        if int(inside.max()) > IN_BLOCK:
            block = batch.block_at(inside, access.row)
            inside = inside & IN_BLOCK
        inside = inside - SHARED_BASE
        size, limit = access.size, batch.shared_bytes
        good = None
        if int(inside.min()) < 0 or int(inside.max()) + size > limit:
            bad = (inside < 0) | (inside + size > limit)
            self._reporter.bad_address("oob", access, "shared", bad)
            good = ~bad
        crooked = access.address & (size - 1)
        if crooked.any():
            self._reporter.bad_address("misaligned", access, "shared", crooked != 0)
            good = (crooked == 0) if good is None else good & (crooked == 0)
        if batch.blocks.size == 1:
            return inside, good
        if block is None:
            block = batch.block_of[access.row]
        return inside + block * batch.shared_stride, good

    def _check_barriers(self, access: Access, offset: Array, verb: str) -> None:
        if not (self.has_barriers and self._guarded):
            return
        over = self.barriers[offset // WORD] | self.barriers[(offset + access.size - 1) // WORD]
        if over.any():
            self._reporter.over_barrier(access, over, verb)

    def _report(self, access: Access, conflicts: list[Conflict], verb: str) -> None:
        for conflict in conflicts:
            if conflict.at.size:
                self._reporter.conflict(access, conflict, "shared", verb)

    def _of_other_value(self, access: Access, within: Conflict, stays: Array) -> Conflict:
        """Leave out lanes of one warp that wrote the same value at once: no order can differ."""
        agent = self._batch.clocks.local[access.row[within.at]]
        agents = np.array([entry_thread(entry)[0] for entry in within.entry.tolist()])
        real = (agents != agent) | ~stays[within.at]
        return within.take(real)
