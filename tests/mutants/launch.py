"""What a case of the campaign is, and the numbers it is run with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd

Matrix = np.ndarray[Any, Any]
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with everything that a launch needs; `args` makes the same arguments each time.

    With `overlap` the launch ahead may still use all arrays. A case that is there for the sake of a
    few `operators` names them: the others would meet what another case has as well.
    """

    kernel: Any
    grid: Any
    block: Any
    args: Callable[[], tuple[Any, ...]]
    statics: Mapping[str, Any] = field(default_factory=dict)
    cluster: Any = None
    overlap: bool = False
    checks: tuple[str, ...] = ("all", "unwritten")
    operators: tuple[str, ...] = ()  # none: all


def matrix(seed: int, shape: tuple[int, ...], dtype: Any = BF16, contiguous: int = 1) -> Matrix:
    """A matrix of normal numbers, contiguous along one of its modes."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values if contiguous else np.ascontiguousarray(values.T).T


def with_infinity(x: Matrix) -> Matrix:
    """The matrix with a middle row of infinities: read behind the row before, they show.

    There the other operand is zero, which hides finite numbers.
    """
    x[x.shape[0] // 2] = np.inf
    return x


def nothing(shape: tuple[int, ...], dtype: Any = BF16, contiguous: int = 1) -> Matrix:
    """A result before it is written: no number."""
    values = np.full(shape, np.nan, dtype)
    return values if contiguous else np.ascontiguousarray(values.T).T


def biased(acc: Any, bias: Any, residual: Any) -> Any:
    """ReLU of a biased product, and a residual."""
    return kd.maximum(acc + bias, 0.0) + residual.to(kd.f32)


def both(acc: Any) -> Any:
    """Two outputs."""
    return kd.maximum(acc, 0.0), acc


def tail_of(m: int, n: int, dtype: Any) -> tuple[Matrix, Matrix]:
    """A bias and a residual for `biased`."""
    bias = np.random.default_rng(7).standard_normal(n).astype(F32)
    return np.broadcast_to(bias, (m, n)), matrix(8, (m, n), dtype)
