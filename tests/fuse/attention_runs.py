"""Operands of attentions, and references in f64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kdsl_fuse.kernels.attention_problem import LAYOUTS, AttentionProblem

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def operands(problem: AttentionProblem, layout: str = "bshd", dtype: Any = BF16) -> list[Array]:
    """Q, K and V of normal numbers."""
    rng = np.random.default_rng(0)
    p = problem
    sizes = [(p.queries, p.heads), (p.keys, p.key_heads), (p.keys, p.key_heads)]
    shapes = [
        (p.batch, s, h, p.dim) if layout == "bshd" else (p.batch, h, s, p.dim) for s, h in sizes
    ]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(
    q: Array, k: Array, v: Array, mask: str | None, layout: str, scale: float, bias: Any = 0.0
) -> Array:
    """The attention in f64, laid out like q."""
    order = tuple(LAYOUTS[layout][i] for i in (3, 2, 0, 1))  # to (batch, head, sequence, dim)
    q, k, v = (x.astype(np.float64).transpose(order) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * scale + bias
    if mask:
        shift = k.shape[2] - q.shape[2] if mask == "bottom-right" else 0
        hidden = np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None] + shift
        scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    result = weights @ v / np.where(total == 0, 1, total)
    return result.transpose(np.argsort(order))


def assert_close(got: Array, want: Array, v: Array) -> None:
    """Within a rounding of the result and one of each weight: half an ulp of the largest value."""
    epsilon = float(ml_dtypes.finfo(got.dtype).eps)
    largest = np.abs(v.astype(np.float64)).max()
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= epsilon * (np.abs(want) / 2 + largest / 4)).all()


def array(*shape: int, dtype: Any = BF16) -> Array:
    """Zeros."""
    return np.zeros(shape, dtype)
