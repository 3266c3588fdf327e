"""Scalars: the facts that they carry, where constants go, and how types meet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kdsl_core import dtypes as dt
from kdsl_core.errors import StagingError, TypeMismatch
from kdsl_core.ir import Kernel, Value
from kdsl_core.lang.numbers import maximum, minimum, where
from kdsl_core.lang.scalar import Scalar, as_scalar, common_type
from kdsl_core.lang.tracer import Tracer, tracing


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel that is being traced."""
    traced = Kernel("k", (32, 1, 1))
    with tracing(Tracer(traced)):
        yield traced


def index(divisor: int = 1, bound: int | None = None) -> Scalar:
    """An i32 of the kernel that is at least 0."""
    return Scalar(Value(dt.i32), divisor=divisor, nonneg=True, bound=bound)


def test_constants_travel_outward(kernel: Kernel) -> None:
    """(x + 3) · 4 + 5 is x · 4 with a static 17 behind it: one operation so far."""
    y = (index() + 3) * 4 + 5
    assert y.plus == 17
    assert [op.name for op in kernel.body.ops] == ["arith.shl"]


def test_equal_expressions_are_computed_once(kernel: Kernel) -> None:
    """Address arithmetic written twice is one operation."""
    x, y = index(), index()
    assert (x * y).operand is (x * y).operand


@pytest.mark.parametrize("extreme", [minimum, maximum])
def test_extremes_and_nan(kernel: Kernel, extreme: Any) -> None:
    """With `nan` floats take the instruction that keeps NaN, f64 a selection, integers the same."""
    for dtype, expected in ((dt.f32, "_nan"), (dt.f64, ""), (dt.i32, "")):
        a, b = Scalar(Value(dtype)), Scalar(Value(dtype))
        before = len(kernel.body.ops)
        extreme(a, b, nan=True)
        found = [op.name for op in kernel.body.ops[before:]]
        assert found[0].endswith(expected)
        assert len(found) == (5 if dtype is dt.f64 else 1)


def test_divisibility_is_proven(kernel: Kernel) -> None:
    """Products multiply divisors, sums take their greatest common divisor."""
    x, y = index(divisor=8), index(divisor=12)
    assert (x * 4).divisor == 32
    assert (x + y).divisor == 4
    assert (x + 2).divisor == 2
    assert (x * y).divisor == 96
    assert (x // 4).divisor == 2


def test_bounds_make_divisions_vanish(kernel: Kernel) -> None:
    """A thread index below 32 divided by 32 is 0, and its remainder is itself."""
    lane = index(bound=32)
    assert (lane % 32) is lane
    assert (lane // 32).operand.value == 0  # type: ignore[union-attr] # the operand is a constant
    assert kernel.body.ops == []


def test_powers_of_two_divide_by_shifts(kernel: Kernel) -> None:
    """Known to be ≥ 0, x // 8 and x % 8 are a shift and a mask."""
    x = index(bound=1024)
    q, r = x // 8, x % 8
    assert (q.bound, r.bound) == (128, 8)
    assert {op.name for op in kernel.body.ops} == {"arith.shr", "arith.and"}


def test_bits_keep_facts(kernel: Kernel) -> None:
    """XOR of values below 16 lies below 16; AND keeps the lower bound and the zeros below."""
    x, y = index(bound=10), index(bound=16)
    assert (x ^ y).bound == 16
    assert (x & 12).bound == 10
    assert (index() & 24).divisor == 8


def test_extremes_keep_facts(kernel: Kernel) -> None:
    """min lies below either bound, max below the larger."""
    x, y = index(bound=10), index()
    assert minimum(x, y).bound == 10
    assert maximum(x, y).bound is None
    assert maximum(x, index(bound=5)).bound == 10
    assert where(True, x, y) is x


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        (dt.i32, dt.i64, dt.i64),
        (dt.u32, dt.i64, dt.i64),
        (dt.f16, dt.f32, dt.f32),
        (dt.bf16, dt.f32, dt.f32),
        (dt.i32, dt.f16, dt.f16),
        (dt.tf32, dt.f32, dt.f32),
    ],
)
def test_types_meet(a: dt.DType, b: dt.DType, common: dt.DType) -> None:
    """Integers widen, an integer meets a float in the float, narrow floats in f32."""
    assert common_type(a, b) is common_type(b, a) is common


@pytest.mark.parametrize(("a", "b"), [(dt.u32, dt.i32), (dt.f16, dt.bf16), (dt.boolean, dt.i32)])
def test_types_that_do_not_meet(a: dt.DType, b: dt.DType) -> None:
    """Where no type holds both, both are named, with the mend."""
    with pytest.raises(TypeMismatch, match=f"{a} and {b}") as caught:
        common_type(a, b)
    assert caught.value.code == "K204"


def test_literals_that_do_not_fit(kernel: Kernel) -> None:
    """A number outside the other side's type is refused with the type's range."""
    byte = Scalar(Value(dt.u8))
    with pytest.raises(TypeMismatch, match="300 does not fit into u8") as caught:
        byte + 300
    assert caught.value.code == "K203"


def test_python_cannot_decide(kernel: Kernel) -> None:
    """bool(), int() and iteration of a kernel value are refused at the author's line."""
    x = index()
    for question, code in ((bool, "K302"), (int, "K303"), (list, "K304")):
        with pytest.raises(StagingError) as caught:
            question(x < 3 if question is bool else x)
        assert caught.value.code == code
        assert caught.value.loc is not None
        assert caught.value.loc.file == __file__


def test_division_words(kernel: Kernel) -> None:
    """`/` is for floats and `//` for integers; each refusal names the other."""
    x, f = index(), Scalar(Value(dt.f32))
    for divide, code in (
        (lambda: x / 2, "K205"),
        (lambda: f // 2, "K206"),
        (lambda: f**0.5, "K207"),
    ):
        with pytest.raises(TypeMismatch) as caught:
            divide()
        assert caught.value.code == code


def test_comparison_with_none(kernel: Kernel) -> None:
    """`x == None` is a question of meta code, and told so."""
    with pytest.raises(TypeMismatch) as caught:
        _ = index() == None  # noqa: E711 — the mistake that is tested
    assert caught.value.code == "K208"


def test_what_is_no_number(kernel: Kernel) -> None:
    """A string is no operand."""
    with pytest.raises(TypeMismatch) as caught:
        as_scalar("1")
    assert caught.value.code == "K202"


def test_words_need_a_kernel() -> None:
    """Outside a kernel there is nothing to append to."""
    with pytest.raises(StagingError) as caught:
        maximum(index(), 3)
    assert caught.value.code == "K301"
