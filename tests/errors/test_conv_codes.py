"""Codes of convolutions: each names the argument that does not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_fuse.kernels.conv_sm80_plan import choose
from kdsl_fuse.kernels.conv_sm90_plan import conv2d_sm90
from kdsl_fuse.kernels.conv_views import problem_of

X = np.ones((1, 8, 8, 16), ml_dtypes.bfloat16)
W = np.ones((8, 3, 3, 16), ml_dtypes.bfloat16)

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "channels": ("K942", {"w": W[..., :8]}, "8 channels .* 16 channels of x"),
    "groups": ("K942", {"groups": 3}, "groups=3"),
    "no groups": ("K942", {"groups": 0}, "groups=0"),
    "kernel": ("K942", {"w": np.ones((8, 9, 9, 16), X.dtype)}, "kernel of 9 x 9.*larger"),
    "dilated kernel": ("K942", {"dilation": 4}, "dilation .*larger than the image"),
    "padding": ("K942", {"padding": (0, -1)}, "padding is at least 0"),
    "stride": ("K942", {"stride": 0}, "stride is at least 1"),
    "dilation": ("K942", {"dilation": (1, 0)}, "dilation is at least 1"),
    "modes": ("K942", {"x": X[0, 0]}, "four modes"),
    "out": ("K942", {"out": np.ones((1, 8, 8, 8), X.dtype)}, "out is to be"),
    "types": ("K943", {"w": W.astype(np.float16)}, "bf16 and f16"),
    "type": ("K943", {"x": X.astype(np.int8), "w": W.astype(np.int8)}, "f16, bf16 or f32"),
    "a slice": ("K998", {"out": np.ones((1, 6, 7, 8), X.dtype)[:, :, :6]}, "pixels of out"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_calls(name: str) -> None:
    """A call that cannot be computed says why before anything is launched."""
    code, changed, words = CASES[name]
    given = {"x": X, "w": W, "out": None, **changed}
    with pytest.raises(kd.ArgumentError, match=words) as caught:
        conv2d_sm90(**given)
    assert caught.value.code == code


def test_extras_broadcast() -> None:
    """An extra operand that does not broadcast to the result is refused by name."""
    with pytest.raises(kd.ArgumentError, match="an extra operand") as caught:
        conv2d_sm90(X, W, None, np.ones(7, np.float32), epilogue=lambda acc, b: acc + b)
    assert caught.value.code == "K942"


def test_filters_of_the_portable_kernel() -> None:
    """Filters that are no rows of one matrix are refused, with how to mend it."""
    filters = np.ascontiguousarray(W.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    plan = choose(problem_of(X, filters), kd.bf16)
    with pytest.raises(kd.ArgumentError, match="contiguous") as caught:
        plan.run(X, filters, np.empty((1, 6, 6, 8), X.dtype))
    assert caught.value.code == "K998"
