"""The fast functions of f32 in every bit: a model of the GPU's multi-function unit (MUFU).

The unit cuts the argument's binade into equal intervals. The fraction's upper bits choose one, and
its row of three integers; the 17 bits below are `low`. In fixed point

    (c0 << c0_shift) + c1·low + (c2·square(low) << square_shift) + bias

is then cut off to the result: it is truncated, and the bias makes that a rounding where there is
one. `square` is a squarer without its lower half (`squares`). Subnormal arguments and results are
zeros to the unit; PTX without `.ftz` scales around it where that matters, and so does this module.

The tables were recovered from recordings of an H200 and give each of their 135 million results
(`docs/facts.md`): whole binades, and samples of all others. No other row fits any interval.

Source: S. F. Oberman and M. Y. Siu, "A High-Performance Area-Efficient Multifunction Interpolator",
ARITH-17, 2005; the roundings of an older GPU in envytools, `nvhw/sfu.c`; ptxas for the scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from kdsl_core.ir import Array
from kdsl_core.isa import multifunction_tables as tables
from kdsl_core.isa.rounding import canonical_nan
from kdsl_core.records import dataclass

FRACTION_BITS = 23
ONE = 1 << FRACTION_BITS  # 1.0 as a significand of f32; also the first bits of a normal number
LOW_BITS = 17
BIAS = 127  # of the exponent
KEPT_OF_F64 = -1 << 52 - FRACTION_BITS  # the bits that f32 has too
LEAST = np.float32(2.0**-126)  # normal number
TURNS_PER_RADIAN = float.fromhex("0x1.45f306p-3")  # the f32 that ptxas multiplies with
TANH_BINADES = -8  # exponent of the first that is interpolated; below, tanh(x) is x
TANH_INDEX_BITS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3])  # of each binade; beyond, it is 1
TANH_FIRST = np.cumsum(1 << TANH_INDEX_BITS) - (1 << TANH_INDEX_BITS)  # row of each binade

Integers: TypeAlias = Array | int


@dataclass(frozen=True)
class Interpolation:
    """One function's table and the places of its terms; `text` has c0 c1 c2 for each interval."""

    text: str
    c0_shift: int
    square_shift: int
    bias: int

    def __call__(self, fraction: Array, index_bits: Integers = 6, first: Integers = 0) -> Array:
        """The sum in fixed point, as f64, in which it is exact: it has 44 bits.

        `first` is the row of the first of 2^index_bits intervals.
        """
        index, low = place(fraction, index_bits)
        row: Array = index + first
        c0, c1, c2 = _columns(self).take(row, axis=1)
        return np.asarray(c0 + c1 * low + c2 * squares().take(low))


EX2 = Interpolation(tables.EX2, 13, 0, 0x77E2)
LG2 = Interpolation(tables.LG2, 12, 1, 0x3345)
RCP = Interpolation(tables.RCP, 14, 1, 0x8FCE)
RSQ = Interpolation(tables.RSQ, 14, 2, 0x7FFF)
SQRT = Interpolation(tables.SQRT, 15, 1, 0x7FFF)
SIN = Interpolation(tables.SIN, 11, 0, 0)
TANH = Interpolation(tables.TANH, 14, 1, 0)


# -- parts of the unit -----------------------------------------------------------------------------
def place(fraction: Array, index_bits: Integers) -> tuple[Array, Array]:
    """Which of 2^index_bits intervals a 23-bit fraction is in, and where within, in 17 bits."""
    within = fraction << index_bits & ONE - 1
    return fraction >> FRACTION_BITS - index_bits, within >> FRACTION_BITS - LOW_BITS


@cache
def squares() -> Array:
    """x² / 2^19 of each 17-bit x, from partial products that are cut off before they are added."""
    x = np.arange(1 << LOW_BITS)
    total = np.zeros_like(x)
    for bit in range(LOW_BITS):
        total += np.where(x >> bit & 1, x >> LOW_BITS + 1 - bit, 0)
    squared: Array = (total >> 1).astype(np.float64)
    return squared


