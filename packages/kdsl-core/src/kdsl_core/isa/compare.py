"""Comparison to a truth value, and selection by one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from kdsl_core.dtypes import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, u16, u32, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Builder, Const, Operand
from kdsl_core.isa.arith import binary, unary
from kdsl_core.isa.instruction import Instruction, InstructionOp, issue
from kdsl_core.isa.register import snapshot

_FUNCTIONS: dict[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class CompareOp(InstructionOp):
    """Comparison of two numbers of one type; with a NaN only `ne` is true."""

    FAMILY = "compare"


class SelectOp(InstructionOp):
    """One of two values, by a truth value."""

    FAMILY = "compare"


def _rows() -> Iterator[Instruction]:
    for name, function in _FUNCTIONS.items():
        for t in (i16, i32, i64, u16, u32, u64, f16, f32, f64):
            test = "neu" if name == "ne" and t.is_float else name  # "u": true for NaN too
            text = f"setp.{test}.{t.ptx} {{d}}, {{a}}, {{b}}"
            yield Instruction(name, (t, t), boolean, text, function)


INSTRUCTIONS = tuple(_rows())
_BY_TYPE = {(row.name, row.operands[0]): row for row in INSTRUCTIONS}


def compare(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """`x name y` as a truth value: eq ne lt le gt ge; truth values know eq and ne.

    Comparisons with NaN are false, but for ne. bf16 is compared as f32, which is exact.

    Raises: TypeMismatch when the types differ or cannot be compared.
    """
    if x.dtype == y.dtype == boolean and name in ("eq", "ne"):
        differ = binary(b, "xor", x, y)
        return differ if name == "ne" else unary(b, "not", differ)
    if x.dtype == y.dtype == bf16:
        from kdsl_core.isa.convert import convert  # built on comparison itself

        x, y = convert(b, x, f32), convert(b, y, f32)
    row = _BY_TYPE.get((name, x.dtype))
    if row is None or x.dtype != y.dtype:
        raise TypeMismatch(
            f"{name} compares two numbers of one type of 16 bits or more, "
            f"got {x.dtype} and {y.dtype}",
            code="K255",
            loc=b.loc(),
            fix="convert one of them: x.to(kd.…)",
        )
    return issue(b, CompareOp, row, x, y)


def select(b: Builder, condition: Operand, x: Operand, y: Operand) -> Operand:
    """x where the condition holds, else y.

    Raises: TypeMismatch when the condition is no truth value or the types of x and y differ.
    """
    if condition.dtype != boolean or x.dtype != y.dtype:
        raise TypeMismatch(
            f"select takes a boolean and two values of one type, "
            f"got {condition.dtype}, {x.dtype} and {y.dtype}",
            code="K256",
            loc=b.loc(),
            fix="compare to get a boolean; convert one value to the other's type",
        )
    if isinstance(condition, Const):
        return snapshot(b, x if condition.value else y)
    if x is y or (isinstance(x, Const) and x == y):
        return snapshot(b, x)
    if x.dtype == boolean:
        otherwise = binary(b, "and", unary(b, "not", condition), y)
        return binary(b, "or", binary(b, "and", condition, x), otherwise)
    return issue(b, SelectOp, selection(x.dtype), condition, x, y)


@cache
def selection(dtype: DType) -> Instruction:
    """The select instruction for a type."""
    text = f"selp.{dtype.reg} {{d}}, {{b}}, {{c}}, {{a}}"
    return Instruction("select", (boolean, dtype, dtype), dtype, text, _select)


def _select(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


OPS = (CompareOp, SelectOp)
