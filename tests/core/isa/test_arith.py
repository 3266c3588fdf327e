"""Arithmetic agrees with exact arithmetic on integers, and with single rounding on floats."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.isa.bench import Traced
from kdsl_core.dtypes import (
    DType,
    bf16,
    boolean,
    e4m3,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u16,
    u32,
    u64,
)
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Kernel, Value
from kdsl_core.ir.value import normalise
from kdsl_core.isa.arith import binary, fma, mul_wide, unary
from kdsl_core.isa.register import declare

INTS = [i16, i32, i64, u16, u32, u64]
FLOATS = [f16, bf16, f32, f64]


def of_binary(name: str, x: DType, y: DType | None = None) -> Traced:
    """`binary` on two registers."""
    return Traced(lambda b, p, q: binary(b, name, p, q), x, y or x)


def of_unary(name: str, dtype: DType) -> Traced:
    """`unary` on a register."""
    return Traced(lambda b, p: unary(b, name, p), dtype)


def samples(dtype: DType, seed: int = 0, count: int = 400) -> Any:
    """Random bit patterns, with the extreme and small numbers among them."""
    rng = np.random.default_rng(seed)
    word = f"u{dtype.numpy.itemsize}"
    bits = (
        rng.integers(0, 1 << dtype.bits, count, dtype=np.uint64, endpoint=False)
        if (dtype.bits < 64)
        else rng.integers(0, 2**63, count, dtype=np.uint64) * np.uint64(2)
    )
    values = bits.astype(word).view(dtype.numpy)
    special = [0, 1, 2, 3, 5, 7] if dtype.is_int else [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan]
    values[: len(special)] = special
    return values


def truncated(x: int, y: int) -> int:
    """Division toward zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


EXACT: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul": lambda x, y, bits: x * y,
    "mulhi": lambda x, y, bits: (x * y) >> bits,
    "div": lambda x, y, bits: truncated(x, y),
    "rem": lambda x, y, bits: x - y * truncated(x, y),
    "min": lambda x, y, bits: min(x, y),
    "max": lambda x, y, bits: max(x, y),
    "and": lambda x, y, bits: x & y,
    "or": lambda x, y, bits: x | y,
    "xor": lambda x, y, bits: x ^ y,
}


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", EXACT)
def test_integers_are_exact_and_wrap(name: str, dtype: DType) -> None:
    """The result is the exact one modulo 2^bits."""
    x, y = samples(dtype, 1), samples(dtype, 2)[::-1]
    if name in ("div", "rem"):
        y = np.where(y == 0, y.dtype.type(1), y)
    expected = [
        normalise(dtype, EXACT[name](int(p), int(q), dtype.bits)) for p, q in zip(x, y, strict=True)
    ]
    assert of_binary(name, dtype)(x, y).tolist() == expected


@pytest.mark.parametrize("count", [u32, i32])
@pytest.mark.parametrize("dtype", INTS)
def test_shifts_clamp_their_count(dtype: DType, count: DType) -> None:
    """Counts from the width on shift everything out, and are reported."""
    counts = np.array([0, 1, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100])
    x = np.resize(samples(dtype)[10:13], 21)
    y = np.repeat(counts, 3)
    for name, exact in (("shl", lambda p, q: p << q), ("shr", lambda p, q: p >> q)):
        shift = of_binary(name, dtype, count)
        expected = [normalise(dtype, exact(int(p), int(q))) for p, q in zip(x, y, strict=True)]
        assert shift(x, y).tolist() == expected
        ((code, message, where),) = shift.hazards
        assert code == "value" and f"0..{dtype.bits - 1}" in message
        np.testing.assert_array_equal(where[0], y >= dtype.bits)


def test_division_by_zero_is_reported() -> None:
    """The lanes whose divisor is 0 are named; a constant division by 0 stays an operation."""
    divide = of_binary("div", i32)
    assert divide(np.array([7, -7]), np.array([0, 2])).tolist()[1] == -3
    ((code, _, where),) = divide.hazards
    assert code == "value" and where.tolist() == [[True, False]]
    b = Builder(Kernel("k", (1, 1, 1)))
    assert isinstance(binary(b, "div", Const(i32, 1), Const(i32, 0)), Value)


@pytest.mark.parametrize("dtype", [f16, bf16, f32])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_floats_round_once(name: str, dtype: DType) -> None:
    """Each finite result is the nearest to the exact one."""
    x, y = samples(dtype, 3), samples(dtype, 4)
    with np.errstate(all="ignore"):
        wide = [v.astype(np.float64) for v in (x, y)]
        got = of_binary(name, dtype)(x, y).astype(np.float64)
    exact = {
        "add": lambda p, q: p + q,
        "sub": lambda p, q: p - q,
        "mul": lambda p, q: p * q,
        "div": lambda p, q: p / q,
    }[name]
    checked = 0
    for p, q, r in zip(*wide, got, strict=True):
        if not np.isfinite([p, q, r]).all() or (name == "div" and q == 0):
            continue
        checked += 1
        truth = exact(Fraction(p), Fraction(q))
        with np.errstate(all="ignore"):
            ends = [
                Fraction(float(np.nextafter(dtype.numpy.type(r), dtype.numpy.type(e))))
                for e in (-1e30, 1e30)
                if np.isfinite(float(np.nextafter(dtype.numpy.type(r), dtype.numpy.type(e))))
            ]
        assert all(abs(truth - Fraction(r)) <= abs(truth - end) for end in ends)
    assert checked > 100


