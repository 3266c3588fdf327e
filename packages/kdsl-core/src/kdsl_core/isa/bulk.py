"""Bulk copies: runs of bytes that one thread lets the copy engine move."""

from __future__ import annotations

from kdsl_core.dtypes import DType, bf16, f16, f32, f64, i32, i64, u16, u32, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Effect, Machine, Need, Op, Operand, PtxWriter
from kdsl_core.isa.bulk_groups import HOPPER
from kdsl_core.isa.cache_policy import cache_hint, expect_policy
from kdsl_core.isa.operands import (
    address_text,
    expect_address,
    expect_choice,
    expect_type,
    lane_addresses,
    lanes,
)
from kdsl_core.records import dataclass

BULK_BYTES = 16  # sizes and addresses are multiples of it
# reduction → the types that it has in PTX
REDUCTIONS: dict[str, tuple[DType, ...]] = {
    "add": (u32, i32, u64, f16, bf16, f32, f64),
    "min": (u32, i32, u64, i64, f16, bf16),
    "max": (u32, i32, u64, i64, f16, bf16),
    "inc": (u32,),
    "dec": (u32,),
    "and": (u32, u64),
    "or": (u32, u64),
    "xor": (u32, u64),
}
_BITWISE = ("and", "or", "xor")


@dataclass(frozen=True, kw_only=True, eq=False)
class _BulkOp(Op):
    """A copy of `size` bytes from `source` to `destination`."""

    destination: Operand
    source: Operand
    size: Operand
    destination_offset: int = 0
    source_offset: int = 0

    @property
    def need(self) -> Need:
        return HOPPER

    def expect_run(self, destination: str, source: str) -> None:
        """Check the addresses' spaces and the size."""
        expect_address(self, destination, self.destination)
        expect_address(self, source, self.source)
        expect_type(self, "the size in bytes", self.size, (u32,))
        sizes = [self.size.value] if isinstance(self.size, Const) else []
        for number in (*sizes, self.destination_offset, self.source_offset):
            if int(number) % BULK_BYTES:
                raise TypeMismatch(
                    f"{self.name}: sizes and addresses are multiples of {BULK_BYTES} bytes, got "
                    f"{number}",
                    code="K452",
                    loc=self.loc,
                    fix="pad the data, or copy the rest with ordinary accesses",
                )

    def ends(self, w: PtxWriter) -> str:
        """Destination, source and size as operands."""
        destination = address_text(w, self.destination, self.destination_offset)
        source = address_text(w, self.source, self.source_offset)
        return f"{destination}, {source}, {w.reg(self.size)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class BulkLoadOp(_BulkOp):
    """Copy bytes from global to shared memory in the background, to many blocks by `multicast`.

    Memory: complete at the mbarrier. Source: PTX ISA 9.0 `cp.async.bulk`.
    """

    barrier: Operand
    barrier_offset: int = 0
    multicast: Operand | None = None
    policy: Operand | None = None

    NAME = "bulk.load"
    READS = ("destination", "source", "size", "barrier", "multicast", "policy")
    COMPLETES = ("barrier",)

    @property
    def effects(self) -> Effect:
        return Effect.READS_GLOBAL | Effect.WRITES_SHARED | Effect.SYNC

    def verify(self) -> None:
        self.expect_run("shared", "global")
        expect_address(self, "shared", self.barrier)
        if self.multicast is not None:
            expect_type(self, "the mask of blocks", self.multicast, (u16,))
        expect_policy(self, self.policy)

    def ptx(self, w: PtxWriter) -> None:
        hint, policy = cache_hint(w, self.policy)
        many, mask = "", ""
        if self.multicast is not None:
            many, mask = ".multicast::cluster", f", {w.reg(self.multicast)}"
        barrier = address_text(w, self.barrier, self.barrier_offset)
        kind = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        w.emit(f"{kind}{many}{hint} {self.ends(w)}, {barrier}{mask}{policy}")

    def simulate(self, m: Machine) -> None:
        m.bulk_load(
            lane_addresses(m, self.destination, self.destination_offset),
            lane_addresses(m, self.source, self.source_offset),
            lanes(m, self.size),
            lane_addresses(m, self.barrier, self.barrier_offset),
            multicast=None if self.multicast is None else lanes(m, self.multicast),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BulkStoreOp(_BulkOp):
    """Copy bytes from shared to global memory, or combine elements of a type (`reduce`).

    Memory: belongs to the thread's open bulk group. Source: PTX ISA 9.0 `cp.async.bulk`,
    `cp.reduce.async.bulk`.
    """

    reduce: tuple[str, DType] | None = None
    policy: Operand | None = None

    NAME = "bulk.store"
    READS = ("destination", "source", "size", "policy")

    @property
    def effects(self) -> Effect:
        return Effect.READS_SHARED | Effect.WRITES_GLOBAL

    def verify(self) -> None:
        self.expect_run("global", "shared")
        expect_policy(self, self.policy)
        if self.reduce is not None:
            expect_choice(self, "the reduction", self.reduce[0], REDUCTIONS)
            expect_choice(self, "its type", self.reduce[1], REDUCTIONS[self.reduce[0]])

    def ptx(self, w: PtxWriter) -> None:
        hint, policy = cache_hint(w, self.policy)
        start, how = "cp", ""
        if self.reduce is not None:
            start, how = "cp.reduce", _reduction(*self.reduce)
        kind = f"{start}.async.bulk.global.shared::cta.bulk_group{hint}{how}"
        w.emit(f"{kind} {self.ends(w)}{policy}")

    def simulate(self, m: Machine) -> None:
        destination = lane_addresses(m, self.destination, self.destination_offset)
        source = lane_addresses(m, self.source, self.source_offset)
        m.bulk_store(destination, source, lanes(m, self.size), reduce=self.reduce)


def _reduction(name: str, dtype: DType) -> str:
    """The qualifiers of a reduction; 16-bit floats add without flushing subnormals."""
    exact = ".noftz" if name == "add" and dtype in (f16, bf16) else ""
    kind = f"b{dtype.bits}" if name in _BITWISE else dtype.ptx
    return f".{name}{exact}.{kind}"


@dataclass(frozen=True, kw_only=True, eq=False)
class BulkSendOp(_BulkOp):
    """Copy bytes to shared memory of a block of the cluster, whose mbarrier counts them.

    Memory: complete at that mbarrier. Source: PTX ISA 9.0 `cp.async.bulk`.
    """

    barrier: Operand
    barrier_offset: int = 0

    NAME = "bulk.send"
    READS = ("destination", "source", "size", "barrier")
    COMPLETES = ("barrier",)

    @property
    def effects(self) -> Effect:
        return Effect.READS_SHARED | Effect.WRITES_SHARED | Effect.SYNC

    def verify(self) -> None:
        self.expect_run("cluster", "shared")
        expect_address(self, "cluster", self.barrier)

    def ptx(self, w: PtxWriter) -> None:
        barrier = address_text(w, self.barrier, self.barrier_offset)
        kind = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        w.emit(f"{kind} {self.ends(w)}, {barrier}")

    def simulate(self, m: Machine) -> None:
        m.bulk_send(
            lane_addresses(m, self.destination, self.destination_offset),
            lane_addresses(m, self.source, self.source_offset),
            lanes(m, self.size),
            lane_addresses(m, self.barrier, self.barrier_offset),
        )


# -- builders -------------------------------------------------------------------------------------
def bulk_load(
    b: Builder,
    destination: Operand,
    source: Operand,
    size: Operand,
    barrier: Operand,
    *,
    destination_offset: int = 0,
    source_offset: int = 0,
    barrier_offset: int = 0,
    multicast: Operand | None = None,
    policy: Operand | None = None,
) -> None:
    """Start copying bytes from global to shared memory; they complete at the mbarrier."""
    b.append(
        BulkLoadOp(
            loc=b.loc(), destination=destination, source=source, size=size, barrier=barrier,
            destination_offset=destination_offset, source_offset=source_offset,
            barrier_offset=barrier_offset, multicast=multicast, policy=policy,
        )
    )  # fmt: skip


def bulk_store(
    b: Builder,
    destination: Operand,
    source: Operand,
    size: Operand,
    *,
    destination_offset: int = 0,
    source_offset: int = 0,
    reduce: tuple[str, DType] | None = None,
    policy: Operand | None = None,
) -> None:
    """Start copying bytes from shared to global memory, in the thread's open bulk group."""
    b.append(
        BulkStoreOp(
            loc=b.loc(), destination=destination, source=source, size=size,
            destination_offset=destination_offset, source_offset=source_offset, reduce=reduce,
            policy=policy,
        )
    )  # fmt: skip


def bulk_send(
    b: Builder,
    destination: Operand,
    source: Operand,
    size: Operand,
    barrier: Operand,
    *,
    destination_offset: int = 0,
    source_offset: int = 0,
    barrier_offset: int = 0,
) -> None:
    """Start copying bytes to shared memory of a block of the cluster."""
    b.append(
        BulkSendOp(
            loc=b.loc(), destination=destination, source=source, size=size, barrier=barrier,
            destination_offset=destination_offset, source_offset=source_offset,
            barrier_offset=barrier_offset,
        )
    )  # fmt: skip


OPS: tuple[type[Op], ...] = (BulkLoadOp, BulkStoreOp, BulkSendOp)
