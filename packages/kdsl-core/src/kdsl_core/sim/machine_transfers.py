"""The machine's bulk copies and TMA: what they ask of memory and of mbarriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.machine_mbarriers import MbarrierPart
from kdsl_core.sim.plain_copies import PlainCopies
from kdsl_core.sim.shadow import Flight
from kdsl_core.sim.tensor_copies import TensorCopies


class TransferPart(MbarrierPart):
    """Implements `transfers.Transfers`, and counts each thread's groups of bulk copies.

    With `delays`, transfers do not complete when they are started; `late` are those that wait for
    the scheduler to complete them.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._bulk_committed = np.zeros((self.batch.rows, LANES), np.int64)
        self._bulk_read = np.zeros((self.batch.rows, LANES), np.int64)
        self._bulk_done = np.zeros((self.batch.rows, LANES), np.int64)
        self.delays = False
        self.late: list[tuple[Access, Array]] = []
        unit = TensorCopies if self._plain is None else partial(PlainCopies, self._plain)
        copies = unit(self, self._maps, self, self.reporter, self._counters)
        self.tensor_load = copies.tensor_load
        self.tensor_store = copies.tensor_store
        self.tensor_prefetch = copies.tensor_prefetch
        self.bulk_load = copies.bulk_load
        self.bulk_store = copies.bulk_store
        self.bulk_send = copies.bulk_send

    def bulk_commit(self) -> None:
        self._bulk_committed[self.group.rows] += self.group.lanes()

    def bulk_wait(self, pending: int, *, read: bool) -> None:
        self._finish_bulk(self._bulk_read, pending)
        self._shared.finish_bulk_reads(self._bulk_read)
        if not read:
            self._finish_bulk(self._bulk_done, pending)
            self._global.finish_stores(self._bulk_done)

    def _finish_bulk(self, finished: Array, pending: int) -> None:
        rows = self.group.rows
        done = np.maximum(self._bulk_committed[rows] - pending, finished[rows])
        finished[rows] = np.where(self.group.lanes(), done, finished[rows])

    # -- what copies ask for -------------------------------------------------------------------
    def fetch(self, access: Access) -> Array:
        return self._global.load(access, asynchronous=True)

    def receive(self, access: Access, data: Array, barrier: Array) -> None:
        if self._shared.unwatched:
            self._shared.put(access, data)
            return
        offset, good = self._shared.offsets(replace(access, address=barrier, size=8))
        number = self.mbarriers.at(offset if good is None else np.where(good, offset, 0))
        flight = Flight(np.zeros(barrier.size, np.int64), number)
        self._shared.store(access, data, flight)

    def complete(self, access: Access, size: Array) -> None:
        if self.delays:
            self.late.append((access, size))
        else:
            self._released(self.barrier_use.complete_bytes(access, size))

    def complete_late(self, at: int) -> None:
        """A transfer that was delayed completes now."""
        self._released(self.barrier_use.complete_bytes(*self.late.pop(at)))

    def send(self, access: Access) -> Array:
        data = self._shared.fetch(access)
        self._shared.start_read(access, self._bulk_group(access), matrix=False)
        return data

    def keep(self, access: Access) -> None:
        self._shared.keep(access, self._bulk_group(access))

    def send_until(self, access: Access, barrier: Array) -> Array:
        return self._shared.load(access)

    def put(self, access: Access, data: Array) -> None:
        self._global.store(access, data, self._bulk_group(access))

    def combine(
        self, access: Access, dtype: DType, update: Callable[[Array, Array], Array]
    ) -> None:
        self._global.atomic(access, dtype.numpy, update, self._bulk_group(access))

    def expect(self, access: Access) -> None:
        self._global.expect(access)

    def _bulk_group(self, access: Access) -> Array:
        return self._bulk_committed[access.row, access.lane]
