"""Conversion between numeric types; pairs without an instruction go through f32 or f16."""

from __future__ import annotations

from functools import cache

from kdsl_core.dtypes import DType, bf16, boolean, f16, f32, tf32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Builder, Const, Operand
from kdsl_core.isa.compare import compare, select
from kdsl_core.isa.conversions import direct
from kdsl_core.isa.instruction import Instruction, InstructionOp, issue
from kdsl_core.isa.packed import PackOp, convert_pack, extract, insert, pack, unpack, widen_pair
from kdsl_core.isa.register import snapshot

__all__ = [
    "OPS",
    "ConvertOp",
    "PackOp",
    "bitcast",
    "convert",
    "convert_all",
    "convert_pack",
    "extract",
    "insert",
    "pack",
    "unpack",
    "widen_pair",
]


class ConvertOp(InstructionOp):
    """A conversion to another type, or the same bits read as another type."""

    FAMILY = "convert"


def convert(
    b: Builder, x: Operand, dtype: DType, rounding: str | None = None, saturate: bool = False
) -> Operand:
    """x as another type.

    Integers wrap, or saturate on request. Floats become integers toward zero by default and
    saturate; NaN becomes 0 (the sign bit alone for f64 or 64 bits). Other results are rounded to
    nearest even; `rounding` is "rn", "rz" (toward zero), "rm" (down) or "rp" (up). fp8 saturates at
    its largest finite number. f64 and wide integers reach bf16, tf32 and fp8 through f32 and are
    rounded twice.

    Raises: TypeMismatch when the pair has no such rounding or saturation.
    """
    if x.dtype == dtype:
        return snapshot(b, x)
    if x.dtype == boolean:
        return select(b, x, Const(dtype, 1), Const(dtype, 0))
    if dtype == boolean:
        wide = convert(b, x, f32) if x.dtype.bits == 8 or x.dtype in (bf16, tf32) else x
        return compare(b, "ne", wide, Const(wide.dtype, 0))
    row = direct(x.dtype, dtype, rounding, saturate)
    if row is not None:
        return issue(b, ConvertOp, row, x)
    between = f16 if x.dtype.is_float and x.dtype.bits == 8 and dtype != f16 else f32
    if between in (x.dtype, dtype):
        raise TypeMismatch(
            f"no conversion from {x.dtype} to {dtype} with rounding={rounding!r}, "
            f"saturate={saturate}",
            code="K257",
            loc=b.loc(),
            fix="leave out rounding and saturate, or clamp the value first",
        )
    wide = convert(b, x, between)
    return convert(b, wide, dtype, rounding, saturate)


def bitcast(b: Builder, x: Operand, dtype: DType) -> Operand:
    """The bits of x read as another type of the same size.

    Raises: TypeMismatch when the sizes differ or one type is boolean.
    """
    if x.dtype == dtype:
        return snapshot(b, x)
    if x.dtype.bits != dtype.bits or boolean in (x.dtype, dtype):
        raise TypeMismatch(
            f"bitcast keeps the number of bits: {x.dtype} has {x.dtype.bits}, "
            f"{dtype} has {dtype.bits}",
            code="K258",
            loc=b.loc(),
            fix="use .to(dtype) to convert the value",
        )
    return issue(b, ConvertOp, _same_bits(x.dtype, dtype), x)


@cache
def _same_bits(source: DType, target: DType) -> Instruction:
    def evaluate(x: Array) -> Array:
        return x.view(target.numpy)

    text = f"mov.b{max(source.bits, 16)} {{d}}, {{a}}"
    return Instruction(f"bits_{target.name}", (source,), target, text, evaluate)


def convert_all(b: Builder, parts: tuple[Operand, ...], dtype: DType) -> Operand:
    """f32 values (two for 16 bits, four for 8) rounded to `dtype` and packed into a u32.

    Float types take one instruction per pair.
    """
    if not dtype.is_float:
        return pack(b, tuple(convert(b, part, dtype) for part in parts))
    pairs = [
        convert_pack(b, low, high, dtype) for low, high in zip(*[iter(parts)] * 2, strict=True)
    ]
    return pairs[0] if len(pairs) == 1 else pack(b, tuple(pairs))


OPS = (ConvertOp,)
