"""Running attention in the simulator with every check: operands, and references in f64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels.attention_plan import AttentionPlan
from kdsl_fuse.kernels.attention_problem import LAYOUTS, AttentionProblem

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
PROBLEM = AttentionProblem(batch=1, heads=2, key_heads=2, queries=130, keys=200, dim=64)
"""Neither sequence is whole tiles."""


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


def simulated_by(
    plan: AttentionPlan, *, bias: Array | None = None, dtype: Any = BF16, **options: Any
) -> Any:
    """Run with all checks, from NaN, and compare with f64; gives what the simulator found."""
    config, problem = plan.config, plan.problem
    q, k, v = operands(problem, config.layout, dtype)
    out, scale = np.full(q.shape, np.nan, dtype), 1 / math.sqrt(problem.dim)
    extras = () if bias is None else (bias,)
    result = kd.simulate(
        plan.kernel,
        grid=plan.grid,
        block=config.threads,
        args=(q, k, v, out, *extras),
        kwargs={"scale": scale, "together": 2, "config": config},
        checks=("all", "unwritten"),
        overlap=plan.overlap,  # then the launch ahead may still use all arrays
        **options,
    )
    want = exact(q, k, v, config.mask, config.layout, scale, 0.0 if bias is None else bias)
    assert_close(out, want, v)
    return result


def gapped_bias(dtype: Any) -> Array:
    """For `PROBLEM`, broadcast over heads: -infinity for some keys, and for all of row 5."""
    bias = (2 * np.random.default_rng(1).standard_normal((130, 200))).astype(dtype)
    bias[:, 3::7] = -np.inf
    bias[5] = -np.inf
    return np.broadcast_to(bias, (1, 2, 130, 200))


def packed_operands(layout: str) -> list[Array]:
    """Q, K and V as views of one array."""
    packed = np.random.default_rng(2).standard_normal((2, 70, 3, 2, 64)).astype(BF16)
    seen = [packed[:, :, i] for i in range(3)]
    return seen if layout == "bshd" else [x.transpose(0, 2, 1, 3) for x in seen]
