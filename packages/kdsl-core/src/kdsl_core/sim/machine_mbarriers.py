"""The machine's mbarriers."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.copy_pieces import flat
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.machine_memory import MemoryPart
from kdsl_core.sim.machine_order import OrderPart
from kdsl_core.sim.mbarrier_use import MbarrierUse
from kdsl_core.sim.unfinished import NO_BARRIER


class MbarrierPart(OrderPart, MemoryPart):
    """What threads do with mbarriers."""

    @property
    def barrier_use(self) -> MbarrierUse:
        """Arrivals, bytes and their checks, for the current group."""
        return MbarrierUse(self.batch, self._shared, self.mbarriers, self.reporter)

    def mbarrier_init(self, address: Array, count: Array) -> None:
        access = self.access(address, 8, None, "mbarrier")
        if access.address.size:
            self.barrier_use.init(access, access.squeeze(np.broadcast_to(count, access.shape)))

    def mbarrier_invalidate(self, address: Array) -> None:
        access = self.access(address, 8, None, "mbarrier")
        if access.address.size:
            self.barrier_use.invalidate(access)

    def mbarrier_arrive(
        self,
        address: Array,
        count: Array,
        *,
        expect_bytes: Array | None = None,
        where: Array | None = None,
        cluster: bool = False,
        relaxed: bool = False,
    ) -> None:
        access = self.access(address, 8, where, "mbarrier")
        if not access.address.size:
            return
        size = None if expect_bytes is None else flat(access, expect_bytes)
        counts = flat(access, count)
        self._released(self.barrier_use.arrive(access, counts, size, relaxed=relaxed))

    def mbarrier_expect(self, address: Array, size: Array, *, where: Array | None = None) -> None:
        access = self.access(address, 8, where, "mbarrier")
        if access.address.size:
            self._released(self.barrier_use.expect(access, flat(access, size)))

    def mbarrier_test(self, address: Array, parity: Array, *, scope: str = "cluster") -> Array:
        access = self.access(address, 8, None, "mbarrier")
        passed = self.barrier_use.test(access, flat(access, parity), scope)
        return access.spread(passed[:, None])[..., 0]

    def mbarrier_wait(self, address: Array, parity: Array, *, scope: str = "cluster") -> None:
        access = self._waiters(address, parity)
        asked = flat(access, parity[:, : access.shape[1]])
        passed = self.barrier_use.test(access, asked, scope, waits=True)
        held = np.zeros(self.warps, bool)
        held[np.searchsorted(self.group.index, access.row[~passed])] = True
        self.hold("mbarrier", held, again=True)

    def fence_mbarrier_init(self) -> None:
        self.mbarriers.fence(self.group.index)

    def async_copy_arrive(self, address: Array, *, counted: bool) -> None:
        access = self.access(address, 8, None, "mbarrier")
        if access.address.size:
            barrier_of = np.full((self.batch.rows, LANES), NO_BARRIER)
            barrier_of[access.row, access.lane] = self.barrier_use.find(access)
            self._shared.hand_over(barrier_of)
            self._released(self.barrier_use.copies_arrive(access, counted))

    # -- parts ---------------------------------------------------------------------------------
    def _waiters(self, address: Array, parity: Array) -> Access:
        """Who waits: one lane for its warp, where nobody looks and all of its lanes wait alike."""
        group = self.group
        alike = not address.strides[1] and not parity.strides[1]
        if not alike or group.mask is not None or self.reporter.findings.looks:
            return self.access(address, 8, None, "mbarrier")
        first = np.zeros(group.size, np.int64)
        return Access(
            address[:, 0].astype(np.int64), group.index, first, 8, self.pc, (group.size, 1), None
        )

    def _released(self, done: Array) -> None:
        """Phases completed: wake who waits for them."""
        if done.size:
            rows = self.mbarriers.freed(done)
            if rows.size:
                self.freed.append(("mbarrier", rows))
