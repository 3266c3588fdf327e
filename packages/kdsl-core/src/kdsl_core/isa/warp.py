"""Exchange between the lanes of a warp: shuffles, votes, matches, elections, integer sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType, boolean, i32, u32
from kdsl_core.ir import (
    Array,
    Builder,
    Const,
    Effect,
    Machine,
    Need,
    Op,
    Operand,
    PtxWriter,
    Value,
)
from kdsl_core.isa.operands import expect_choice, expect_condition, expect_type, in_register, lanes
from kdsl_core.records import dataclass

FULL_MASK = Const(u32, 0xFFFFFFFF)
SHUFFLES = ("idx", "up", "down", "bfly")
WIDTHS = (32, 16, 8, 4, 2, 1)
_LANE = np.arange(32, dtype=np.int64)


def members(m: Machine, mask: Operand) -> Array:
    """Lanes that each lane's mask names: bool (W, 32, 32), the last axis being the lane named."""
    bits = lanes(m, mask)[..., None] >> _LANE.astype(np.uint32)
    return (bits & np.uint32(1)).astype(bool)


def require_members(m: Machine, mask: Operand) -> Array:
    """`members`, after a hazard is reported for lanes that a mask names but that are not here."""
    named = members(m, mask)
    absent = named & ~np.broadcast_to(m.active, (m.warps, 32))[:, None, :]
    if absent.any():
        m.require_lanes(absent.argmax(-1), where=absent.any(-1))
    return named


@dataclass(frozen=True, kw_only=True, eq=False)
class _LanesOp(Op):
    """An operation among the lanes that `mask` names; every one of them executes it."""

    dst: Value
    mask: Operand = FULL_MASK

    WRITES = ("dst",)

    @property
    def effects(self) -> Effect:
        return Effect.LANES

    def expect_result(self, dtype: DType) -> None:
        """Check the type of the mask and of the result."""
        expect_type(self, "the mask", self.mask, (u32,))
        expect_type(self, "the result", self.dst, (dtype,))


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffleOp(_LanesOp):
    """Read `x` of another lane of the same `width` neighbours; out of range gives the lane's own.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `shfl.sync`.
    """

    mode: str
    x: Operand
    lane: Operand
    width: int = 32

    NAME = "warp.shuffle"
    READS = ("x", "lane", "mask")

    def verify(self) -> None:
        expect_choice(self, "the mode", self.mode, SHUFFLES)
        expect_choice(self, "the width", self.width, WIDTHS)
        expect_type(self, "the lane", self.lane, (u32, i32))
        self.expect_result(self.x.dtype)

    def ptx(self, w: PtxWriter) -> None:
        clamp = (32 - self.width) << 8 | (0 if self.mode == "up" else 31)
        tail = f"{w.reg(self.lane)}, {clamp}, {w.reg(self.mask)}"

        def exchange(register: str) -> str:
            result = w.temp("b32")
            w.emit(f"shfl.sync.{self.mode}.b32 {result}, {register}, {tail}")
            return result

        _by_words(w, self.dst, self.x, exchange)

    def simulate(self, m: Machine) -> None:
        source = self.source_lane(lanes(m, self.lane).astype(np.int64) & 31)
        m.require_lanes(source)
        m.write(self.dst, np.take_along_axis(lanes(m, self.x), source, axis=-1))

    def source_lane(self, b: Array) -> Array:
        """The lane that each lane reads, (W, 32)."""
        segment = 32 - self.width
        first, last = _LANE & segment, (_LANE & segment) | (31 & ~segment)
        if self.mode == "up":
            source, inside = _LANE - b, _LANE - b >= first
        elif self.mode == "down":
            source, inside = _LANE + b, _LANE + b <= last
        elif self.mode == "bfly":
            source, inside = _LANE ^ b, (_LANE ^ b) <= last
        else:
            source = first | (b & ~segment)
            inside = source <= last
        return np.where(inside, source, _LANE)


