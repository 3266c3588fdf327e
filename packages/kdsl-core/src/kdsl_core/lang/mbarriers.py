"""Mbarriers: what producers and consumers of shared memory wait for each other with."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Operand
from kdsl_core.isa import cluster
from kdsl_core.isa import mbarrier as isa
from kdsl_core.isa.memory import shared_address
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import operand_of
from kdsl_core.lang.tracer import builder, current
from kdsl_core.loc import here
from kdsl_core.records import dataclass


@dataclass(frozen=True, eq=False)
class Mbarrier:
    """An 8-byte barrier in shared memory, `offset` bytes after `address`.

    A phase of it completes when it was arrived at `arrivals` times and all bytes that were expected
    have come. Phases have parities 0, 1, 0, …; waiting for parity 1 of a new one returns at once.
    """

    address: Operand
    offset: int
    arrivals: Any

    def init(self) -> None:
        """Make it a barrier.

        Threads: one; others use it after `fence_mbarrier_init` and `sync_threads` (or, when blocks
        arrive at each other's barriers, `cluster_sync`).
        """
        isa.init(builder(), self.address, _word(self.arrivals), self.offset)

    def invalidate(self) -> None:
        """End it, so that its bytes may hold something else."""
        isa.invalidate(builder(), self.address, self.offset)

    def arrive(
        self, count: Any = 1, *, rank: Any = None, pred: Any = None, relaxed: bool = False
    ) -> None:
        """Arrive `count` times: here, or at the same barrier of the cluster's block `rank`.

        Memory: releases what this thread did before to those who wait; a `relaxed` arrival says
        only that the wgmma that it waited for have read, so that the bytes may be written again.
        """
        number = None if isinstance(count, int) and count == 1 else _word(count)
        self._arrive(rank, pred, relaxed, count=number)

    def arrive_expect(self, size: Any, *, rank: Any = None, pred: Any = None) -> None:
        """Expect `size` bytes of asynchronous copies in this phase, and arrive once."""
        self._arrive(rank, pred, False, expect_bytes=_word(size))

    def _arrive(self, rank: Any, pred: Any, relaxed: bool, **numbers: Operand | None) -> None:
        b, address = builder(), self.address
        if rank is not None:
            address = cluster.map_address(b, address, _word(rank))
        remote, pred = rank is not None, operand_of(pred)
        isa.arrive(b, address, self.offset, remote=remote, pred=pred, relaxed=relaxed, **numbers)

    def expect(self, size: Any, *, pred: Any = None) -> None:
        """Expect `size` more bytes of asynchronous copies in this phase, without arriving."""
        isa.expect(builder(), self.address, _word(size), self.offset, operand_of(pred))

    def wait(self, parity: Any, *, scope: str | None = None) -> None:
        """Wait until the phase of this parity has completed.

        `scope` is where others may have arrived: "cluster" where there is one, which invalidates
        the L1 cache at each wait, unless "cta" says that only this block's threads and copies do.

        Memory: what arrivals released and what TMA copied is then visible.
        """
        isa.wait(builder(), self.address, _word(parity), self.offset, scope)

    def try_wait(self, parity: Any) -> Scalar:
        """Whether the phase of this parity has completed, perhaps after a short sleep."""
        return Scalar(isa.test_wait(builder(), self.address, _word(parity), self.offset))

    def arrive_copies(self) -> None:
        """Arrive once when this thread's `cp.async` copies so far have ended."""
        isa.async_copy_arrive(builder(), self.address, self.offset)


@dataclass(frozen=True, eq=False)
class Mbarriers:
    """A ring of `count` mbarriers, one for each stage of a pipeline."""

    first: Mbarrier
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Mbarrier:
        first = self.first
        if isinstance(index, Scalar):
            moved = (Scalar(first.address) + index.to(u32) * isa.MBARRIER_BYTES).operand
            return Mbarrier(moved, first.offset, first.arrivals)
        if not 0 <= index < self.count:
            raise TypeMismatch(
                f"mbarrier {index} of a ring of {self.count}",
                code="K277",
                loc=here(),
                fix="count stages modulo the number of barriers",
            )
        return Mbarrier(first.address, first.offset + isa.MBARRIER_BYTES * index, first.arrivals)

    def init(self) -> None:
        """Make each a barrier. Threads: one."""
        for index in range(self.count):
            self[index].init()


def mbarrier(arrivals: Any = 1, count: int | None = None, name: str = "mbarrier") -> Any:
    """An mbarrier in shared memory, or with `count` a ring of so many; call `init` before use.

    `arrivals` is how often each phase waits to be arrived at.
    """
    tracer = current()
    size = isa.MBARRIER_BYTES * (1 if count is None else count)
    alloc = tracer.kernel.allocate_shared(name, size, isa.MBARRIER_BYTES, here())
    first = Mbarrier(shared_address(tracer.builder, alloc), 0, arrivals)
    return first if count is None else Mbarriers(first, count)


def fence_mbarrier_init() -> None:
    """Make this thread's new mbarriers visible to the cluster and to TMA; a barrier follows."""
    isa.fence_init(builder())


def _word(number: Any) -> Operand:
    return as_scalar(number, u32).operand
