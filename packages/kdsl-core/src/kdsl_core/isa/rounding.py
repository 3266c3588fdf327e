"""Conversions and fused multiply-add, rounded exactly once, on whole NumPy arrays.

A float64 rounded *to odd* (inexact results get a last bit of one) may be rounded again to any
narrower type as if it had been exact; that is how every double rounding is avoided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Array: TypeAlias = np.ndarray[Any, Any]

_BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NAN = {
    np.dtype(np.float32): 0x7FFFFFFF,
    np.dtype(np.float16): 0x7FFF,
    np.dtype(ml_dtypes.bfloat16): 0x7FFF,
    np.dtype(ml_dtypes.float8_e4m3fn): 0x7F,
    np.dtype(ml_dtypes.float8_e5m2): 0x7F,
}
_LEAST_NORMAL = np.uint32(1 << 23)  # of float32
_INFINITY_DOUBLED = 0xFF000000
_MIDPOINT = -1 << 63  # bits 1, 0, 0 …
_TO_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def to_nearest(x: Array, dtype: DTypeLike, *, satfinite: bool = False) -> Array:
    """Round floats to the nearest value of a float type, ties to even.

    `satfinite` replaces results beyond the largest finite number by that number, as PTX fp8
    conversions do. NaN becomes the canonical NaN of the GPU.

    Source: PTX ISA 9.0 `cvt.rn`, `cvt.rn.satfinite`.
    """
    target = np.dtype(dtype)
    if satfinite:
        largest = _largest(target)
        x = np.clip(x, -largest, largest)
    if x.dtype == np.float64 and target not in (np.float64, np.float32):
        x = _odd_float32(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical_nan(x.astype(target), np.isnan(x))


def to_zero(x: Array, dtype: DTypeLike, *, satfinite: bool = False) -> Array:
    """Round floats toward zero to a float type; a finite input never becomes infinite.

    Source: PTX ISA 9.0 `cvt.rz`.
    """
    target = np.dtype(dtype)
    largest = _largest(target)
    bounded = np.clip(x, -largest, largest)
    if not satfinite:
        bounded = np.where(np.isinf(x), x, bounded)
    nearest = to_nearest(bounded, target)
    with np.errstate(invalid="ignore"):
        away = np.abs(nearest.astype(np.float64)) > np.abs(x.astype(np.float64))
    bits = nearest.view(_BITS[target.itemsize])
    return np.asarray(np.subtract(bits, away, dtype=bits.dtype)).view(target)


def to_tf32(x: Array) -> Array:
    """Round float32 to 10 mantissa bits, ties away from zero.

    A NaN loses the bits below, and with them all of a small payload: it becomes an infinity.

    Source: PTX ISA 9.0 `cvt.rna.tf32.f32`; of NaN, an H200.
    """
    bits = x.view(np.uint32)
    rounded = bits + np.where(np.isfinite(x), np.uint32(0x1000), np.uint32(0))
    return (rounded & np.uint32(0xFFFFE000)).view(np.float32)


def to_integer(x: Array, dtype: DTypeLike, mode: str = "rzi") -> Array:
    """Round floats to an integer type that saturates; NaN becomes 0.

    `mode` is PTX's: "rzi" toward zero, "rni" to nearest even, "rmi" down, "rpi" up.

    Source: PTX ISA 9.0 `cvt`.
    """
    info = np.iinfo(np.dtype(dtype))
    whole = _TO_INTEGRAL[mode](x.astype(np.float64))
    above, below = whole >= float(int(info.max) + 1), whole < float(info.min)
    inside = np.where(above | below | np.isnan(whole), 0.0, whole).astype(info.dtype)
    ends = np.where(above, info.dtype.type(info.max), info.dtype.type(info.min))
    return np.where(above | below, ends, inside)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c, rounded once to nearest even, for float16, bfloat16, float32 or float64 arrays.

    float64 goes through rational numbers, one element at a time.

    Source: PTX ISA 9.0 `fma.rn`.
    """
    target = c.dtype
    if target == np.float64:
        return np.asarray(np.vectorize(_fma_rational, otypes=[np.float64])(a, b, c))
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = _fma_float32(a, b, c) if target == np.float32 else None
        if rounded is not None:
            return rounded
        product = a.astype(np.float64) * b.astype(np.float64)  # exact: at most 48 bits
        return to_nearest(_add_to_odd(product, c.astype(np.float64)), target)