def _by_words(w: PtxWriter, dst: Value, x: Operand, each: Callable[[str], str]) -> None:
    """Apply a 32-bit instruction to each 32-bit word of `x`, widened or split as it needs."""
    kind = x.dtype.reg
    source = in_register(w, x, kind)
    if kind in ("b32", "f32"):
        w.emit(f"mov.b32 {w.reg(dst)}, {each(source)}")
    elif kind == "pred":
        word = w.temp("b32")
        w.emit(f"selp.b32 {word}, 1, 0, {source}")
        w.emit(f"setp.ne.u32 {w.reg(dst)}, {each(word)}, 0")
    elif kind == "b16":
        word = w.temp("b32")
        w.emit(f"cvt.u32.u16 {word}, {source}")
        w.emit(f"cvt.u16.u32 {w.reg(dst)}, {each(word)}")
    else:
        low, high = w.temp("b32"), w.temp("b32")
        w.emit(f"mov.b64 {{{low}, {high}}}, {source}")
        w.emit(f"mov.b64 {w.reg(dst)}, {{{each(low)}, {each(high)}}}")


@dataclass(frozen=True, kw_only=True, eq=False)
class VoteOp(_LanesOp):
    """Whether `condition` holds in all, or any, of the lanes that `mask` names.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `vote.sync`.
    """

    mode: str
    condition: Operand

    NAME = "warp.vote"
    READS = ("condition", "mask")

    def verify(self) -> None:
        expect_choice(self, "the mode", self.mode, ("all", "any"))
        expect_condition(self, self.condition)
        self.expect_result(boolean)

    def ptx(self, w: PtxWriter) -> None:
        operands = f"{w.reg(self.dst)}, {w.reg(self.condition)}, {w.reg(self.mask)}"
        w.emit(f"vote.sync.{self.mode}.pred {operands}")

    def simulate(self, m: Machine) -> None:
        named = require_members(m, self.mask)
        held = lanes(m, self.condition)[:, None, :]
        if self.mode == "all":
            m.write(self.dst, np.asarray((held | ~named).all(-1)))
        else:
            m.write(self.dst, np.asarray((held & named).any(-1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class BallotOp(_LanesOp):
    """The lanes that `mask` names and in which `condition` holds, as 32 bits.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `vote.sync.ballot`.
    """

    condition: Operand

    NAME = "warp.ballot"
    READS = ("condition", "mask")

    def verify(self) -> None:
        expect_condition(self, self.condition)
        self.expect_result(u32)

    def ptx(self, w: PtxWriter) -> None:
        operands = f"{w.reg(self.dst)}, {w.reg(self.condition)}, {w.reg(self.mask)}"
        w.emit(f"vote.sync.ballot.b32 {operands}")

    def simulate(self, m: Machine) -> None:
        named = require_members(m, self.mask)
        m.write(self.dst, as_mask(named & lanes(m, self.condition)[:, None, :]))


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchOp(_LanesOp):
    """The lanes that `mask` names and whose `x` has the same bits, as 32 bits.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `match.any.sync`.
    """

    x: Operand

    NAME = "warp.match"
    READS = ("x", "mask")

    def verify(self) -> None:
        expect_choice(self, "the number of bits", self.x.dtype.bits, (32, 64))
        self.expect_result(u32)

    def ptx(self, w: PtxWriter) -> None:
        bits = self.x.dtype.bits
        x = in_register(w, self.x, self.x.dtype.reg)
        w.emit(f"match.any.sync.b{bits} {w.reg(self.dst)}, {x}, {w.reg(self.mask)}")

    def simulate(self, m: Machine) -> None:
        named = require_members(m, self.mask)
        bits = np.ascontiguousarray(lanes(m, self.x)).view(f"u{self.x.dtype.bytes}")
        m.write(self.dst, as_mask(named & (bits[:, :, None] == bits[:, None, :])))


@dataclass(frozen=True, kw_only=True, eq=False)
class ElectOp(_LanesOp):
    """True in one of the lanes that `mask` names.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `elect.sync`.
    """

    NAME = "warp.elect"
    READS = ("mask",)

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(8, 0))

    def verify(self) -> None:
        self.expect_result(boolean)

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"elect.sync _|{w.reg(self.dst)}, {w.reg(self.mask)}")

    def simulate(self, m: Machine) -> None:
        named = require_members(m, self.mask)
        m.write(self.dst, np.equal(named.argmax(-1), _LANE))


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReduceSyncOp(_LanesOp):
    """`x` combined over the lanes that `mask` names; each gets the result.

    Threads: every lane that `mask` names executes it.
    Source: PTX ISA 9.0 `redux.sync`.
    """

    op: str
    x: Operand

    NAME = "warp.reduce"
    READS = ("x", "mask")

    def verify(self) -> None:
        expect_choice(self, "the reduction", self.op, tuple(_REDUCTIONS))
        expect_type(self, "x", self.x, (u32, i32))
        self.expect_result(self.x.dtype)

    def ptx(self, w: PtxWriter) -> None:
        kind = self.x.dtype.ptx if self.op in ("add", "min", "max") else "b32"
        x = in_register(w, self.x, "b32")
        w.emit(f"redux.sync.{self.op}.{kind} {w.reg(self.dst)}, {x}, {w.reg(self.mask)}")

    def simulate(self, m: Machine) -> None:
        named = require_members(m, self.mask)
        x = np.broadcast_to(lanes(m, self.x)[:, None, :], named.shape)
        combine, neutral = _REDUCTIONS[self.op], _neutral(self.op, self.x.dtype)
        m.write(self.dst, combine.reduce(np.where(named, x, neutral), axis=-1, dtype=x.dtype))


def _neutral(op: str, dtype: DType) -> Any:
    """The value that changes no result of the reduction."""
    limits = np.iinfo(dtype.numpy)
    chosen = {"min": limits.max, "max": limits.min, "and": -1 if limits.min else limits.max}
    return dtype.numpy.type(chosen.get(op, 0))


def as_mask(named: Array) -> Array:
    """Bool (W, 32, 32) as 32-bit masks (W, 32)."""
    bits = named.astype(np.uint32) << _LANE.astype(np.uint32)
    return np.asarray(bits.sum(axis=-1, dtype=np.uint32))


def shuffle(
    b: Builder,
    mode: str,
    x: Operand,
    lane_operand: Operand,
    mask: Operand = FULL_MASK,
    width: int = 32,
) -> Value:
    """`x` of the lane that `mode` and the lane operand name.

    `mode` is "idx", "up", "down", or "bfly" (also "xor").
    """
    mode = "bfly" if mode == "xor" else mode
    dst = b.value(x.dtype)
    b.append(
        ShuffleOp(loc=b.loc(), mode=mode, dst=dst, x=x, lane=lane_operand, mask=mask, width=width)
    )
    return dst


def vote(b: Builder, mode: str, condition: Operand, mask: Operand = FULL_MASK) -> Value:
    """Whether a condition holds in "all" or "any" of the lanes; "ballot" gives them as bits."""
    if mode == "ballot":
        return ballot(b, condition, mask)
    dst = b.value(boolean)
    b.append(VoteOp(loc=b.loc(), mode=mode, dst=dst, condition=condition, mask=mask))
    return dst


def ballot(b: Builder, condition: Operand, mask: Operand = FULL_MASK) -> Value:
    """The lanes in which a condition holds, as bits."""
    dst = b.value(u32)
    b.append(BallotOp(loc=b.loc(), dst=dst, condition=condition, mask=mask))
    return dst


def match(b: Builder, x: Operand, mask: Operand = FULL_MASK) -> Value:
    """The lanes with equal `x`, as bits."""
    dst = b.value(u32)
    b.append(MatchOp(loc=b.loc(), dst=dst, x=x, mask=mask))
    return dst


def elect(b: Builder, mask: Operand = FULL_MASK) -> Value:
    """True in one of the lanes."""
    dst = b.value(boolean)
    b.append(ElectOp(loc=b.loc(), dst=dst, mask=mask))
    return dst


def reduce_sync(b: Builder, op: str, x: Operand, mask: Operand = FULL_MASK) -> Value:
    """A 32-bit integer combined over lanes: add, min, max, and, or, xor."""
    dst = b.value(x.dtype)
    b.append(ReduceSyncOp(loc=b.loc(), op=op, dst=dst, x=x, mask=mask))
    return dst


OPS: tuple[type[Op], ...] = (ShuffleOp, VoteOp, BallotOp, MatchOp, ElectOp, ReduceSyncOp)
