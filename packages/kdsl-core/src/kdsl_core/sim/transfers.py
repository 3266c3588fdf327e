"""What copies of the TMA unit ask of the rest of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kdsl_core.dtypes import DType
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.groups import Group


class Transfers(Protocol):
    """What copies ask of memory and of mbarriers, in the name of the threads of an access.

    Shared addresses may be those of a whole cluster. Reads and writes are those of an asynchronous
    unit: they go on until the mbarrier's phase or the thread's open bulk group has been waited for.
    """

    def fetch(self, access: Access) -> Array:
        """Read bytes (L, size) of global memory."""

    def receive(self, access: Access, data: Array, barrier: Array) -> None:
        """Write bytes (L, size) to shared memory until the phase of `barrier` (L,) completes."""

    def complete(self, access: Access, size: Array) -> None:
        """Complete `size` bytes (L,) at mbarriers, whose addresses are the access."""

    def send(self, access: Access) -> Array:
        """Read bytes (L, size) of shared memory, for the open bulk group."""

    def keep(self, access: Access) -> None:
        """Keep shared memory (L,) from changing until the open bulk group has read."""

    def send_until(self, access: Access, barrier: Array) -> Array:
        """Read bytes (L, size) of shared memory until the phase of `barrier` (L,) completes."""

    def put(self, access: Access, data: Array) -> None:
        """Write bytes (L, size) to global memory, for the open bulk group."""

    def combine(
        self, access: Access, dtype: DType, update: Callable[[Array, Array], Array]
    ) -> None:
        """Update elements of global memory one by one, for the open bulk group.

        `update(at, old)` gives the new values at positions `at` of the access.
        """

    def expect(self, access: Access) -> None:
        """Report addresses (L,) that global memory does not have."""


class Here(Protocol):
    """Who executes, and where."""

    group: Group
    pc: int
