"""Words that hold several narrow values, the first in the lowest bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from kdsl_core.dtypes import DType, bf16, e4m3, e5m2, f16, f32, u16, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Builder, Need, Operand
from kdsl_core.ir.target import BASELINE
from kdsl_core.isa import rounding
from kdsl_core.isa.evaluate import bits_of
from kdsl_core.isa.instruction import Instruction, InstructionOp, issue

_FP8 = Need(sm=89, ptx=(8, 1))


class PackOp(InstructionOp):
    """Narrow values put into a word, taken out of it, or converted on the way."""

    FAMILY = "pack"

    @property
    def fills_in(self) -> bool:
        return self.instruction.name.startswith("insert")

    def origins(self, byte: int) -> Iterator[tuple[Operand, int]]:
        name, (first, *more) = self.instruction.name, self.operands
        if name.startswith("extract"):
            yield first, int(name.removeprefix("extract")) * self.d.dtype.bytes + byte
        elif more and not self.fills_in:  # several values beside each other
            yield self.operands[byte * len(self.operands) // self.d.dtype.bytes], 0
        else:
            yield from super().origins(byte)


def pack(b: Builder, parts: tuple[Operand, ...]) -> Operand:
    """Two 16-bit or four 8-bit values of one type as a u32; the first in the lowest bits.

    Raises: TypeMismatch when the parts do not fill 32 bits or differ in type.
    """
    dtype = parts[0].dtype
    if dtype.bits not in (8, 16) or dtype.bits * len(parts) != 32:
        _refuse(b, f"pack takes two 16-bit or four 8-bit values, got {len(parts)} of {dtype}")
    return issue(b, PackOp, _packing(dtype), *parts)


def unpack(b: Builder, x: Operand, dtype: DType) -> tuple[Operand, ...]:
    """The two 16-bit or four 8-bit values in a u32, lowest bits first."""
    return tuple(extract(b, x, dtype, i) for i in range(_parts(b, dtype)))


def extract(b: Builder, x: Operand, dtype: DType, index: int) -> Operand:
    """Part number `index` of a u32 that holds values of `dtype`."""
    _check_index(b, dtype, index)
    return issue(b, PackOp, _extraction(dtype, index), x)


def insert(b: Builder, x: Operand, part: Operand, index: int) -> Operand:
    """The u32 x with part number `index` replaced."""
    _check_index(b, part.dtype, index)
    return issue(b, PackOp, _insertion(part.dtype, index), x, part)


def convert_pack(b: Builder, low: Operand, high: Operand, dtype: DType) -> Operand:
    """Two f32 rounded to nearest and packed, in one instruction.

    f16 and bf16 give a u32. e4m3 and e5m2 saturate and give a u16; `pack` joins two of those.

    Raises: TypeMismatch for other types.
    """
    if dtype not in (f16, bf16, e4m3, e5m2):
        _refuse(b, f"convert_pack makes f16, bf16, e4m3 or e5m2, got {dtype}")
    return issue(b, PackOp, _conversion(dtype), low, high)


def widen_pair(b: Builder, x: Operand, dtype: DType) -> Operand:
    """Two e4m3 or e5m2 in a u16 as two f16 in a u32, exactly, in one instruction.

    Raises: TypeMismatch for other types.
    """
    if dtype not in (e4m3, e5m2):
        _refuse(b, f"widen_pair takes e4m3 or e5m2, got {dtype}")
    return issue(b, PackOp, _widening(dtype), x)


def _parts(b: Builder, dtype: DType) -> int:
    if dtype.bits not in (8, 16):
        _refuse(b, f"a u32 is packed with 8-bit or 16-bit values, not {dtype}")
    return 32 // dtype.bits


def _check_index(b: Builder, dtype: DType, index: int) -> None:
    count = _parts(b, dtype)
    if not 0 <= index < count:
        _refuse(b, f"a u32 holds {count} values of {dtype}, there is no number {index}")


def _refuse(b: Builder, message: str) -> None:
    raise TypeMismatch(message, code="K259", loc=b.loc())


# -- instructions ------------------------------------------------------------------------------
@cache
def _packing(dtype: DType) -> Instruction:
    if dtype.bits == 16:
        return Instruction("pack", (dtype, dtype), u32, "mov.b32 {d}, {{{a}, {b}}}", _joined)
    text = (
        "mov.b32 {t0}, {{{a}, {b}}}; mov.b32 {t1}, {{{c}, {e}}}; "
        "prmt.b32 {d}, {t0}, {t1}, 0x6420"  # the low byte of each half word
    )
    return Instruction("pack", (dtype,) * 4, u32, text, _joined, ("b32", "b32"))


def _joined(*parts: Array) -> Array:
    width = parts[0].dtype.itemsize * 8
    words = [
        bits_of(part).astype(np.uint32) << np.uint32(width * i) for i, part in enumerate(parts)
    ]
    return np.asarray(sum(words[1:], words[0]))


@cache
def _extraction(dtype: DType, index: int) -> Instruction:
    if dtype.bits == 16:
        halves = ("{d}, {t0}", "{t0}, {d}")[index]
        text, temps = f"mov.b32 {{{{{halves}}}}}, {{a}}", ("b16",)
    else:
        text = f"bfe.u32 {{t0}}, {{a}}, {8 * index}, 8; cvt.u16.u32 {{d}}, {{t0}}"
        temps = ("b32",)
    evaluate = partial(_part, dtype=dtype, index=index)
    return Instruction(f"extract{index}", (u32,), dtype, text, evaluate, temps)


def _part(x: Array, dtype: DType, index: int) -> Array:
    shifted = x >> np.uint32(dtype.bits * index)
    return shifted.astype(np.uint16 if dtype.bits == 16 else np.uint8).view(dtype.numpy)


@cache
def _insertion(dtype: DType, index: int) -> Instruction:
    if dtype.bits == 16:
        kept, halves = (("{t0}, {t1}", "{b}, {t1}"), ("{t1}, {t0}", "{t1}, {b}"))[index]
        text = f"mov.b32 {{{{{kept}}}}}, {{a}}; mov.b32 {{d}}, {{{{{halves}}}}}"
        temps: tuple[str, ...] = ("b16", "b16")
    else:
        text = f"cvt.u32.u16 {{t0}}, {{b}}; bfi.b32 {{d}}, {{t0}}, {{a}}, {8 * index}, 8"
        temps = ("b32",)
    evaluate = partial(_replaced, shift=dtype.bits * index)
    return Instruction(f"insert{index}", (u32, dtype), u32, text, evaluate, temps)


def _replaced(x: Array, part: Array, shift: int) -> Array:
    mask = np.uint32(((1 << (part.dtype.itemsize * 8)) - 1) << shift)
    return (x & ~mask) | (bits_of(part).astype(np.uint32) << np.uint32(shift))


@cache
def _conversion(dtype: DType) -> Instruction:
    fp8 = dtype.bits == 8
    mode = "rn.satfinite" if fp8 else "rn"
    text = f"cvt.{mode}.{dtype.ptx}x2.f32 {{d}}, {{b}}, {{a}}"  # the first operand is the upper

    def evaluate(low: Array, high: Array) -> Array:
        parts = np.broadcast_arrays(low, high)
        low_bits, high_bits = (
            bits_of(rounding.to_nearest(part, dtype.numpy, satfinite=fp8)).astype(np.uint32)
            for part in parts
        )
        return low_bits | (high_bits << np.uint32(dtype.bits))

    need = _FP8 if fp8 else BASELINE
    result = u16 if fp8 else u32
    return Instruction(f"to_{dtype.name}x2", (f32, f32), result, text, evaluate, need=need)


@cache
def _widening(dtype: DType) -> Instruction:
    def evaluate(pair: Array) -> Array:
        halves = (
            (pair >> np.uint16(shift)).astype(np.uint8).view(dtype.numpy).astype(np.float16)
            for shift in (0, 8)
        )
        return _joined(*(rounding.canonical_nan(half) for half in halves))

    text = f"cvt.rn.f16x2.{dtype.ptx}x2 {{d}}, {{a}}"
    return Instruction(f"widen_{dtype.name}", (u16,), u32, text, evaluate, need=_FP8)


OPS = (PackOp,)
