"""Convolutions in f64 with NumPy, and operands, for the tests of their kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from kdsl_fuse.kernels.conv_problem import ConvProblem

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def operands(problem: ConvProblem, dtype: Any = BF16, seed: int = 0) -> tuple[Array, Array]:
    """Images (n, h, w, c) and filters (k, r, s, c / groups) of normal numbers."""
    rng = np.random.default_rng(seed)
    p = problem
    x = rng.standard_normal((p.batch, p.height, p.width, p.channels)).astype(dtype)
    w = rng.standard_normal((p.filters, *p.kernel, p.channels // p.groups)).astype(dtype)
    return x, w


def unwritten(problem: ConvProblem, dtype: Any = BF16) -> Array:
    """A result of NaN."""
    return np.full((problem.batch, *problem.output, problem.filters), np.nan, dtype)


def exact(problem: ConvProblem, x: Array, w: Array) -> Array:
    """The convolution in f64, element by element of the filters."""
    p = problem
    pads = [(0, 0), *((pad, pad) for pad in p.padding), (0, 0)]
    wide = np.pad(x.astype(np.float64), pads)
    groups = zip(np.split(wide, p.groups, 3), np.split(w.astype(np.float64), p.groups), strict=True)
    return np.concatenate([_one(p, images, filters) for images, filters in groups], 3)


def _one(p: ConvProblem, x: Array, w: Array) -> Array:
    rows, columns = p.output
    y = np.zeros((p.batch, rows, columns, w.shape[0]))
    for r, s in np.ndindex(*p.kernel):
        top, left = r * p.dilation[0], s * p.dilation[1]
        seen = x[:, top :: p.stride[0], left :: p.stride[1]][:, :rows, :columns]
        y += seen @ w[:, r, s].T
    return y


def assert_close(y: Array, want: Array) -> None:
    """Equal up to one rounding of the result's type and the order of sums."""
    epsilon = float(ml_dtypes.finfo(y.dtype).eps)
    error = np.abs(y.astype(np.float64) - want)
    assert (error <= epsilon * (np.abs(want) + 1e-2 * np.abs(want).max())).all()


def lying(x: Array, axes: Iterable[int]) -> Array:
    """The same array with its memory in another order of axes."""
    order = tuple(axes)
    back = tuple(int(i) for i in np.argsort(order))
    return np.ascontiguousarray(x.transpose(order)).transpose(back)
