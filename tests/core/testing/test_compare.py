"""Arrays are compared as their dtype deserves."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.testing import Tolerance, differences, tolerance_of


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_tolerance_follows_the_dtype(dtype: Any) -> None:
    """A few units in the last place pass, many do not, near every size of number."""
    want = np.array([1.0, -8.0, 0.25])
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    tolerance = tolerance_of(dtype, want)
    assert tolerance == Tolerance(4 * epsilon, 8 * epsilon)
    near, far = want * (1 + 2 * epsilon), want * (1 + 64 * epsilon)
    wide = np.float64
    assert differences("y", near.astype(wide), want, tolerance) is None
    assert differences("y", far.astype(wide), want, tolerance) is not None


def test_integers_are_exact() -> None:
    """Large integers that no float tells apart differ all the same."""
    got = np.array([2**62, 2**62 + 1], np.int64)
    want = np.array([2**62, 2**62], np.int64)
    text = differences("n", got, want, None)
    assert text is not None and "1 of 2 elements of n (int64) differ" in text
    assert f"n[1]: got {2**62 + 1}, expected {2**62}" in text
    assert differences("n", got, got, None) is None


def test_expected_is_rounded_to_the_output() -> None:
    """Without a tolerance, what is expected in f64 is what the output could hold of it."""
    want = np.array([0.1, 1 / 3])
    assert differences("y", want.astype(np.float32), want) is None
    assert differences("y", np.nextafter(want.astype(np.float32), np.float32(1)), want) is not None


def test_nan_and_infinity() -> None:
    """NaN equals NaN, an infinity its like, and neither is near anything else."""
    special = np.array([np.nan, np.inf, -np.inf, 9.0], np.float32)
    for tolerance in (Tolerance(0.0, 0.0), Tolerance(1.0, 1.0), None):
        assert differences("y", special, special, tolerance) is None
        text = differences("y", special, np.zeros(4), tolerance or Tolerance(0.0, 0.5))
        assert text is not None and text.startswith("4 of 4")


def test_first_wrong_coordinates() -> None:
    """The first ones with got and expected, the number of the others, and the last."""
    got = np.zeros((4, 5), np.float32)
    want = got.copy()
    want[1:, 2:] = 1.0
    text = differences("y", got, want)
    assert text is not None
    lines = text.splitlines()
    assert lines[0] == "9 of 20 elements of y (float32) differ from what is expected"
    assert lines[1] == "  y[1, 2]: got 0.0, expected 1.0, off by 1"
    assert lines[-1] == "  … and 1 more, the last y[3, 4]"


def test_shapes_must_agree() -> None:
    """Only a single number stands for an array of it."""
    got = np.ones((2, 3), np.float32)
    assert differences("y", got, 1.0) is None
    with pytest.raises(kd.ArgumentError) as caught:
        differences("y", got, np.ones(3))
    assert caught.value.code == "K533" and "(2, 3)" in caught.value.message
