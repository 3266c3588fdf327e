"""When sums of a tensor core take the compiled loop, and what it gives."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.isa.ways import NUMBA, only
from kdsl_core.isa.compiled_sums import CompiledSums
from kdsl_core.isa.tensor_core import accumulate_products

LOOP = "kdsl_core.isa.tensor_core_loop"
TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], spread: int, dtype: Any) -> Any:
    """Numbers whose exponents reach that far from 0, subnormal ones and zeros among them."""
    found = rng.standard_normal(shape) * np.ldexp(1.0, rng.integers(-spread, spread + 1, shape))
    found[rng.random(shape) < 0.1] = 0
    with np.errstate(over="ignore"):
        rounded = found.astype(dtype)
    return np.where(np.isfinite(rounded.astype(np.float32)), rounded, dtype(1))


@NUMBA
@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 4), batch=st.integers(1, 5), m=st.integers(1, 40), n=st.integers(1, 300),
    spread=st.sampled_from([0, 2, 12, 40]), dtype=st.sampled_from(TYPES), seed=st.integers(0, 999),
)  # fmt: skip
def test_the_loop_gives_the_bits_of_numpy(
    steps: int, batch: int, m: int, n: int, spread: int, dtype: Any, seed: int
) -> None:
    """Any sizes and numbers, also where the narrow way is not exact and neither loop is taken."""
    rng, k = np.random.default_rng(seed), 32 // np.dtype(dtype).itemsize
    a, b = (numbers(rng, (steps, batch, rows, k), spread, dtype) for rows in (m, n))
    c = numbers(rng, (batch, m, n), 2 * spread, np.float32)
    found = []
    for way in ("NumPy", "numba"):
        with only(way):
            found.append(accumulate_products(a, b, c, "wgmma").view(np.uint32))
    np.testing.assert_array_equal(found[0], found[1])


@NUMBA
def test_it_is_taken_from_some_products_on() -> None:
    """The process that has formed many by NumPy gets the loop, and keeps it."""
    compiled = CompiledSums(after=1000)
    assert compiled.for_products(600) is None
    loop = compiled.for_products(600)
    assert loop is not None and compiled.for_products(1) is loop
    assert CompiledSums(inf).for_products(1 << 40) is None


def test_nothing_changes_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed it goes on with NumPy, and is not asked again."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, LOOP, raising=False)
    compiled = CompiledSums(after=1)
    assert compiled.for_products(1) is None
    monkeypatch.undo()
    assert compiled.for_products(1) is None


@NUMBA
def test_a_loop_that_is_not_compiled_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`NUMBA_DISABLE_JIT` leaves numba without a compiler, and sums with NumPy."""
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    monkeypatch.delitem(sys.modules, LOOP, raising=False)
    assert CompiledSums(after=1).for_products(1) is None
