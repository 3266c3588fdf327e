"""Arithmetic and logic on one type: a row per instruction, a builder function per arity.

Integers wrap. Floats round once, to nearest even, keep subnormal numbers and are never contracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kdsl_core.dtypes import DType, bf16, boolean, f16, f32, f64, i16, i32, i64, u16, u32, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Operand
from kdsl_core.isa import evaluate as ev
from kdsl_core.isa.identities import simplified
from kdsl_core.isa.instruction import Evaluate, Instruction, InstructionOp, Undefined, issue

INTS = (i16, i32, i64, u16, u32, u64)
FLOATS = (f16, f32, f64)
WIDE = (i32, i64, u32, u64)
ALL = (*INTS, *FLOATS, bf16)
_BY_ZERO = Undefined(lambda x, y: y == 0, "the divisor is 0")


class ArithOp(InstructionOp):
    """Arithmetic or logic: operands and result share one type, but for shift counts."""

    FAMILY = "arith"


def _rows(
    name: str,
    dtypes: tuple[DType, ...],
    ptx: str,
    evaluate: Evaluate,
    undefined: Undefined | None = None,
) -> Iterator[Instruction]:
    """One instruction per type; `%t` in the text is the type, `%b` its size ("b32"),
    `%s` the signed type of its size; the highest operand letter tells the arity."""
    arity = 1 + max(i for i, letter in enumerate("abc") if f"{{{letter}}}" in ptx)
    for t in dtypes:
        bits = "pred" if t is boolean else f"b{t.bits}"
        text = ptx.replace("%t", t.ptx).replace("%b", bits).replace("%s", f"s{t.bits}")
        yield Instruction(name, (t,) * arity, t, text, evaluate, undefined=undefined)


def _bf16_rows() -> Iterator[Instruction]:
    """Sums and products of bf16 as fma, which sm_80 has: x·1 + y and x·y − 0 round alike."""
    for name, text, evaluate in (
        ("add", "mov.b16 {t0}, 0x3F80; fma.rn.bf16 {d}, {a}, {t0}, {b}", ev.add),
        ("sub", "mov.b16 {t0}, 0xBF80; fma.rn.bf16 {d}, {b}, {t0}, {a}", ev.subtract),
        ("mul", "mov.b16 {t0}, 0x8000; fma.rn.bf16 {d}, {a}, {b}, {t0}", ev.multiply),
    ):
        yield Instruction(name, (bf16, bf16), bf16, text, evaluate, temps=("b16",))


def _shift_rows() -> Iterator[Instruction]:
    for name, text, evaluate in (
        ("shl", "shl.%b {d}, {a}, {b}", ev.shift_left),
        ("shr", "shr.%t {d}, {a}, {b}", ev.shift_right),
    ):
        for row in _rows(name, INTS, text, evaluate):
            bits = row.result.bits
            outside = Undefined(ev.count_outside(bits), f"the shift count is not in 0..{bits - 1}")
            for count in (u32, i32):
                yield replace(row, operands=(row.result, count), undefined=outside)


def _count_rows() -> Iterator[Instruction]:
    for name, text, evaluate in (
        ("popc", "popc.%b {d}, {a}", ev.ones),
        ("clz", "clz.%b {d}, {a}", ev.leading_zeros),
    ):
        for row in _rows(name, WIDE, text, evaluate):
            yield replace(row, result=u32)


def _wide_rows() -> Iterator[Instruction]:
    for narrow, wide in ((i16, i32), (u16, u32), (i32, i64), (u32, u64)):
        text = f"mul.wide.{narrow.ptx} {{d}}, {{a}}, {{b}}"
        yield Instruction("mul_wide", (narrow, narrow), wide, text, ev.widening_product(wide))


_LOGIC = (*INTS, boolean)
_NAN_AWARE = (f16, bf16, f32)
INSTRUCTIONS = (
    *_rows("add", INTS, "add.%t {d}, {a}, {b}", ev.add),
    *_rows("add", FLOATS, "add.rn.%t {d}, {a}, {b}", ev.add),
    *_rows("sub", INTS, "sub.%t {d}, {a}, {b}", ev.subtract),
    *_rows("sub", FLOATS, "sub.rn.%t {d}, {a}, {b}", ev.subtract),
    *_rows("mul", INTS, "mul.lo.%t {d}, {a}, {b}", ev.multiply),
    *_rows("mul", FLOATS, "mul.rn.%t {d}, {a}, {b}", ev.multiply),
    *_bf16_rows(),
    *_rows("mulhi", INTS, "mul.hi.%t {d}, {a}, {b}", ev.high_product),
    *_wide_rows(),
    *_rows("div", INTS, "div.%t {d}, {a}, {b}", ev.quotient, _BY_ZERO),
    *_rows("div", (f32, f64), "div.rn.%t {d}, {a}, {b}", ev.divide),
    *_rows("rem", INTS, "rem.%t {d}, {a}, {b}", ev.remainder, _BY_ZERO),
    *_rows("min", ALL, "min.%t {d}, {a}, {b}", ev.minimum),
    *_rows("max", ALL, "max.%t {d}, {a}, {b}", ev.maximum),
    *_rows("min_nan", _NAN_AWARE, "min.NaN.%t {d}, {a}, {b}", ev.minimum_nan),
    *_rows("max_nan", _NAN_AWARE, "max.NaN.%t {d}, {a}, {b}", ev.maximum_nan),
    *_rows("copysign", (f32, f64), "copysign.%t {d}, {b}, {a}", ev.copy_sign),
    *_rows("and", _LOGIC, "and.%b {d}, {a}, {b}", ev.bit_and),
    *_rows("or", _LOGIC, "or.%b {d}, {a}, {b}", ev.bit_or),
    *_rows("xor", _LOGIC, "xor.%b {d}, {a}, {b}", ev.bit_xor),
    *_shift_rows(),
    *_rows("neg", INTS, "neg.%s {d}, {a}", ev.negate),
    *_rows("neg", (*FLOATS, bf16), "neg.%t {d}, {a}", ev.negate),
    *_rows("abs", (i16, i32, i64), "abs.%t {d}, {a}", ev.absolute),
    *_rows("abs", (*FLOATS, bf16), "abs.%t {d}, {a}", ev.absolute),
    *_rows("not", _LOGIC, "not.%b {d}, {a}", ev.invert),
    *_rows("brev", WIDE, "brev.%b {d}, {a}", ev.reverse_bits),
    *_count_rows(),
    *_rows("fma", INTS, "mad.lo.%t {d}, {a}, {b}, {c}", ev.multiply_add),
    *_rows("fma", (*FLOATS, bf16), "fma.rn.%t {d}, {a}, {b}, {c}", ev.fused_multiply_add),
)
_BY_TYPES = {(row.name, row.operands): row for row in INSTRUCTIONS}
_BY_NAME = {row.name: row for row in INSTRUCTIONS}


def binary(b: Builder, name: str, x: Operand, y: Operand) -> Operand:
    """`x name y`: add sub mul div rem min max min_nan max_nan mulhi copysign and or xor shl shr.

    Both share one type; a shift's right operand is u32 or i32. Integer division truncates toward
    zero. `min` and `max` prefer a number to NaN, `min_nan` and `max_nan` give NaN. Division of f16
    and bf16 goes through f32, which is exact after the final rounding.

    Raises: TypeMismatch when there is no such instruction for these types.
    """
    if name == "div" and x.dtype == y.dtype and x.dtype in (f16, bf16):
        from kdsl_core.isa.convert import convert  # built on arithmetic itself

        quotient = binary(b, "div", convert(b, x, f32), convert(b, y, f32))
        return convert(b, quotient, x.dtype)
    row = _row(b, name, x, y)
    simple = simplified(b, name, x, y, binary)
    return simple if simple is not None else issue(b, ArithOp, row, x, y)


def mul_wide(b: Builder, x: Operand, y: Operand) -> Operand:
    """The full product of two 32-bit (16-bit) integers, as 64 (32) bits."""
    return issue(b, ArithOp, _row(b, "mul_wide", x, y), x, y)


def unary(b: Builder, name: str, x: Operand) -> Operand:
    """`name x`: neg abs not popc clz brev; popc and clz give u32."""
    return issue(b, ArithOp, _row(b, name, x), x)


def fma(b: Builder, x: Operand, y: Operand, z: Operand) -> Operand:
    """x·y + z: floats rounded once, integers wrapped."""
    return issue(b, ArithOp, _row(b, "fma", x, y, z), x, y, z)


def _row(b: Builder, name: str, *operands: Operand) -> Instruction:
    dtypes = tuple(operand.dtype for operand in operands)
    row = _BY_TYPES.get((name, dtypes))
    if row is not None:
        return row
    got = ", ".join(dtype.name for dtype in dtypes)
    known = [row for row in INSTRUCTIONS if row.name == name and len(row.operands) == len(dtypes)]
    if not known:
        names = ", ".join(sorted(_BY_NAME))
        raise TypeMismatch(
            f"{name} of {got}: there is no such operation; there are {names}",
            code="K253",
            loc=b.loc(),
        )
    choices = "; ".join(", ".join(t.name for t in row.operands) for row in known)
    fix = "convert the operands to one type first: x.to(kd.…)"
    if any(dtype.bits == 8 for dtype in dtypes):
        fix = "8-bit types only store values: convert first, e.g. x.to(kd.i32) or x.to(kd.f32)"
    raise TypeMismatch(
        f"{name} takes one of ({choices}), got {got}", code="K254", loc=b.loc(), fix=fix
    )


OPS = (ArithOp,)
