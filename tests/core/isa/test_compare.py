"""Comparisons follow IEEE order; selection picks by a truth value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import ALL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Kernel, Value
from kdsl_core.isa.compare import compare, select

PYTHON = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def pairs(dtype: DType) -> tuple[Any, Any]:
    """Every pair of a few values of a type."""
    values = [0, 1, 2, 100, -1, -100] if dtype.kind != "u" else [0, 1, 2, 2**dtype.bits - 1]
    if dtype.is_float:
        values = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan]
    grid = np.array(values, object if dtype is u64 else None)
    x, y = np.meshgrid(grid, grid)
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("dtype", [i16, i32, i64, u64, f16, bf16, f32, f64])
@pytest.mark.parametrize("name", PYTHON)
def test_order_is_that_of_python(name: str, dtype: DType) -> None:
    """All comparisons with NaN are false but ne; −0 equals +0."""
    x, y = pairs(dtype)
    traced = Traced(lambda b, p, q: compare(b, name, p, q), dtype, dtype)
    expected = [bool(PYTHON[name](p, q)) for p, q in zip(x, y, strict=True)]
    assert traced(x, y).tolist() == expected


def test_truth_values_compare_for_equality() -> None:
    """eq and ne of truth values; they have no order."""
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name, expected in (("eq", x == y), ("ne", x != y)):
        traced = Traced(lambda b, p, q, name=name: compare(b, name, p, q), boolean, boolean)
        np.testing.assert_array_equal(traced(x, y), expected)
    with pytest.raises(TypeMismatch, match="K255"):
        Traced(lambda b, p, q: compare(b, "lt", p, q), boolean, boolean)


def test_types_must_agree() -> None:
    """Different types and 8-bit types are refused."""
    for x, y in ((i32, i64), (i8, i8)):
        with pytest.raises(TypeMismatch, match=f"got {x} and {y}"):
            Traced(lambda b, p, q: compare(b, "lt", p, q), x, y)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_select_picks_per_lane(dtype: DType) -> None:
    """The first value where the condition holds, for every type."""
    condition = np.array([True, False, True, False])
    x, y = np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])
    traced = Traced(lambda b, *v: select(b, *v), boolean, dtype, dtype)
    expected = np.where(condition, x, y).astype(dtype.numpy)
    np.testing.assert_array_equal(traced(condition, x, y), expected)


def test_known_selections_need_no_instruction() -> None:
    """A constant condition, or equal values, decide while tracing."""
    b = Builder(Kernel("k", (1, 1, 1)))
    p, x, y = Value(boolean), Value(i32), Value(i32)
    assert select(b, Const(boolean, True), x, y) is x
    assert select(b, Const(boolean, False), x, y) is y
    assert select(b, p, x, x) is x
    assert select(b, p, Const(i32, 3), Const(i32, 3)) == Const(i32, 3)
    assert not b.block.ops


def test_select_checks_types() -> None:
    """The condition is a truth value and the values share a type."""
    for types in ((i32, i32, i32), (boolean, i32, f32)):
        with pytest.raises(TypeMismatch, match="K256"):
            Traced(lambda b, *v: select(b, *v), *types)