def _fma_float32(a: Array, b: Array, c: Array) -> Array | None:
    """a·b + c by way of float64, or None where that may round twice.

    Rounding is monotonic, and midpoints of float32 are float64. So a rounded sum that is no
    midpoint lies on the same side of each midpoint as the exact sum, and both give one float32.
    Midpoints of normal float32 have bits 1, 0, 0 … behind its last one; those of subnormal ones lie
    elsewhere, so all that give one, or the least normal one, count, but for a sum of 0, which only
    an exact sum gives.
    """
    total = np.multiply(a, b, dtype=np.float64)
    total = np.add(total, c, out=total if c.size == 1 or c.shape == total.shape else None)
    rounded = total.astype(np.float32)
    unusual = any_small_or_nan(rounded, _LEAST_NORMAL)
    if unusual and total[np.abs(rounded) <= _LEAST_NORMAL.view(np.float32)].any():
        return None
    behind = total.view(np.int64)
    behind <<= np.int64(35)  # the 29 bits that float32 lacks
    if behind.min() == _MIDPOINT:
        return None
    return canonical_nan(rounded) if unusual else rounded


def any_small_or_nan(x: Array, bits: np.uint32) -> bool:
    """Whether some float32 is NaN, or not farther from 0 than the one of these bits."""
    doubled = x.view(np.uint32) << np.uint32(1)  # without the sign
    doubled -= np.uint32(2 * int(bits) + 1)  # now small ones are above NaN
    return int(doubled.max()) > _INFINITY_DOUBLED - 2 * int(bits) - 1


def canonical_nan(x: Array, nan: Array | None = None) -> Array:
    """Replace every NaN by the one bit pattern that the GPU writes.

    `nan` says where they are, if that is known: to look is slow in the types of ml_dtypes.
    """
    nan = np.isnan(x) if nan is None else nan
    if x.dtype in _NAN and nan.any():
        word = _BITS[x.dtype.itemsize]
        x = np.where(nan, word(_NAN[x.dtype]), x.view(word)).view(x.dtype)
    return x


def quiet_nan(x: Array, result: Array) -> Array:
    """The result with the NaN of x made quiet: their sign and the upper bits of their payload.

    So do conversions of f64 to f32 and f16 on an H200.
    """
    nan = np.isnan(x)
    if not nan.any():
        return result
    word, info = _BITS[result.dtype.itemsize], np.finfo(result.dtype)
    wide = x.view(np.uint64)
    payload = (wide >> np.uint64(52 - info.nmant)) & np.uint64((1 << info.nmant) - 1)
    sign = (wide >> np.uint64(63)) << np.uint64(info.bits - 1)
    exponent = np.uint64((1 << info.bits - 1) - (1 << info.nmant))
    quiet = sign | exponent | np.uint64(1 << info.nmant - 1) | payload
    return np.where(nan, quiet.astype(word), result.view(word)).view(result.dtype)


def _largest(dtype: np.dtype[Any]) -> float:
    info: Any = ml_dtypes.finfo  # untyped upstream
    return float(info(dtype).max)


def _add_to_odd(x: Array, y: Array) -> Array:
    """x + y in float64, rounded to odd.  Source: Boldo and Melquiond, IEEE ToC 57(4), 2008."""
    total = np.asarray(x + y)
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + toward, bits).view(np.float64)


def _odd_float32(x: Array) -> Array:
    """float64 to float32, rounded to odd; beyond its range the largest finite number."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = np.asarray(x.astype(np.float32))
        bits = nearest.view(np.int32)
        bits = bits - (np.abs(nearest) > np.abs(x))  # now toward zero
        truncated = bits.astype(np.int32).view(np.float32)
        inexact = (truncated != x) & ~np.isnan(x)
    return np.asarray(np.bitwise_or(bits, inexact, dtype=np.int32)).view(np.float32)


def _fma_rational(a: float, b: float, c: float) -> float:
    if np.isinf(c) and np.isfinite([a, b]).all():
        return c  # however large the product is
    plain = a * b + c
    if not np.isfinite([a, b, c]).all():
        return plain
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return plain  # IEEE's sign of an exact zero
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf
