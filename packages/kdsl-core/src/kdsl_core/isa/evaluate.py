"""What regular instructions compute, as NumPy functions on arrays of the operands' types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Array
from kdsl_core.isa import rounding

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits_of(x: Array) -> Array:
    """The bits of each element, as an unsigned integer of its size."""
    return x.view(_UNSIGNED[x.dtype.itemsize])


def add(x: Array, y: Array) -> Array:
    """x + y."""
    return _canonical(np.add(x, y))


def subtract(x: Array, y: Array) -> Array:
    """x − y."""
    return _canonical(np.subtract(x, y))


def multiply(x: Array, y: Array) -> Array:
    """x·y; of integers the lower half."""
    return _canonical(np.multiply(x, y))


def divide(x: Array, y: Array) -> Array:
    """x / y of floats, rounded once."""
    return _canonical(np.divide(x, y))


def _canonical(x: Array) -> Array:
    return x if x.dtype.kind in "iub" else rounding.canonical_nan(x)


def multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x·y + z of integers, wrapped."""
    return np.add(np.multiply(x, y), z)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x·y + z of floats, rounded once."""
    return rounding.fma(x, y, z)


def quotient(x: Array, y: Array) -> Array:
    """Integer division toward zero; by zero, all bits set."""
    divisor = np.where(y == 0, np.ones_like(y), y)
    down = np.floor_divide(x, divisor)
    inexact = np.not_equal(np.multiply(down, divisor), x)
    toward_zero = np.add(down, (inexact & ((x < 0) != (y < 0))).astype(down.dtype))
    return np.where(y == 0, np.invert(np.zeros_like(y)), toward_zero)


def remainder(x: Array, y: Array) -> Array:
    """Remainder with the dividend's sign; by zero, the dividend."""
    divisor = np.where(y == 0, np.ones_like(y), y)
    return np.where(y == 0, x, np.subtract(x, np.multiply(quotient(x, divisor), divisor)))


def high_product(x: Array, y: Array) -> Array:
    """The upper half of the double-width product."""
    bits = x.dtype.itemsize * 8
    if bits < 64:
        signed = x.dtype.kind == "i"
        double: Any = np.int64 if signed else np.uint64
        product = np.multiply(x.astype(double), y.astype(double))
        return np.asarray(np.right_shift(product, double(bits)).astype(x.dtype))
    high = _high_u64(bits_of(x), bits_of(y))
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, bits_of(y), np.uint64(0))
        high = high - np.where(y < 0, bits_of(x), np.uint64(0))
    return high.view(x.dtype)


def _high_u64(x: Array, y: Array) -> Array:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    carried = np.right_shift(x0 * y1 + (middle & low), half)
    return np.asarray(x1 * y1 + (middle >> half) + carried)


def widening_product(wide: DType) -> Callable[[Array, Array], Array]:
    """The product in a type of twice the size."""
    return lambda x, y: np.multiply(x.astype(wide.numpy), y.astype(wide.numpy))


def minimum(x: Array, y: Array) -> Array:
    """The smaller; a number rather than NaN; −0 is below +0."""
    return _ordered(np.fmin(x, y), x, y, np.bitwise_or)


def maximum(x: Array, y: Array) -> Array:
    """The larger; a number rather than NaN; +0 is above −0."""
    return _ordered(np.fmax(x, y), x, y, np.bitwise_and)


def minimum_nan(x: Array, y: Array) -> Array:
    """The smaller; NaN when either is."""
    return _ordered(np.minimum(x, y), x, y, np.bitwise_or)


def maximum_nan(x: Array, y: Array) -> Array:
    """The larger; NaN when either is."""
    return _ordered(np.maximum(x, y), x, y, np.bitwise_and)


