"""Atomic read-modify-write of global and shared memory, the latter of any block of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType, bf16, f16, f32, f64, i32, i64, u32, u64
from kdsl_core.ir import Array, Builder, Const, Effect, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.isa.evaluate import bits_of
from kdsl_core.isa.operands import (
    SPACES,
    Register,
    address_text,
    condition_lanes,
    expect_address,
    expect_choice,
    expect_condition,
    expect_type,
    guard,
    in_register,
    lane_addresses,
    lanes,
    need_of_space,
)
from kdsl_core.isa.rounding import canonical_nan
from kdsl_core.records import dataclass

_INTEGERS = (u32, i32, u64, i64)
_WORDS = (*_INTEGERS, f32, f64)
# operation → types it exists for
ATOMICS: dict[str, tuple[DType, ...]] = {
    "add": (*_WORDS, f16, bf16),
    "min": _INTEGERS,
    "max": _INTEGERS,
    "and": _INTEGERS,
    "or": _INTEGERS,
    "xor": _INTEGERS,
    "exch": _WORDS,
    "cas": _WORDS,
}
ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("cta", "gpu", "sys")
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda _, value: value,
}
_NOFTZ = (f16, bf16)


@dataclass(frozen=True, kw_only=True, eq=False)
class AtomicOp(Op):
    """Replace what is at an address by its combination with `value`; `dst` gets the old content.

    `dst` None is a reduction. Global f32 addition flushes subnormals, shared does not.

    Memory: atomic at `scope`, `order` among other accesses of this thread.
    Source: PTX ISA 9.0 `atom`, `red`.
    """

    op: str
    space: str
    address: Operand
    value: Operand
    dst: Register | None = None
    compare: Operand | None = None
    offset: int = 0
    pred: Operand | None = None
    order: str = "relaxed"
    scope: str = "gpu"

    NAME = "atomic.update"
    READS = ("address", "value", "compare", "pred")
    WRITES = ("dst",)

    @property
    def effects(self) -> Effect:
        kind = (
            Effect.READS_GLOBAL | Effect.WRITES_GLOBAL
            if self.space == "global"
            else Effect.READS_SHARED | Effect.WRITES_SHARED
        )
        return kind if self.order == "relaxed" else kind | Effect.SYNC

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(7, 8)) if self.value.dtype is bf16 else need_of_space(self.space)

    @property
    def adds_one(self) -> bool:
        """Whether it adds the constant 1 to 32 unsigned bits."""
        return self.op == "add" and isinstance(self.value, Const) and self.value == Const(u32, 1)

    def verify(self) -> None:
        expect_address(self, self.space, self.address)
        expect_choice(self, "the operation", self.op, tuple(ATOMICS))
        expect_choice(self, "the order", self.order, ORDERS)
        expect_choice(self, "the scope", self.scope, SCOPES)
        expect_type(self, "the value", self.value, ATOMICS[self.op])
        expect_choice(self, "having `compare`", self.compare is not None, (self.op == "cas",))
        for what, operand in (("compare", self.compare), ("the result", self.dst)):
            if operand is not None:
                expect_type(self, what, operand, (self.value.dtype,))
        if self.pred is not None:
            expect_condition(self, self.pred)

    def ptx(self, w: PtxWriter) -> None:
        dtype = self.value.dtype
        without_result = self.dst is None and self.op not in ("exch", "cas")
        without_result &= self.order in ("relaxed", "release")
        order = "" if self.order == "relaxed" else f".{self.order}"
        where = f"{order}.{self.scope}.{SPACES[self.space]}"
        text = f"{'red' if without_result else 'atom'}{where}.{self.op}.{self._suffix}"
        operands = [address_text(w, self.address, self.offset)]
        if not without_result:
            operands.insert(0, w.temp(dtype.reg) if self.dst is None else w.reg(self.dst))
        if self.compare is not None:
            operands.append(in_register(w, self.compare, dtype.reg))
        operands.append(in_register(w, self.value, dtype.reg))
        w.emit(f"{guard(w, self.pred)}{text} {', '.join(operands)}")

    @property
    def _suffix(self) -> str:
        dtype = self.value.dtype
        if self.op in ("add", "min", "max"):
            signed_wide_add = self.op == "add" and dtype is i64  # only u64 exists; the bits agree
            name = "u64" if signed_wide_add else dtype.ptx
            return f"noftz.{name}" if dtype in _NOFTZ else name
        return f"b{dtype.bits}"

    def simulate(self, m: Machine) -> None:
        if self.order in ("release", "acq_rel"):
            m.fence(self.scope)
        address = lane_addresses(m, self.address, self.offset)
        where = condition_lanes(m, self.pred)
        old = m.atomic(self.space, address, self.value.dtype, self._update(m), where=where)
        if self.dst is not None:
            m.write(self.dst, old, where=where)
        if self.order in ("acquire", "acq_rel"):
            m.fence(self.scope)

    def _update(self, m: Machine) -> Callable[[Array, Array, Array], Array]:
        """What lanes make of the old content."""
        dtype, value = self.value.dtype, lanes(m, self.value)
        if self.compare is not None:
            expected = lanes(m, self.compare)
            return lambda old, warp, lane: np.where(
                same_bits(old, expected[warp, lane]), value[warp, lane], old
            )
        combine = _COMBINE[self.op]
        if self.op != "add" or not dtype.is_float:
            return lambda old, warp, lane: _wrapping(combine, old, value[warp, lane])
        flush = dtype is f32 and self.space == "global"
        return lambda old, warp, lane: add_floats(old, value[warp, lane], flush)


def _wrapping(combine: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    with np.errstate(over="ignore"):
        return combine(x, y)


def same_bits(x: Array, y: Array) -> Array:
    """Which values of one type have the same bits."""
    return np.asarray(bits_of(x) == bits_of(y))


def add_floats(x: Any, y: Any, flush: bool) -> Array:
    """x + y, rounded to nearest; `flush` takes subnormal operands and results as zeros."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not flush:
            return canonical_nan(np.asarray(x + y))
        return _flushed(canonical_nan(np.asarray(_flushed(x) + _flushed(y))))


def _flushed(x: Any) -> Array:
    smallest = np.finfo(np.float32).smallest_normal
    return np.asarray(np.where(np.abs(x) < smallest, np.copysign(np.float32(0), x), x))


def atomic(
    b: Builder,
    space: str,
    address: Operand,
    op: str,
    value: Operand,
    dtype: DType | None = None,
    compare: Operand | None = None,
    offset: int = 0,
    pred: Operand | None = None,
    order: str = "relaxed",
    scope: str = "gpu",
) -> Value:
    """Combine `value` into memory; gives the old content (undefined where `pred` is false)."""
    dst = b.value(dtype or value.dtype)
    b.append(
        AtomicOp(
            loc=b.loc(),
            op=op,
            space=space,
            address=address,
            value=value,
            dst=dst,
            compare=compare,
            offset=offset,
            pred=pred,
            order=order,
            scope=scope,
        )
    )
    return dst


def reduce(
    b: Builder,
    space: str,
    address: Operand,
    op: str,
    value: Operand,
    offset: int = 0,
    pred: Operand | None = None,
    order: str = "relaxed",
    scope: str = "gpu",
) -> None:
    """Combine `value` into memory without reading the old content."""
    b.append(
        AtomicOp(
            loc=b.loc(),
            op=op,
            space=space,
            address=address,
            value=value,
            offset=offset,
            pred=pred,
            order=order,
            scope=scope,
        )
    )


OPS: tuple[type[Op], ...] = (AtomicOp,)