@given(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_fma_rounds_once(bits: list[int]) -> None:
    """f32 fma is the f32 nearest to the exact x·y + z."""
    x, y, z = (np.array([v], np.uint32).view(np.float32) for v in bits)
    got = Traced(lambda b, *v: fma(b, *v), f32, f32, f32)(x, y, z)[0]
    if not np.isfinite([x[0], y[0], z[0], got]).all():
        return
    truth = Fraction(float(x[0])) * Fraction(float(y[0])) + Fraction(float(z[0]))
    for end in (np.nextafter(got, np.float32(-np.inf)), np.nextafter(got, np.float32(np.inf))):
        if np.isfinite(end):
            error = abs(truth - Fraction(float(got)))
            assert error <= abs(truth - Fraction(float(end)))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_fma_wraps(dtype: DType) -> None:
    """x·y + z modulo 2^bits."""
    x, y, z = (samples(dtype, seed) for seed in (5, 6, 7))
    got = Traced(lambda b, *v: fma(b, *v), dtype, dtype, dtype)(x, y, z)
    exact = [int(p) * int(q) + int(r) for p, q, r in zip(x, y, z, strict=True)]
    assert got.tolist() == [normalise(dtype, value) for value in exact]


@pytest.mark.parametrize("dtype", FLOATS)
def test_min_and_max_order_zeros_and_skip_nan(dtype: DType) -> None:
    """−0 is below +0; a number is preferred to NaN, except by min_nan and max_nan."""
    x, y = np.array([-0.0, 0.0, np.nan, 1.0, 2.0]), np.array([0.0, -0.0, 3.0, np.nan, -5.0])
    low = of_binary("min", dtype)(x, y).astype(np.float64)
    high = of_binary("max", dtype)(x, y).astype(np.float64)
    assert low.tolist() == [0.0, 0.0, 3.0, 1.0, -5.0] and np.signbit(low[:2]).all()
    assert high.tolist() == [0.0, 0.0, 3.0, 1.0, 2.0] and not np.signbit(high[:2]).any()
    if dtype is not f64:
        for name in ("min_nan", "max_nan"):
            got = of_binary(name, dtype)(x, y).astype(np.float64)
            assert np.isnan(got).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("dtype", [i32, i64, u32, u64])
def test_bit_counts(dtype: DType) -> None:
    """popc, clz and brev are what the binary digits say."""
    x = samples(dtype)
    digits = [f"{int(v) & ((1 << dtype.bits) - 1):0{dtype.bits}b}" for v in x]
    assert of_unary("popc", dtype)(x).tolist() == [d.count("1") for d in digits]
    assert of_unary("clz", dtype)(x).tolist() == [(d + "1").index("1") for d in digits]
    reverse = of_unary("brev", dtype)(x).tolist()
    assert reverse == [normalise(dtype, int(d[::-1], 2)) for d in digits]


def test_mul_wide_keeps_all_bits() -> None:
    """The product of 32-bit numbers has 64 bits."""
    for narrow, wide in ((i32, i64), (u32, u64), (i16, i32), (u16, u32)):
        x, y = samples(narrow, 8), samples(narrow, 9)
        product = Traced(lambda b, *v: mul_wide(b, *v), narrow, narrow)
        assert product.result.dtype is wide
        assert product(x, y).tolist() == [int(p) * int(q) for p, q in zip(x, y, strict=True)]


def test_negation_absolute_value_and_complement() -> None:
    """neg wraps at the lowest integer; abs keeps −0 positive; not flips bits and truth."""
    lowest = -(2**31)
    assert of_unary("neg", i32)(np.array([5, lowest])).tolist() == [-5, lowest]
    assert of_unary("neg", u32)(np.array([1])).tolist() == [2**32 - 1]
    assert not np.signbit(of_unary("abs", f16)(np.array([-0.0]))).any()
    assert of_unary("not", u16)(np.array([1])).tolist() == [0xFFFE]
    assert of_unary("not", boolean)(np.array([True, False])).tolist() == [False, True]
    assert of_binary("copysign", f32)(np.array([3.0]), np.array([-0.0])).tolist() == [-3.0]


@pytest.mark.parametrize("name", ["neg", "abs"])
def test_signs_of_nan(name: str) -> None:
    """NaN of f64 keep sign and payload and become quiet, others become the canonical one."""
    quiet = 1 << 51
    bits = np.array([0xFFF0000000000123, 0x7FF8000000000456, 0xFFFFFFFFFFFFFFFF], np.uint64)
    given = of_unary(name, f64)(bits.view(np.float64))
    assert given.view(np.uint64).tolist() == [word | quiet for word in bits.tolist()]
    given = of_unary(name, f32)(np.array([0xFFC00001, 0x7F800001], np.uint32).view(np.float32))
    assert given.view(np.uint32).tolist() == [0x7FFFFFFF] * 2


def simplify(name: str, dtype: DType, constant: float, left: bool = False) -> tuple[Any, Any]:
    """(traced, whether the input itself came back) for one constant operand."""

    def build(b: Builder, x: Value) -> Any:
        y = Const(u32 if name in ("shl", "shr") else dtype, constant)
        return binary(b, name, y, x) if left else binary(b, name, x, y)

    traced = Traced(build, dtype)
    return traced, traced.result is traced.inputs[0]


@pytest.mark.parametrize(
    ("name", "constant"),
    [*product(("add", "sub", "or", "xor", "shl", "shr"), [0]), *product(("mul", "div"), [1])],
)
def test_neutral_constants_cost_nothing(name: str, constant: int) -> None:
    """The value itself comes back."""
    assert simplify(name, i32, constant)[1]
    assert simplify("and", i32, -1)[1]
    if name in ("add", "mul", "or", "xor"):
        assert simplify(name, i32, constant, left=True)[1]


def test_float_identities_keep_signed_zeros() -> None:
    """x·1, x − 0 and x + (−0) are x; x + 0 and x·0 are not simplified."""
    assert simplify("mul", f32, 1.0)[1] and simplify("sub", f32, 0.0)[1]
    assert simplify("add", f32, -0.0)[1]
    assert not simplify("add", f32, 0.0)[1]
    assert isinstance(simplify("mul", f32, 0.0)[0].result, Value)


def test_deciding_constants_give_constants() -> None:
    """x·0, x & 0, x | −1, x % 1 and x − x need no instruction."""
    for name, constant, expected in (("mul", 0, 0), ("and", 0, 0), ("or", -1, -1), ("rem", 1, 0)):
        assert simplify(name, i32, constant)[0].result == Const(i32, expected)
    assert Traced(lambda b, x: binary(b, "sub", x, x), i32).result == Const(i32, 0)


@pytest.mark.parametrize("dtype", [u32, u64])
def test_powers_of_two_become_shifts(dtype: DType) -> None:
    """Unsigned ·8, /8 and %8 are a shift, a shift and a mask, with the same values."""
    x = samples(dtype)
    for name, op in (("mul", "arith.shl"), ("div", "arith.shr"), ("rem", "arith.and")):
        traced, _ = simplify(name, dtype, 8)
        assert dict(traced.names) == {op: 1}
        assert traced(x).tolist() == of_binary(name, dtype)(x, np.full_like(x, 8)).tolist()


def test_signed_division_by_a_power_of_two_stays() -> None:
    """A shift would round down instead of toward zero."""
    traced, _ = simplify("div", i32, 8)
    assert dict(traced.names) == {"arith.div": 1} and traced(np.array([-1])).tolist() == [0]


def test_constants_fold() -> None:
    """Operations on constants are computed while tracing."""
    b = Builder(Kernel("k", (1, 1, 1)))
    assert binary(b, "add", Const(i32, 2**31 - 1), Const(i32, 1)) == Const(i32, -(2**31))
    assert binary(b, "mul", Const(bf16, 3), Const(bf16, 0.5)) == Const(bf16, 1.5)
    assert fma(b, Const(f32, 2), Const(f32, 3), Const(f32, 4)) == Const(f32, 10)
    assert binary(b, "and", Const(boolean, True), Const(boolean, False)) == Const(boolean, False)
    assert not b.block.ops


def test_equal_operations_are_shared_in_either_order() -> None:
    """x + 4 written twice, also as 4 + x, is one operation."""
    b = Builder(Kernel("k", (1, 1, 1)))
    x, four = Value(i32), Const(i32, 4)
    assert binary(b, "add", x, four) is binary(b, "add", Const(i32, 4), x)


def test_identities_never_return_a_variable() -> None:
    """x + 0 of a variable is its value now, not the variable."""
    b = Builder(Kernel("k", (1, 1, 1)))
    var = declare(b, i32, Const(i32, 1))
    assert isinstance(binary(b, "add", var, Const(i32, 0)), Value)


@pytest.mark.parametrize(
    ("name", "x", "y", "code"),
    [
        ("add", i32, u32, "K254"),
        ("add", i8, i8, "K254"),
        ("mul", e4m3, e4m3, "K254"),
        ("rem", f32, f32, "K254"),
        ("add", boolean, boolean, "K254"),
        ("power", f32, f32, "K253"),
    ],
)
def test_type_errors_name_the_types(name: str, x: DType, y: DType, code: str) -> None:
    """An operation that does not exist is refused with what was got."""
    with pytest.raises(TypeMismatch, match=rf"{name}.*{x}, {y}") as caught:
        of_binary(name, x, y)
    assert caught.value.code == code