def _ordered(chosen: Array, x: Array, y: Array, join: np.ufunc) -> Array:
    if x.dtype.kind in "iu":
        return chosen
    if x.dtype == np.float32 and not rounding.any_small_or_nan(chosen, np.uint32(0)):
        return chosen
    zeros = (x == 0) & (y == 0)  # equal but for their sign
    if zeros.any():
        chosen = np.where(zeros, join(bits_of(x), bits_of(y)), bits_of(chosen)).view(x.dtype)
    return rounding.canonical_nan(chosen)


def copy_sign(magnitude: Array, sign: Array) -> Array:
    """|magnitude| with the sign of `sign`."""
    return np.copysign(magnitude, sign)


def bit_and(x: Array, y: Array) -> Array:
    """Bits set in both."""
    return np.bitwise_and(x, y)


def bit_or(x: Array, y: Array) -> Array:
    """Bits set in either."""
    return np.bitwise_or(x, y)


def bit_xor(x: Array, y: Array) -> Array:
    """Bits set in one only."""
    return np.bitwise_xor(x, y)


def invert(x: Array) -> Array:
    """Bits, or the truth value, flipped."""
    return np.invert(x)


def negate(x: Array) -> Array:
    """−x; a NaN of f64 only becomes quiet, other NaN become canonical (seen on an H200)."""
    return _signed(np.negative(x), x)


def absolute(x: Array) -> Array:
    """|x|; a NaN of f64 only becomes quiet, other NaN become canonical (seen on an H200)."""
    return _signed(np.abs(x), x)


def _signed(result: Array, x: Array) -> Array:
    """x with another sign, where NaN have the sign and payload that a sum would leave them."""
    if x.dtype == np.float64:
        return np.where(np.isnan(x), x + 0.0, result)
    return _canonical(result)


def shift_left(x: Array, count: Array) -> Array:
    """Counts from the width on give 0."""
    width = x.dtype.itemsize * 8
    if count.size == 1 and int(bits_of(count).item()) < width:
        return np.asarray(np.left_shift(x, count.astype(x.dtype)))
    clamped = np.minimum(bits_of(count), np.uint32(width - 1)).astype(x.dtype)
    return np.where(bits_of(count) < width, np.left_shift(x, clamped), np.zeros_like(x))


def shift_right(x: Array, count: Array) -> Array:
    """Signed types keep their sign; counts from the width on give only sign bits."""
    width = x.dtype.itemsize * 8
    if count.size == 1 and int(bits_of(count).item()) < width:
        return np.asarray(np.right_shift(x, count.astype(x.dtype)))
    clamped = np.minimum(bits_of(count), np.uint32(width - 1)).astype(x.dtype)
    shifted: Array = np.right_shift(x, clamped)
    if x.dtype.kind == "i":
        return shifted
    return np.where(bits_of(count) < width, shifted, np.zeros_like(x))


def count_outside(width: int) -> Callable[[Array, Array], Array]:
    """Whether a shift count is not below the width."""
    return lambda x, count: bits_of(count) >= width


def ones(x: Array) -> Array:
    """How many bits are set."""
    return np.bitwise_count(bits_of(x))


def leading_zeros(x: Array) -> Array:
    """How many bits above the highest one that is set; the width for 0."""
    unsigned = bits_of(x)
    if x.dtype.itemsize == 4:
        return 32 - np.frexp(unsigned.astype(np.float64))[1]
    high, low = unsigned >> np.uint64(32), unsigned & np.uint64(0xFFFFFFFF)
    above, below = (np.frexp(part.astype(np.float64))[1] for part in (high, low))
    return np.where(high != 0, 32 - above, 64 - below)


def reverse_bits(x: Array) -> Array:
    """The bits in opposite order."""
    unsigned = bits_of(x)
    width = x.dtype.itemsize * 8
    kind = unsigned.dtype.type
    every, step = (1 << width) - 1, width // 2
    while step:
        low = kind(every // ((1 << step) + 1))  # e.g. 0x00FF00FF for step 8
        unsigned = ((unsigned >> kind(step)) & low) | ((unsigned & low) << kind(step))
        step //= 2
    return unsigned.view(x.dtype)
