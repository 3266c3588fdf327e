"""Random graphs of all kinds of operators: a plan equals the unfused reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_fuse as kf
from kdsl_core.errors import FusionError
from kdsl_fuse.graph import Graph
from kdsl_fuse.plan import NumpyStep
from kdsl_fuse.reference import evaluate
from kdsl_fuse.rewrites import rewrite

M, N = 6, 8
STEP = st.tuples(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99))
DTYPES = st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16])


def _tame(v: Any) -> Any:
    """A value of moderate size, so that errors stay comparable."""
    return kf.tanh(v)


# Each takes two matrices of [M, N] and gives one of that shape.
MATRIX = [
    lambda v, u: _tame(v + u),
    lambda v, u: v * kf.sigmoid(u),
    lambda v, u: kf.gelu(v) - u,
    lambda v, u: kf.where(v > u, v, u * 0.5),
    lambda v, u: kf.softmax(v, axis=len(str(u.shape)) % 2),
    lambda v, u: _tame(v - kf.mean(u, axis=0, keepdims=True)),
    lambda v, u: kf.max(v, axis=1, keepdims=True) - u,
    lambda v, u: kf.layer_norm(v) * 0.5,
    lambda v, u: kf.rms_norm(v, epsilon=1e-3) + u,
    lambda v, u: kf.transpose(kf.transpose(v) + 0) * u,
    lambda v, u: v.reshape(N, M).reshape(M, N) + u[::1],
    lambda v, u: kf.concatenate([v[:2], u[2:]], axis=0),
    lambda v, u: kf.cast(kf.cast(v, "bf16"), v.dtype),
    lambda v, u: kf.sum(v[None] * u[None], axis=0) * 0.5,
    lambda v, u: kf.leaky_relu(v, 0.1) + kf.hard_swish(u),
    lambda v, u: kf.attention(v, u, u, causal=True),
]


def _network(steps: Any, x: Any, w: Any, b: Any) -> Any:
    """Products and other operators in turn; two values leave."""
    values = [x, _tame(x @ w + b)]
    for operator, first, second in steps:
        v, u = values[-1 - first % min(3, len(values))], values[second % len(values)]
        if operator % 4 == 0:
            values.append(_tame((v @ w) * 0.5 + u))
        else:
            values.append(MATRIX[operator % len(MATRIX)](v, u))
    return values[-1], values[len(values) // 2]


def _arguments(dtype: Any, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    shapes = ((M, N), (N, N), (N,))
    return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def _close(got: Any, want: Any, depth: int) -> None:
    """Within the roundings of a path through the graph."""
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=0, atol=(depth + 2) * 6 * eps + 1e-5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=st.lists(STEP, min_size=1, max_size=7), dtype=DTYPES, seed=st.integers(0, 999))
def test_random_graphs(steps: Any, dtype: Any, seed: int) -> None:
    """Kernels in the simulator and NumPy steps between them give the reference's numbers.

    Every operator without a kernel is told with a code, and without the fallback it is refused.
    """
    args = _arguments(dtype, seed)
    layer = kf.fuse(fallback="numpy")(lambda x, w, b: _network(steps, x, w, b))
    plan = layer.plan(*args)
    expected = evaluate(layer.graph(*args), args)
    for got, want in zip(plan.run(*args), expected, strict=True):
        _close(got, want, len(steps))
    told = {step.node.name for step in plan.steps if isinstance(step, NumpyStep)}
    assert told == set(plan.reasons)
    if told:
        with pytest.raises(FusionError, match=f"{len(told)} of .* operators have no kernel"):
            kf.fuse(layer.function).plan(*args)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(steps=st.lists(STEP, min_size=1, max_size=12), seed=st.integers(0, 999))
def test_rewrites_keep_the_numbers(steps: Any, seed: int) -> None:
    """All rewrites together keep every output in f64, and a second time they change nothing."""
    args = _arguments(np.float32, seed)
    graph = kf.fuse(lambda x, w, b: _network(steps, x, w, b)).graph(*args)
    wide = [np.asarray(x, np.float64) for x in args]
    before = _in_f64(graph, wide)
    rewrite(graph)
    graph.validate()
    for got, want in zip(_in_f64(graph, wide), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    table = graph.table()
    rewrite(graph)
    assert graph.table() == table


def _in_f64(graph: Graph, args: list[Any]) -> list[Any]:
    """The outputs before they are rounded to f32."""
    return [np.asarray(x, np.float64) for x in evaluate(graph, args, rounded=False)]