@cache
def _columns(function: Interpolation) -> Array:
    """c0 with the bias, c1 and c2 (3, intervals) as f64, shifted to their places."""
    c0, c1, c2 = np.array(function.text.split(), np.int64).reshape(-1, 3).T
    columns = ((c0 << function.c0_shift) + function.bias, c1, c2 << function.square_shift)
    return np.array(columns, np.float64)


def parts(x: Array) -> tuple[Array, Array]:
    """Exponent and fraction of |x|; the exponent is -127 for subnormal numbers and zeros."""
    raw = x.view(np.int32)
    return (raw >> FRACTION_BITS & 0xFF) - BIAS, raw & ONE - 1


def _scaled(total: Array, fraction_bits: int, exponent: Array) -> Array:
    """total / 2^fraction_bits, cut off, a significand from 2^23 to 2^24, times a power of two.

    `exponent` is the result's while the significand is below 2^24. Subnormal results become 0.
    """
    significand = (total * 2.0**-fraction_bits).astype(np.int32)
    bits = (exponent + (BIAS - 1) << FRACTION_BITS) + significand
    return np.asarray(np.where(bits < ONE, 0, bits)).view(np.float32)


def _truncated(fixed: Array, fraction_bits: int) -> Array:
    """fixed / 2^fraction_bits as f32, cut off; subnormal results do not occur."""
    exact = fixed * 2.0**-fraction_bits
    return (exact.view(np.int64) & KEPT_OF_F64).view(np.float64).astype(np.float32)


def _except(ordinary: Array, y: Array, x: Array, exact: Callable[[Array], Array]) -> Array:
    """y, but the exact function where x is not ordinary: zeros, infinities, NaN."""
    if ordinary.all():
        return y
    return np.where(ordinary, y, canonical_nan(exact(x)))


def _around(
    unit: Callable[[Array], Array],
    where: Callable[[Array], Array],
    factor: float,
    restore: Callable[[Array], Array],
) -> Callable[[Array], Array]:
    """A function whose argument is multiplied where the unit would take or give a subnormal."""

    def whole(x: Array) -> Array:
        scaled = where(x)
        if not scaled.any():
            return unit(x)
        y = unit(x * np.where(scaled, np.float32(factor), np.float32(1)))
        return np.where(scaled, restore(y), y)

    return whole


# -- the unit's functions --------------------------------------------------------------------------
def _ex2(x: Array) -> Array:
    """2^x. What lies below 2^-23 in x is cut off; a negative x is then complemented to one's."""
    bounded = np.clip(np.where(np.isnan(x), 0, x), -127, 128)
    fixed = np.trunc(bounded.astype(np.float64) * ONE).astype(np.int32)
    fixed -= (fixed < 0) & (fixed & ONE - 1 != 0)
    y = _scaled(EX2(fixed & ONE - 1), 15, fixed >> FRACTION_BITS)
    return canonical_nan(np.where(np.isnan(x), x, y))


def _lg2(x: Array) -> Array:
    """log2 x: the exponent and the table's value are added before anything is cut off."""
    exponent, fraction = parts(x)
    part = np.where(fraction | exponent, np.floor(LG2(fraction) / 4), 0)
    logarithm = part + exponent * 2.0**36
    y = np.copysign(_truncated(np.where(logarithm < 0, -1 - logarithm, logarithm), 36), logarithm)
    return _except((x > 0) & (x < np.inf), y.astype(np.float32), x, np.log2)


def _rcp(x: Array) -> Array:
    """1 / x."""
    exponent, fraction = parts(x)
    y = np.copysign(_scaled(RCP(fraction, 7), 16, -1 - exponent), x)
    return _except((x != 0) & np.isfinite(x), y, x, np.reciprocal)


