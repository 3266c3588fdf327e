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

SIZES = st.tuples(st.integers(3, 9), st.integers(2, 12))
OUTSIDE = st.sampled_from(["row", "column", "matrix", "number", "turned"])
STEP = st.tuples(st.integers(0, 999), st.integers(0, 99), st.integers(0, 99))
DTYPES = st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16])


def _tame(v: Any) -> Any:
    """A value of moderate size, so that errors stay comparable."""
    return kf.tanh(v)


# Each takes two matrices of one shape and gives one of that shape.
MATRIX = [
    lambda v, u: _tame(v + u),
    lambda v, u: v * kf.sigmoid(u),
    lambda v, u: kf.gelu(v) - u,
    lambda v, u: kf.where(v > u, v, u * 0.5),
    lambda v, u: kf.softmax(v, axis=0) + u,
    lambda v, u: kf.softmax(v * 2) * u,
    lambda v, u: _tame(v - kf.mean(u, axis=0, keepdims=True)),
    lambda v, u: kf.max(v, axis=1, keepdims=True) - u,
    lambda v, u: kf.layer_norm(v) * 0.5,
    lambda v, u: kf.rms_norm(v, epsilon=1e-3) + u,
    lambda v, u: kf.transpose(kf.transpose(v) + 0) * u,
    lambda v, u: v.reshape(v.shape[::-1]).reshape(v.shape) + u[::1],
    lambda v, u: kf.concatenate([v[:2], u[2:]], axis=0),
    lambda v, u: kf.cast(kf.cast(v, "bf16"), v.dtype),
    lambda v, u: kf.sum(v[None] * u[None], axis=0) * 0.5,
    lambda v, u: kf.leaky_relu(v, 0.1) + kf.hard_swish(u),
    lambda v, u: kf.attention(v, u, u, causal=True),
]


def _network(steps: Any, x: Any, w: Any, b: Any, outside: Any) -> Any:
    """Products and other operators in turn, with what comes from outside; two values leave."""
    values = [x, _tame(x @ w + b)]
    for operator, first, second in steps:
        v, u = values[-1 - first % min(3, len(values))], values[second % len(values)]
        if operator % 4 == 0:
            values.append(_tame((v @ w) * 0.5 + u))
        elif operator % 4 == 1:
            o = outside[second % len(outside)]
            values.append(_tame(v * (o.T if o.shape == x.shape[::-1] != x.shape else o)))
        else:
            values.append(MATRIX[operator % len(MATRIX)](v, u))
    return values[-1], values[len(values) // 2]


def _arguments(dtype: Any, seed: int, sizes: Any, kinds: Any) -> list[Any]:
    rng = np.random.default_rng(seed)
    m, n = sizes
    shapes = {"row": (n,), "column": (m, 1), "matrix": (m, n), "number": (), "turned": (n, m)}

    def draw(shape: Any) -> Any:
        return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype)

    kinds = [kind if m != n or kind != "turned" else "matrix" for kind in kinds]
    return [draw((m, n)), draw((n, n)), draw((n,)), [draw(shapes[kind]) for kind in kinds]]


def _close(got: Any, want: Any, depth: int) -> None:
    """Within the roundings of a path through the graph."""
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=0, atol=(depth + 2) * 6 * eps + 1e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    steps=st.lists(STEP, min_size=1, max_size=7),
    dtype=DTYPES,
    seed=st.integers(0, 999),
    sizes=SIZES,
    kinds=st.lists(OUTSIDE, min_size=1, max_size=3),
)
def test_random_graphs(steps: Any, dtype: Any, seed: int, sizes: Any, kinds: Any) -> None:
    """Kernels in the simulator and NumPy steps between them give the reference's numbers.

    Every operator without a kernel is told with a code, and without the fallback it is refused.
    """
    args = _arguments(dtype, seed, sizes, kinds)
    flat = [*args[:3], *args[3]]
    layer = kf.fuse(fallback="numpy")(lambda x, w, b, o: _network(steps, x, w, b, o))
    plan = layer.plan(*args)
    expected = evaluate(layer.graph(*args), flat)
    for got, want in zip(plan.run(*flat), expected, strict=True):
        _close(got, want, len(steps))
    told = {step.node.name for step in plan.steps if isinstance(step, NumpyStep)}
    assert told == set(plan.reasons)
    if told:
        with pytest.raises(FusionError, match=f"{len(told)} of .* operators have no kernel"):
            kf.fuse(layer.function).plan(*args)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    steps=st.lists(STEP, min_size=1, max_size=12),
    seed=st.integers(0, 999),
    sizes=SIZES,
    kinds=st.lists(OUTSIDE, min_size=1, max_size=3),
)
def test_rewrites_keep_the_numbers(steps: Any, seed: int, sizes: Any, kinds: Any) -> None:
    """All rewrites together keep every output in f64, and a second time they change nothing."""
    args = _arguments(np.float32, seed, sizes, kinds)
    graph = kf.fuse(lambda x, w, b, o: _network(steps, x, w, b, o)).graph(*args)
    wide = [np.asarray(x, np.float64) for x in (*args[:3], *args[3])]
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
