"""Barriers of a block and of a warp, and memory fences."""

from __future__ import annotations

from kdsl_core.dtypes import i32, u32
from kdsl_core.errors import VerifyError
from kdsl_core.ir import Builder, Const, Effect, Machine, Need, Op, Operand, PtxWriter
from kdsl_core.isa.operands import expect_choice, expect_type, lanes
from kdsl_core.isa.warp import FULL_MASK
from kdsl_core.records import dataclass

BARRIERS = 16  # per block; number 0 is the whole block's
SCOPES = ("cta", "gpu", "sys")
PROXY_SPACES = ("shared::cta", "shared::cluster", "global", "")


def _check_barrier(op: Op, number: Operand, threads: int | None) -> None:
    expect_type(op, "the barrier's number", number, (u32, i32))
    if isinstance(number, Const):
        expect_choice(op, "the barrier's number", number.value, range(BARRIERS))
    if threads is not None and (threads <= 0 or threads % 32):
        raise VerifyError(
            f"{op.name}: the number of threads must be a positive multiple of 32, got {threads}",
            code="K431",
            loc=op.loc,
            fix="let whole warps take part",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _BarrierOp(Op):
    """An operation on one of the block's barriers, by all lanes of a warp together."""

    number: Operand
    threads: int | None = None

    READS = ("number",)
    ARRIVES = ("number",)

    @property
    def effects(self) -> Effect:
        return Effect.SYNC | Effect.CONVERGED

    def verify(self) -> None:
        _check_barrier(self, self.number, self.threads)


@dataclass(frozen=True, kw_only=True, eq=False)
class BarrierSyncOp(_BarrierOp):
    """Wait until `threads` threads (None: the whole block) have arrived at a barrier.

    Threads: all lanes of a warp together.
    Memory: accesses before it are visible to all who took part.
    Source: PTX ISA 9.0 `bar.sync`.
    """

    NAME = "barrier.sync"

    def ptx(self, w: PtxWriter) -> None:
        threads = "" if self.threads is None else f", {self.threads}"
        w.emit(f"bar.sync {w.reg(self.number)}{threads}")

    def simulate(self, m: Machine) -> None:
        m.barrier(self.number, self.threads)


@dataclass(frozen=True, kw_only=True, eq=False)
class BarrierArriveOp(_BarrierOp):
    """Arrive at a barrier of `threads` threads without waiting.

    Threads: all lanes of a warp together.
    Memory: accesses before it are visible to those who wait.
    Source: PTX ISA 9.0 `bar.arrive`.
    """

    threads: int

    NAME = "barrier.arrive"

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"bar.arrive {w.reg(self.number)}, {self.threads}")

    def simulate(self, m: Machine) -> None:
        m.barrier(self.number, self.threads, wait=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class SyncWarpOp(Op):
    """Wait until the lanes that `mask` names are here.

    Memory: accesses before it are visible to these lanes.
    Source: PTX ISA 9.0 `bar.warp.sync`.
    """

    mask: Operand = FULL_MASK

    NAME = "barrier.sync_warp"
    READS = ("mask",)

    @property
    def effects(self) -> Effect:
        return Effect.SYNC | Effect.LANES

    def verify(self) -> None:
        expect_type(self, "the mask", self.mask, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"bar.warp.sync {w.reg(self.mask)}")

    def simulate(self, m: Machine) -> None:
        m.sync_lanes(lanes(m, self.mask))


@dataclass(frozen=True, kw_only=True, eq=False)
class FenceOp(Op):
    """Order this thread's memory accesses before and after it, as seen at a scope.

    Source: PTX ISA 9.0 `fence.acq_rel`.
    """

    scope: str

    NAME = "barrier.fence"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    def verify(self) -> None:
        expect_choice(self, "the scope", self.scope, SCOPES)

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"fence.acq_rel.{self.scope}")

    def simulate(self, m: Machine) -> None:
        m.fence(self.scope)


@dataclass(frozen=True, kw_only=True, eq=False)
class FenceProxyOp(Op):
    """Order this thread's accesses by instructions with those of asynchronous units to a space.

    An empty `space` means all. TMA and wgmma are such units; a copy they finish needs no fence.

    Source: PTX ISA 9.0 `fence.proxy.async`.
    """

    space: str

    NAME = "barrier.fence_proxy"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(8, 0))

    def verify(self) -> None:
        expect_choice(self, "the space", self.space, PROXY_SPACES)

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"fence.proxy.async{self.space and '.'}{self.space}")

    def simulate(self, m: Machine) -> None:
        m.fence_proxy(self.space)


def barrier_sync(b: Builder, number: Operand | int = 0, threads: int | None = None) -> None:
    """Wait at barrier `number` for `threads` threads; None is the whole block."""
    operand = Const(u32, number) if isinstance(number, int) else number
    b.append(BarrierSyncOp(loc=b.loc(), number=operand, threads=threads))


def barrier_arrive(b: Builder, number: Operand | int, threads: int) -> None:
    """Arrive at barrier `number` of `threads` threads and go on."""
    operand = Const(u32, number) if isinstance(number, int) else number
    b.append(BarrierArriveOp(loc=b.loc(), number=operand, threads=threads))


def sync_warp(b: Builder, mask: Operand = FULL_MASK) -> None:
    """Wait for the lanes that `mask` names."""
    b.append(SyncWarpOp(loc=b.loc(), mask=mask))


def fence(b: Builder, scope: str) -> None:
    """Order memory accesses at scope "cta", "gpu" or "sys"."""
    b.append(FenceOp(loc=b.loc(), scope=scope))


def fence_proxy(b: Builder, space: str) -> None:
    """Order accesses to "shared::cta", "shared::cluster", "global" or "" (all) between proxies."""
    b.append(FenceProxyOp(loc=b.loc(), space=space))


OPS: tuple[type[Op], ...] = (BarrierSyncOp, BarrierArriveOp, SyncWarpOp, FenceOp, FenceProxyOp)
