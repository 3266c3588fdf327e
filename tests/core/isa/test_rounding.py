"""Single rounding, checked against rational arithmetic and ml_dtypes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdsl_core.isa.rounding import fma, quiet_nan, to_integer, to_nearest, to_tf32, to_zero

NARROW: list[Any] = [
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]


def _finite(dtype: Any) -> Any:
    """All finite values of a type of at most 16 bits, ascending, as exact float64."""
    word = np.uint8 if np.dtype(dtype).itemsize == 1 else np.uint16
    with np.errstate(invalid="ignore"):
        every = np.arange(np.iinfo(word).max + 1).astype(word).view(dtype).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


@pytest.mark.parametrize("dtype", NARROW)
def test_values_and_midpoints_round_to_even(dtype: Any) -> None:
    """Values map to themselves; just beside a midpoint decides, also 2^-40 away from it."""
    v = _finite(dtype)
    v = v[v > 0]
    low, high = v[:-1], v[1:]
    middle = (low + high) / 2
    np.testing.assert_array_equal(to_nearest(v, dtype).astype(np.float64), v)
    for scale, expected in ((1 - 2.0**-40, low), (1 + 2.0**-40, high)):
        np.testing.assert_array_equal(to_nearest(middle * scale, dtype).astype(float), expected)
    bits = to_nearest(middle, dtype).view(np.uint8 if v.size < 256 else np.uint16)
    assert (bits % 2 == 0).all()
    np.testing.assert_array_equal(to_zero(np.nextafter(high, 0), dtype).astype(float), low)
    np.testing.assert_array_equal(to_zero(-high, dtype).astype(float), -high)


@pytest.mark.parametrize("dtype", NARROW)
def test_float32_agrees_with_ml_dtypes(dtype: Any) -> None:
    """From float32 the nearest value is the one that ml_dtypes finds."""
    bits = np.random.default_rng(1).integers(0, 2**32, 20000, dtype=np.uint32)
    x = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(dtype)
    np.testing.assert_array_equal(to_nearest(x, dtype).astype(float), expected.astype(float))


@pytest.mark.parametrize("dtype", NARROW)
def test_overflow(dtype: Any) -> None:
    """satfinite stops at the largest number, and so does rounding toward zero from finite."""
    largest = _finite(dtype)[-1]
    x = np.array([1e39, -np.inf, np.nan])
    saturated = to_nearest(x, dtype, satfinite=True).astype(float)
    np.testing.assert_array_equal(saturated, [largest, -largest, np.nan])
    assert to_zero(x, dtype).astype(float)[0] == largest


def test_nan_of_f64_becomes_quiet() -> None:
    """Sign and the upper bits of the payload stay, as on an H200."""
    x = np.array([0x7FF0000000000001, 0xFFF123456789ABCD, 0x3FF0000000000000], np.uint64)
    wide = x.view(np.float64)
    f32 = quiet_nan(wide, wide.astype(np.float32))
    assert f32.view(np.uint32).tolist() == [0x7FC00000, 0xFFC91A2B, 0x3F800000]
    f16 = quiet_nan(wide, wide.astype(np.float16))
    assert f16.view(np.uint16).tolist() == [0x7E00, 0xFE48, 0x3C00]


def test_tf32_ties_go_away() -> None:
    """A tie goes away from zero, infinities stay, NaN keeps its upper bits, or becomes infinite."""
    x = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf, np.nan], np.float32)
    y = to_tf32(x)
    np.testing.assert_array_equal(y, [1 + 2.0**-10, -1 - 2.0**-10, 1, np.inf, np.nan])
    nan = np.array([0x7FC00000, 0xFFAA67DD, 0x7F801000], np.uint32).view(np.float32)
    assert to_tf32(nan).view(np.uint32).tolist() == [0x7FC00000, 0xFFAA6000, 0x7F800000]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_to_integer_saturates(dtype: Any) -> None:
    """Out of range saturates, NaN is 0, and each mode rounds its way."""
    info = np.iinfo(dtype)
    x = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 2.5])
    expected = [info.max, info.min, 0, info.max, info.min, 2]
    assert to_integer(x, dtype).tolist() == expected
    assert to_integer(x, dtype, "rpi")[5] == 3
    assert to_integer(x, dtype, "rni")[5] == 2


def _float32(bits: list[int]) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


words = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(words, st.integers(-3, 3))
def test_fma_float32_rounds_once(bits: list[int], nudge: int) -> None:
    """fma equals the exact rational rounded once, also where c nearly cancels the product."""
    a, b, c = _float32(bits)
    if not np.isfinite([a, b, c]).all():
        return
    with np.errstate(over="ignore"):
        near = -np.float32(np.float64(a) * np.float64(b))
    for addend in (c, near) if np.isfinite(near) else (c,):
        z = np.array([addend]) * np.float32(1 + nudge * 2.0**-20)
        if not np.isfinite(z).all():
            continue
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(z[0]))
        got = fma(np.array([a]), np.array([b]), z)
        assert _nearest_float32(exact) == got[0]


@pytest.mark.parametrize("scale", [30, 127, -126, -127, -130])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_fma_float32_just_beside_a_midpoint(scale: int, last: int, sign: int) -> None:
    """A sum that differs from a midpoint by less than float64 holds goes to its own side."""
    unit = max(scale - 23, -149)
    c = np.array([2.0**scale + last * 2.0**unit], np.float32)
    half, e = unit // 2, 2.0**-23
    for a, b in ((1 - e, 1 + e), (1, 1), (1 + e, 1 + e)):  # below, at and above
        x = np.array([sign * a * 2.0**half], np.float32)
        y = np.array([b * 2.0 ** (unit - 1 - half)], np.float32)
        exact = Fraction(float(x[0])) * Fraction(float(y[0])) + Fraction(float(c[0]))
        assert fma(x, y, c)[0] == _nearest_float32(exact)


def _nearest_float32(exact: Fraction) -> float:
    """Round a rational to float32 by integer arithmetic."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - 23, -149)
    value = round(exact / unit) * unit  # Python rounds halves to even
    if abs(value) >= 2**128:
        return float("inf") if value > 0 else float("-inf")
    return float(value)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_fma_of_16_bits_agrees_with_rationals(dtype: Any) -> None:
    """The 16-bit fma is the value nearest to the exact sum."""
    x = np.random.default_rng(2).standard_normal((3, 200)).astype(dtype)
    values = _finite(dtype)
    got = fma(x[0], x[1], x[2]).astype(float)
    for a, b, c, d in zip(*x.astype(float), got, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        i = int(np.searchsorted(values, d))
        distance = [abs(Fraction(float(v)) - exact) for v in values[i - 1 : i + 2]]
        assert distance[1] == min(distance)


def test_fma_float64() -> None:
    """Float64 fma keeps what the product's rounding would lose, and overflows to infinity."""
    e = 2.0**-52
    a = np.array([1 + e, 1e300, -0.0])
    b = np.array([1 - e, 1e300, 1.0])
    c = np.array([-1.0, 0.0, -0.0])
    got = fma(a, b, c)
    assert got[0] == -(e**2)
    assert got[1] == np.inf
    assert np.signbit(got[2])


def test_fma_float64_of_infinities() -> None:
    """A product of finite numbers is finite, however large; one of infinities is not."""
    far = 1e300
    a = np.array([far, -far, far, np.inf, np.inf, 0.0, 1.0])
    b = np.array([far, far, far, 2.0, 0.0, np.inf, 1.0])
    c = np.array([-np.inf, np.inf, np.inf, -np.inf, 1.0, 1.0, np.nan])
    want = np.array([-np.inf, np.inf, np.inf, *[np.nan] * 4])
    np.testing.assert_array_equal(fma(a, b, c), want)
