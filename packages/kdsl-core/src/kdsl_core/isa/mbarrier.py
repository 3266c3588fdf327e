"""Mbarriers: barriers in shared memory that also count the bytes of asynchronous copies.

A phase completes when all arrivals it waits for have come and as many bytes as were expected; the
next phase then begins. Waiting names a phase by its parity: 0 for the first, 1 for the second, …
"""

from __future__ import annotations

import math
from typing import ClassVar

from kdsl_core.dtypes import boolean, u32
from kdsl_core.errors import VerifyError
from kdsl_core.ir import Array, Builder, Const, Effect, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.isa.memory import unless_true
from kdsl_core.isa.operands import (
    address_text,
    condition_lanes,
    expect_address,
    expect_choice,
    expect_condition,
    expect_count,
    expect_type,
    guard,
    lane_addresses,
    lanes,
)
from kdsl_core.records import dataclass

MOST = (1 << 20) - 1  # arrivals, and bytes, that a phase can wait for
MBARRIER_BYTES = 8
SCOPES = ("cta", "cluster")
_HOPPER = Need(sm=90, ptx=(8, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class _MbarrierOp(Op):
    """An operation on the mbarrier `offset` bytes after a shared address."""

    address: Operand
    offset: int = 0

    READS: ClassVar[tuple[str, ...]] = ("address",)

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return _HOPPER

    def verify(self) -> None:
        expect_address(self, "shared", self.address)
        if self.offset % MBARRIER_BYTES:
            raise VerifyError(
                f"{self.name}: an mbarrier lies at a multiple of {MBARRIER_BYTES} bytes, "
                f"got the offset {self.offset}",
                code="K432",
                loc=self.loc,
                fix="let kd.mbarrier place it",
            )

    def expect_number(self, what: str, operand: Operand, allowed: range) -> None:
        """Check the type of a number and, where it is constant, its size."""
        expect_type(self, what, operand, (u32,))
        if isinstance(operand, Const):
            expect_count(self, what, int(operand.value), allowed)

    def place(self, w: PtxWriter) -> str:
        """The mbarrier in brackets."""
        return address_text(w, self.address, self.offset)

    def places(self, m: Machine) -> Array:
        """The mbarrier's address in each lane."""
        return lane_addresses(m, self.address, self.offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierInitOp(_MbarrierOp):
    """Make an mbarrier whose phases wait for `count` arrivals.

    Memory: others may use it after `fence_init` and a barrier.
    Source: PTX ISA 9.0 `mbarrier.init`.
    """

    count: Operand

    NAME = "mbarrier.init"
    READS = ("address", "count")

    def verify(self) -> None:
        super().verify()
        self.expect_number("the number of arrivals", self.count, range(1, MOST + 1))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"mbarrier.init.shared::cta.b64 {self.place(w)}, {w.reg(self.count)}")

    def simulate(self, m: Machine) -> None:
        m.mbarrier_init(self.places(m), lanes(m, self.count))


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierInvalidateOp(_MbarrierOp):
    """End an mbarrier, so that its bytes may hold something else.

    Source: PTX ISA 9.0 `mbarrier.inval`.
    """

    NAME = "mbarrier.invalidate"

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"mbarrier.inval.shared::cta.b64 {self.place(w)}")

    def simulate(self, m: Machine) -> None:
        m.mbarrier_invalidate(self.places(m))


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierArriveOp(_MbarrierOp):
    """Arrive once or `count` times, or expect bytes in this phase and then arrive once.

    `remote` says that the address is one of any block of the cluster.

    Memory: releases what the thread did before, to the block, or to the cluster when `remote`;
    `relaxed` releases nothing, which is enough for "the wgmma that I waited for has read" and much
    faster remotely.
    Source: PTX ISA 9.0 `mbarrier.arrive`, `mbarrier.arrive.expect_tx`.
    """

    count: Operand | None = None
    expect_bytes: Operand | None = None
    remote: bool = False
    relaxed: bool = False
    pred: Operand | None = None

    NAME = "mbarrier.arrive"
    READS = ("address", "count", "expect_bytes", "pred")
    ARRIVES = ("address",)

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(8, 6)) if self.relaxed else super().need

    def verify(self) -> None:
        super().verify()
        if self.count is not None:
            self.expect_number("the number of arrivals", self.count, range(1, MOST + 1))
        if self.expect_bytes is not None:
            self.expect_number("the number of bytes", self.expect_bytes, range(MOST + 1))
        if self.pred is not None:
            expect_condition(self, self.pred)
        if self.count is not None and self.expect_bytes is not None:
            raise VerifyError(
                f"{self.name}: one instruction takes a number of arrivals or of bytes, got both",
                code="K434",
                loc=self.loc,
                fix="expect the bytes first, then arrive",
            )

    def ptx(self, w: PtxWriter) -> None:
        number = self.count if self.expect_bytes is None else self.expect_bytes
        expect = "" if self.expect_bytes is None else ".expect_tx"
        where = ".shared::cta"
        if self.remote or self.relaxed:
            order, space = (
                "relaxed" if self.relaxed else "release",
                "cluster" if self.remote else "cta",
            )
            where = f".{order}.cluster.shared::{space}"
        tail = "" if number is None else f", {w.reg(number)}"
        kind = f"{guard(w, self.pred)}mbarrier.arrive{expect}{where}.b64"
        w.emit(f"{kind} _, {self.place(w)}{tail}")

    def simulate(self, m: Machine) -> None:
        m.mbarrier_arrive(
            self.places(m),
            lanes(m, Const(u32, 1) if self.count is None else self.count),
            expect_bytes=None if self.expect_bytes is None else lanes(m, self.expect_bytes),
            where=condition_lanes(m, self.pred),
            cluster=self.remote,
            relaxed=self.relaxed,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierExpectOp(_MbarrierOp):
    """Expect `size` more bytes in this phase, without arriving.

    Source: PTX ISA 9.0 `mbarrier.expect_tx`.
    """

    size: Operand
    pred: Operand | None = None

    NAME = "mbarrier.expect"
    READS = ("address", "size", "pred")

    def verify(self) -> None:
        super().verify()
        self.expect_number("the number of bytes", self.size, range(MOST + 1))
        if self.pred is not None:
            expect_condition(self, self.pred)

    def ptx(self, w: PtxWriter) -> None:
        kind = f"{guard(w, self.pred)}mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
        w.emit(f"{kind} {self.place(w)}, {w.reg(self.size)}")

    def simulate(self, m: Machine) -> None:
        where = condition_lanes(m, self.pred)
        m.mbarrier_expect(self.places(m), lanes(m, self.size), where=where)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PhaseOp(_MbarrierOp):
    """An operation that acquires at `scope` when the phase of a parity has completed."""

    parity: Operand
    scope: str = "cta"

    READS = ("address", "parity")

    def verify(self) -> None:
        super().verify()
        self.expect_number("the parity", self.parity, range(2))
        expect_choice(self, "the scope", self.scope, SCOPES)

    def test(self, w: PtxWriter, done: str, kind: str) -> None:
        """Print the instruction that sets a predicate where the phase has completed."""
        form = f"mbarrier.{kind}.parity.acquire.{self.scope}.shared::cta.b64"
        w.emit(f"{form} {done}, {self.place(w)}, {w.reg(self.parity)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierTestOp(_PhaseOp):
    """Whether the phase of a parity has completed; `suspend` lets the thread sleep for a while.

    Memory: where it has, what was released by arrivals and copied by TMA is visible.
    Source: PTX ISA 9.0 `mbarrier.try_wait`, `mbarrier.test_wait`.
    """

    dst: Value
    suspend: bool = True

    NAME = "mbarrier.test"
    WRITES = ("dst",)

    def verify(self) -> None:
        super().verify()
        expect_type(self, "the result", self.dst, (boolean,))

    def ptx(self, w: PtxWriter) -> None:
        self.test(w, w.reg(self.dst), "try_wait" if self.suspend else "test_wait")

    def simulate(self, m: Machine) -> None:
        m.write(self.dst, m.mbarrier_test(self.places(m), lanes(m, self.parity), scope=self.scope))


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierWaitOp(_PhaseOp):
    """Wait until the phase of a parity has completed.

    Memory: what was released by arrivals and copied by TMA is then visible.
    Source: PTX ISA 9.0 `mbarrier.try_wait`.
    """

    NAME = "mbarrier.wait"

    def ptx(self, w: PtxWriter) -> None:
        again, done = w.label("wait"), w.temp("pred")
        w.place_label(again)
        self.test(w, done, "try_wait")
        w.emit(f"@!{done} bra {again}")

    def simulate(self, m: Machine) -> None:
        m.mbarrier_wait(self.places(m), lanes(m, self.parity), scope=self.scope)


@dataclass(frozen=True, kw_only=True, eq=False)
class MbarrierFenceOp(Op):
    """Make this thread's new mbarriers visible to the cluster and to asynchronous copies.

    Source: PTX ISA 9.0 `fence.mbarrier_init`.
    """

    NAME = "mbarrier.fence_init"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return _HOPPER

    def ptx(self, w: PtxWriter) -> None:
        w.emit("fence.mbarrier_init.release.cluster")

    def simulate(self, m: Machine) -> None:
        m.fence_mbarrier_init()


@dataclass(frozen=True, kw_only=True, eq=False)
class AsyncCopyArriveOp(_MbarrierOp):
    """Arrive when all `cp.async` copies of this thread so far have ended.

    `counted` says that the barrier's count includes this arrival.

    Source: PTX ISA 9.0 `cp.async.mbarrier.arrive`.
    """

    counted: bool = True

    NAME = "mbarrier.async_copy_arrive"
    ARRIVES = ("address",)

    def ptx(self, w: PtxWriter) -> None:
        counted = ".noinc" if self.counted else ""
        w.emit(f"cp.async.mbarrier.arrive{counted}.shared::cta.b64 {self.place(w)}")

    def simulate(self, m: Machine) -> None:
        m.async_copy_arrive(self.places(m), counted=self.counted)


def init(b: Builder, address: Operand, count: Operand, offset: int = 0) -> None:
    """Make an mbarrier that waits for `count` arrivals."""
    b.append(MbarrierInitOp(loc=b.loc(), address=address, count=count, offset=offset))


def invalidate(b: Builder, address: Operand, offset: int = 0) -> None:
    """End an mbarrier."""
    b.append(MbarrierInvalidateOp(loc=b.loc(), address=address, offset=offset))


def arrive(
    b: Builder,
    address: Operand,
    offset: int = 0,
    count: Operand | None = None,
    expect_bytes: Operand | None = None,
    remote: bool = False,
    pred: Operand | None = None,
    relaxed: bool = False,
) -> None:
    """Arrive `count` times (None: once), or expect bytes and arrive once."""
    b.append(
        MbarrierArriveOp(
            loc=b.loc(),
            address=address,
            offset=offset,
            count=count,
            expect_bytes=expect_bytes,
            remote=remote,
            relaxed=relaxed,
            pred=unless_true(pred),
        )
    )


def expect(
    b: Builder, address: Operand, size: Operand, offset: int = 0, pred: Operand | None = None
) -> None:
    """Expect `size` more bytes in this phase."""
    pred = unless_true(pred)
    b.append(MbarrierExpectOp(loc=b.loc(), address=address, size=size, offset=offset, pred=pred))


def test_wait(
    b: Builder, address: Operand, parity: Operand, offset: int = 0, suspend: bool = True
) -> Value:
    """Whether the phase of a parity has completed."""
    op = MbarrierTestOp(
        loc=b.loc(),
        dst=b.value(boolean),
        address=address,
        offset=offset,
        parity=parity,
        scope=_scope(b),
        suspend=suspend,
    )
    return b.append(op).dst


def wait(
    b: Builder, address: Operand, parity: Operand, offset: int = 0, scope: str | None = None
) -> None:
    """Wait until the phase of a parity has completed, and acquire at `scope`."""
    scope = scope or _scope(b)
    b.append(
        MbarrierWaitOp(loc=b.loc(), address=address, offset=offset, parity=parity, scope=scope)
    )


def _scope(b: Builder) -> str:
    """Who may have arrived: threads of the whole cluster, where there is one."""
    return "cluster" if math.prod(b.kernel.cluster_dim or ()) > 1 else "cta"


def fence_init(b: Builder) -> None:
    """Make new mbarriers visible to the cluster and to asynchronous copies."""
    b.append(MbarrierFenceOp(loc=b.loc()))


def async_copy_arrive(b: Builder, address: Operand, offset: int = 0, counted: bool = True) -> None:
    """Arrive when this thread's `cp.async` copies so far have ended."""
    b.append(AsyncCopyArriveOp(loc=b.loc(), address=address, offset=offset, counted=counted))


OPS: tuple[type[Op], ...] = (
    MbarrierInitOp,
    MbarrierInvalidateOp,
    MbarrierArriveOp,
    MbarrierExpectOp,
    MbarrierTestOp,
    MbarrierWaitOp,
    MbarrierFenceOp,
    AsyncCopyArriveOp,
)