def halved(x: Array) -> tuple[Array, Array, Array]:
    """⌊exponent / 2⌋, the fraction, and the first row of even or odd exponents."""
    exponent, fraction = parts(x)
    return exponent >> 1, fraction, (exponent & 1) << 6


def _rsq(x: Array) -> Array:
    """1 / √x; powers of 4 are exact."""
    half, fraction, first = halved(x)
    total = np.where(fraction | first, RSQ(fraction, 6, first), 2.0**40)
    y = _scaled(total, 16, -1 - half)
    return _except((x > 0) & (x < np.inf), y, x, lambda x: np.reciprocal(np.sqrt(x)))


def _sqrt(x: Array) -> Array:
    """√x."""
    half, fraction, first = halved(x)
    return _except((x > 0) & (x < np.inf), _scaled(SQRT(fraction, 6, first), 17, half), x, np.sqrt)


def quarters(x: Array) -> Array:
    """|x| in quarters of a turn, modulo whole turns, cut off to 23 bits."""
    turns = np.abs(x.astype(np.float64)) * TURNS_PER_RADIAN  # exact
    turns = np.where(np.isfinite(x), turns, 0)
    nearest = turns.astype(np.float32)
    towards_zero = (nearest.view(np.int32) - (nearest > turns)).astype(np.int32).view(np.float32)
    return (np.fmod(towards_zero, 1).astype(np.float64) * (4 * ONE)).astype(np.int32)


def folded(angle: Array) -> Array:
    """Its place in the quarter; every other is walked backwards, by complement to one's."""
    place_in_quarter: Array = (angle ^ -(angle >> FRACTION_BITS & 1)) & ONE - 1
    return place_in_quarter


def _sine(angle: Array, negative: Array | bool, x: Array) -> Array:
    """± the sine of an angle in quarters of a turn."""
    y = _truncated(SIN(folded(angle)), 37)
    y = np.where((angle >> FRACTION_BITS + 1 & 1) ^ negative, -y, y)
    return _except(np.isfinite(x), y, x, np.sin)


def _subnormal(x: Array) -> Array:
    return np.abs(x) < LEAST


# -- PTX -------------------------------------------------------------------------------------------
ex2 = _around(_ex2, lambda x: x < -126, 0.5, np.square)
lg2 = _around(_lg2, _subnormal, 2.0**24, lambda y: y - np.float32(24))
rsqrt = _around(_rsq, _subnormal, 2.0**24, lambda y: y * np.float32(2.0**12))
sqrt = _around(_sqrt, _subnormal, 2.0**24, lambda y: y * np.float32(2.0**-12))
rcp = _around(
    _around(_rcp, lambda x: np.abs(x) > 1 / LEAST, 0.25, lambda y: y * np.float32(0.25)),
    _subnormal,
    2.0**24,
    lambda y: y * np.float32(2.0**24),
)


def tanh(x: Array) -> Array:
    """The hyperbolic tangent: x below 2^-8, 1 from 8 on."""
    exponent, fraction = parts(x)
    binade = np.clip(exponent - TANH_BINADES, 0, len(TANH_FIRST) - 1)
    fixed = TANH(fraction, TANH_INDEX_BITS.take(binade), TANH_FIRST.take(binade))
    beyond = exponent >= TANH_BINADES + len(TANH_FIRST)
    y = np.where(beyond, np.float32(1), _truncated(fixed, 39))
    return canonical_nan(np.where((exponent < TANH_BINADES) | np.isnan(x), x, np.copysign(y, x)))


def sin(x: Array) -> Array:
    """The sine of x in radians; the argument's reduction keeps 2^-25 of a turn."""
    return _sine(quarters(x), np.signbit(x), x)


def cos(x: Array) -> Array:
    """The cosine of x in radians, which is the sine a quarter of a turn later."""
    return _sine(quarters(x) + ONE, False, x)
