"""Asynchronous copies from global to shared memory that bypass registers (`cp.async`)."""

from __future__ import annotations

from kdsl_core.dtypes import u32
from kdsl_core.ir import Builder, Effect, Machine, Op, Operand, PtxWriter
from kdsl_core.isa.operands import (
    address_text,
    expect_address,
    expect_choice,
    expect_count,
    expect_type,
    lane_addresses,
    lanes,
)
from kdsl_core.records import dataclass

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}
MOST_PENDING = 64  # a wait for more groups than any kernel keeps in flight is a mistake


@dataclass(frozen=True, kw_only=True, eq=False)
class CpAsyncOp(Op):
    """Copy 4, 8 or 16 bytes per lane in the background.

    `source_bytes` limits what is read; the rest of `size` becomes zeros.

    Memory: complete for this thread after `cp_async_wait`, for the block after a barrier then.
    Source: PTX ISA 9.0 `cp.async`.
    """

    dst: Operand
    src: Operand
    size: int
    dst_offset: int = 0
    src_offset: int = 0
    source_bytes: Operand | None = None
    cache: str = "cg"

    NAME = "async_copy.copy"
    READS = ("dst", "src", "source_bytes")

    @property
    def effects(self) -> Effect:
        return Effect.READS_GLOBAL | Effect.WRITES_SHARED

    def verify(self) -> None:
        expect_address(self, "shared", self.dst)
        expect_address(self, "global", self.src)
        expect_choice(self, "the cache operator", self.cache, tuple(_SIZES))
        expect_count(self, "the size in bytes", self.size, _SIZES[self.cache])
        if self.source_bytes is not None:
            expect_type(self, "source_bytes", self.source_bytes, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        dst = address_text(w, self.dst, self.dst_offset)
        src = address_text(w, self.src, self.src_offset)
        limit = "" if self.source_bytes is None else f", {w.reg(self.source_bytes)}"
        w.emit(f"cp.async.{self.cache}.shared.global {dst}, {src}, {self.size}{limit}")

    def simulate(self, m: Machine) -> None:
        limit = None if self.source_bytes is None else lanes(m, self.source_bytes)
        dst = lane_addresses(m, self.dst, self.dst_offset)
        m.async_copy(dst, lane_addresses(m, self.src, self.src_offset), self.size, limit)


@dataclass(frozen=True, kw_only=True, eq=False)
class CpAsyncCommitOp(Op):
    """Close the thread's current group of copies. Source: PTX ISA 9.0 `cp.async.commit_group`."""

    NAME = "async_copy.commit"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    def ptx(self, w: PtxWriter) -> None:
        w.emit("cp.async.commit_group")

    def simulate(self, m: Machine) -> None:
        m.async_commit()


@dataclass(frozen=True, kw_only=True, eq=False)
class CpAsyncWaitOp(Op):
    """Wait until at most `pending` of the thread's newest groups are unfinished.

    Memory: finished copies are visible to this thread; others need a barrier after it.
    Source: PTX ISA 9.0 `cp.async.wait_group`.
    """

    pending: int

    NAME = "async_copy.wait"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    def verify(self) -> None:
        expect_count(self, "the number of pending groups", self.pending, range(MOST_PENDING))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"cp.async.wait_group {self.pending}")

    def simulate(self, m: Machine) -> None:
        m.async_wait(self.pending)


def cp_async(
    b: Builder,
    dst: Operand,
    src: Operand,
    size: int,
    dst_offset: int = 0,
    src_offset: int = 0,
    source_bytes: Operand | None = None,
    cache: str = "cg",
) -> None:
    """Copy `size` bytes per lane from global `src` to shared `dst` in the background."""
    b.append(
        CpAsyncOp(
            loc=b.loc(),
            dst=dst,
            src=src,
            size=size,
            dst_offset=dst_offset,
            src_offset=src_offset,
            source_bytes=source_bytes,
            cache=cache,
        )
    )


def cp_async_commit(b: Builder) -> None:
    """Close the current group of copies."""
    b.append(CpAsyncCommitOp(loc=b.loc()))


def cp_async_wait(b: Builder, pending: int) -> None:
    """Wait until at most `pending` groups are unfinished."""
    b.append(CpAsyncWaitOp(loc=b.loc(), pending=pending))


OPS: tuple[type[Op], ...] = (CpAsyncOp, CpAsyncCommitOp, CpAsyncWaitOp)
