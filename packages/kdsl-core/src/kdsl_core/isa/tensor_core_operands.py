"""Operands of tensor cores, taken apart: exact values and the exponents that the hardware sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from kdsl_core.errors import TypeMismatch
from kdsl_core.records import dataclass

Array: TypeAlias = np.ndarray[Any, Any]

_MIN_EXPONENT = {
    np.dtype(np.float16): -14,
    np.dtype(ml_dtypes.bfloat16): -126,
    np.dtype(np.float32): -126,  # tf32
    np.dtype(ml_dtypes.float8_e4m3fn): -6,
    np.dtype(ml_dtypes.float8_e5m2): -14,
    np.dtype(np.int8): 0,
    np.dtype(np.uint8): 0,
}
OF_ZERO = -1000  # an exponent below every other, also after one addition
NARROW = 50  # operands whose exponents stay within ± this take the fast way
_NONFINITE = 128  # the exponent field that f32 gives to infinities and NaN
_FP8 = {
    np.dtype(fp8): np.arange(256, dtype=np.uint8).view(fp8).astype(np.float32)
    for fp8 in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix operand, decomposed once for use with several partners.

    `value` is `rows` with 0 for what is not finite. Exponents of all numbers but 0, and 0 itself,
    lie in `lowest` … `highest`.

    Shapes: `rows` and `value` (float32) and `exponent` (int16) [..., R, K].
    """

    rows: Array
    value: Array
    exponent: Array
    dtype: np.dtype[Any]
    lowest: int
    highest: int

    def alone(self) -> Operand:
        """The operand of a chain of one instruction."""
        rows, value, exponent = (x[None] for x in (self.rows, self.value, self.exponent))
        return replace(self, rows=rows, value=value, exponent=exponent)

    def step(self, number: int) -> Operand:
        """The operand of one instruction of a chain, as a chain of its own."""
        rows, value, exponent = (
            x[number : number + 1] for x in (self.rows, self.value, self.exponent)
        )
        return replace(self, rows=rows, value=value, exponent=exponent)

    @property
    def finite(self) -> bool:
        """Whether no element is infinite or NaN."""
        return self.highest < _NONFINITE

    @property
    def least(self) -> int:
        """The exponent of the type's subnormal numbers, below which there is none."""
        return _MIN_EXPONENT[self.dtype]

    @property
    def narrow(self) -> bool:
        """Whether all exponents but those of zeros are within ±50."""
        return max(-self.lowest, self.highest) <= NARROW


def prepare(x: Array) -> Operand:
    """Decompose an operand [..., R, K] into exact values and the exponents the hardware sees."""
    if x.dtype not in _MIN_EXPONENT:
        raise TypeMismatch(
            f"a tensor-core operand must be one of {names(_MIN_EXPONENT)}, got {x.dtype}",
            code="K280",
            fix="convert the operand first",
        )
    value = rows = np.ascontiguousarray(_to_float32(x))
    exponent = exponents_of(rows, x.dtype)
    zero = np.int16(0)
    lowest = int(exponent.min(initial=zero, where=exponent != OF_ZERO))
    highest = int(exponent.max(initial=zero))
    if highest >= _NONFINITE:  # their outputs are patched afterwards
        value = np.where(np.isfinite(rows), rows, np.float32(0))
    return Operand(rows, value, exponent, x.dtype, lowest, highest)


def names(dtypes: Iterable[np.dtype[Any]]) -> str:
    """Types in the words of an error."""
    return ", ".join(str(dtype) for dtype in dtypes)


def _to_float32(x: Array) -> Array:
    if x.dtype == np.float32:
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if x.dtype == ml_dtypes.bfloat16:
        return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if x.dtype in _FP8:
        return np.asarray(_FP8[x.dtype].take(x.view(np.uint8)))
    return x.astype(np.float32)


def exponents_of(value: Array, dtype: np.dtype[Any]) -> Array:
    """The exponents (int16) that the hardware sees of float32 values that were of a type."""
    exponent = np.maximum(exponent_field(value), np.int16(_MIN_EXPONENT[dtype]))
    np.copyto(exponent, OF_ZERO, where=value == 0)
    return exponent


def power_bits(exponent: int) -> np.int32:
    """2^exponent as the bits of float32."""
    return np.int32(exponent + 127 << 23)


def exponent_field(x: Array) -> Array:
    """The exponent field of each float32 less its bias, as int16."""
    upper = x.view(np.int16).reshape(*x.shape, 2)[..., 1]
    return np.asarray((upper >> np.int16(7) & np.int16(255)) - np.int16(127))
