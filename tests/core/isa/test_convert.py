"""Conversions round once and saturate as PTX says; packed words keep each part's bits."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import (
    ALL_DTYPES,
    DType,
    bf16,
    boolean,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Const
from kdsl_core.ir.value import normalise
from kdsl_core.isa.convert import (
    bitcast,
    convert,
    convert_all,
    convert_pack,
    extract,
    insert,
    pack,
    unpack,
    widen_pair,
)

INTS = [i8, i16, i32, i64, u8, u16, u32, u64]
NARROW = [dtype for dtype in ALL_DTYPES if dtype.bits in (8, 16)]


def conversion(source: DType, target: DType, **how: Any) -> Traced:
    """`convert` of a register."""
    return Traced(lambda b, x: convert(b, x, target, **how), source)


def every(dtype: DType) -> Any:
    """All values of a narrow type, or many of a wide one."""
    if dtype.bits <= 16:
        word = np.uint8 if dtype.bits == 8 else np.uint16
        return np.arange(1 << dtype.bits).astype(word).view(dtype.numpy)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, 1000 * dtype.bytes, np.uint8).view(dtype.numpy)


@pytest.mark.parametrize(("source", "target"), [*product(ALL_DTYPES, ALL_DTYPES)])
def test_every_pair_keeps_small_numbers(source: DType, target: DType) -> None:
    """0 and 1 survive every conversion, in registers and as constants."""
    zero_one = np.array([0, 1])
    assert conversion(source, target)(zero_one).astype(np.float64).tolist() == [0.0, 1.0]
    constant = Traced(lambda b, x: convert(b, Const(source, 1), target), f32)
    assert constant.result == Const(target, 1)


@pytest.mark.parametrize(("source", "target"), [*product(INTS, INTS)])
def test_integers_wrap_or_saturate(source: DType, target: DType) -> None:
    """Without saturation the value modulo 2^bits, with it the nearest one."""
    x = every(source)
    wrapped = [normalise(target, int(v)) for v in x]
    assert conversion(source, target)(x).tolist() == wrapped
    info = np.iinfo(target.numpy)
    clipped = [min(max(int(v), int(info.min)), int(info.max)) for v in x]
    assert conversion(source, target, saturate=True)(x).tolist() == clipped


@pytest.mark.parametrize("source", [f16, bf16, f32, f64, e4m3, e5m2])
@pytest.mark.parametrize("target", INTS)
def test_floats_become_integers_toward_zero(source: DType, target: DType) -> None:
    """Numbers are truncated, numbers outside saturate."""
    x = every(source)
    with np.errstate(invalid="ignore"):
        x = x[~np.isnan(x.astype(np.float64))]
    info = np.iinfo(target.numpy)
    expected = []
    for v in x.astype(np.float64).tolist():
        bounded = min(max(v, float(info.min)), float(info.max))
        expected.append(min(max(int(bounded), int(info.min)), int(info.max)))
    assert conversion(source, target)(x).tolist() == expected


def test_nan_becomes_the_integer_that_ptx_states() -> None:
    """0 in narrow conversions, the sign bit alone in 64-bit ones."""
    nan = np.array([np.nan])
    assert conversion(f32, i32)(nan).tolist() == [0]
    assert conversion(f32, i64)(nan).tolist() == [-(2**63)]
    assert conversion(f64, u32)(nan).tolist() == [2**31]


@pytest.mark.parametrize("source", [f16, f32, f64])
def test_rounding_modes_to_integers(source: DType) -> None:
    """rn to even, rz toward zero, rm down, rp up."""
    x = np.array([2.5, 3.5, -2.5, -0.25])
    expected = {"rn": [2, 4, -2, 0], "rz": [2, 3, -2, 0], "rm": [2, 3, -3, -1], "rp": [3, 4, -2, 0]}
    for mode, values in expected.items():
        assert conversion(source, i32, rounding=mode)(x).tolist() == values


@pytest.mark.parametrize(
    ("source", "target", "modes"),
    [
        (f64, f32, ("rn", "rz", "rm", "rp")),
        (i64, f32, ("rn", "rz", "rm", "rp")),
        (u64, f64, ("rn", "rz", "rm", "rp")),
        (f32, f16, ("rn", "rz")),
        (f32, bf16, ("rn", "rz")),
        (i32, f16, ("rn", "rz")),
    ],
)
def test_rounding_modes_bracket_the_value(
    source: DType, target: DType, modes: tuple[str, ...]
) -> None:
    """The value lies between the result and the neighbour that the mode would have skipped."""
    with np.errstate(invalid="ignore"):
        x = every(source)
        x = x[np.abs(x.astype(np.float64)) < (3e4 if target is f16 else 1e38)]
    for mode in modes:
        got = conversion(source, target, rounding=mode)(x)
        for v, r in zip(x.tolist(), got, strict=True):
            below, above = (float(np.nextafter(r, got.dtype.type(e))) for e in (-np.inf, np.inf))
            low, high = _accepted(mode, v, below, float(r), above)
            assert low <= v <= high and (v == float(r) or v not in (below, above))


def _accepted(
    mode: str, value: float, below: float, result: float, above: float
) -> tuple[Fraction | float, Fraction | float]:
    """The interval of values that the mode rounds to `result`."""
    if mode == "rn":
        exact = Fraction(result)
        return (Fraction(below) + exact) / 2, (exact + Fraction(above)) / 2
    down = mode == "rm" or (mode == "rz" and value > 0)
    return (result, above) if down else (below, result)


def test_bf16_is_the_upper_half_of_f32() -> None:
    """bf16 → f32 is exact, and back again the identity on every number."""
    x = every(bf16)
    x = x[~np.isnan(x.astype(np.float32))]
    wide = conversion(bf16, f32)(x)
    np.testing.assert_array_equal(wide.view(np.uint32) >> 16, x.view(np.uint16))
    np.testing.assert_array_equal(conversion(f32, bf16)(wide).view(np.uint16), x.view(np.uint16))


@pytest.mark.parametrize("target", [e4m3, e5m2])
def test_fp8_saturates(target: DType) -> None:
    """Numbers beyond the range become its end; fp8 → f32 → fp8 changes nothing."""
    limit = 448.0 if target is e4m3 else 57344.0
    x = np.array([1e9, -1e9, np.inf])
    assert conversion(f32, target)(x).astype(np.float64).tolist() == [limit, -limit, limit]
    values = every(target)
    values = values[np.isfinite(values.astype(np.float32))]
    back = conversion(f32, target)(conversion(target, f32)(values))
    np.testing.assert_array_equal(back.view(np.uint8), values.view(np.uint8))


def test_tf32_keeps_ten_bits() -> None:
    """f32 → tf32 → f32 clears 13 bits, ties away from zero."""
    x = np.array([0x3F801000, 0x3F800FFF], np.uint32).view(np.float32)
    back = Traced(lambda b, v: convert(b, convert(b, v, tf32), f32), f32)(x)
    assert back.view(np.uint32).tolist() == [0x3F802000, 0x3F800000]


def test_truth_of_numbers() -> None:
    """Everything but zero is true, NaN too."""
    x = np.array([0.0, -0.0, 0.5, np.nan])
    for source in (f16, bf16, f32, f64, e5m2):
        assert conversion(source, boolean)(x).tolist() == [False, False, True, True]
    assert conversion(i8, boolean)(np.array([0, -128])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("source", "target", "how"),
    [
        (f32, f16, {"saturate": True}),
        (f32, bf16, {"rounding": "rm"}),
        (f32, tf32, {"rounding": "rz"}),
        (f32, f16, {"rounding": "nearest"}),
        (i32, f32, {"saturate": True}),
    ],
)
def test_impossible_conversions_are_refused(source: DType, target: DType, how: Any) -> None:
    """A rounding or saturation that the pair lacks is an error that names the pair."""
    with pytest.raises(TypeMismatch, match=f"K257.*{source} to {target}"):
        conversion(source, target, **how)


@pytest.mark.parametrize(("source", "target"), [*product(ALL_DTYPES, ALL_DTYPES)])
def test_bitcast_keeps_the_bits(source: DType, target: DType) -> None:
    """Same size: same bytes; other sizes and truth values are refused."""
    if source is not target and (source.bits != target.bits or boolean in (source, target)):
        with pytest.raises(TypeMismatch, match="K258"):
            Traced(lambda b, x: bitcast(b, x, target), source)
        return
    x = every(source) if source is not boolean else np.array([True, False])
    assert Traced(lambda b, v: bitcast(b, v, target), source)(x).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", NARROW)
def test_packed_words_hold_their_parts(dtype: DType) -> None:
    """pack is the memory image, little end first; unpack, extract and insert agree with it."""
    count = 32 // dtype.bits
    flat = every(dtype)[: (1 << dtype.bits) // count * count].reshape(-1, count)
    parts = [np.ascontiguousarray(flat[:, i]) for i in range(count)]
    words = np.ascontiguousarray(flat).view(np.uint32)[:, 0]
    packed = Traced(lambda b, *v: pack(b, v), *[dtype] * count)
    np.testing.assert_array_equal(packed(*parts), words)
    for i in range(count):
        taken = Traced(lambda b, x, i=i: extract(b, x, dtype, i), u32)(words)
        assert taken.dtype == dtype.numpy and taken.tobytes() == parts[i].tobytes()
        again = Traced(lambda b, x, i=i: unpack(b, x, dtype)[i], u32)(words)
        assert again.tobytes() == parts[i].tobytes()
        changed = np.ascontiguousarray(flat.copy())
        changed[:, i] = parts[0][::-1]
        put = Traced(lambda b, x, p, i=i: insert(b, x, p, i), u32, dtype)
        np.testing.assert_array_equal(put(words, parts[0][::-1]), changed.view(np.uint32)[:, 0])


@pytest.mark.parametrize("dtype", [f16, bf16, e4m3, e5m2])
def test_pairs_convert_like_single_values(dtype: DType) -> None:
    """convert_pack rounds each f32 as convert does; the first lies in the lower bits."""
    rng = np.random.default_rng(1)
    low, high = rng.standard_normal((2, 500)).astype(np.float32) * 300
    both = Traced(lambda b, x, y: convert_pack(b, x, y, dtype), f32, f32)
    single = conversion(f32, dtype)
    expected = np.stack([single(low), single(high)], 1)
    word = np.uint32 if dtype.bits == 16 else np.uint16
    np.testing.assert_array_equal(both(low, high), expected.view(word)[:, 0])


@pytest.mark.parametrize("dtype", [f16, e4m3, i8])
def test_whole_words_from_f32(dtype: DType) -> None:
    """convert_all fills a u32 with as many values as fit."""
    count = 32 // dtype.bits
    values = np.arange(count, dtype=np.float32) - 1
    word = Traced(lambda b, *v: convert_all(b, v, dtype), *[f32] * count)
    assert word(*values[:, None]).view(dtype.numpy).astype(np.float32).tolist() == values.tolist()


@pytest.mark.parametrize("dtype", [e4m3, e5m2])
def test_fp8_pairs_widen_exactly(dtype: DType) -> None:
    """Two fp8 become the same two numbers in f16."""
    x = np.arange(1 << 16, dtype=np.uint16)[::37].copy()
    wide = Traced(lambda b, v: widen_pair(b, v, dtype), u16)(x).view(np.float16)
    np.testing.assert_array_equal(wide, x.view(dtype.numpy).astype(np.float16))


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: pack(b, (x, x)),
        lambda b, x: unpack(b, x, f32),
        lambda b, x: extract(b, x, bf16, 2),
        lambda b, x: convert_pack(b, x, x, i8),
        lambda b, x: widen_pair(b, x, f16),
    ],
)
def test_packing_errors(build: Any) -> None:
    """What does not fill a word, or is not in it, is refused."""
    with pytest.raises(TypeMismatch, match="K259"):
        Traced(build, u32)
