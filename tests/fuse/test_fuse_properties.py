"""Random tails: the fused plan equals the unfused reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_fuse.reference import evaluate

M, N, K = 5, 7, 4
SHAPES = [(N,), (M, 1), (M, N), (1, 1), ()]
UNARY = [kf.relu, kf.gelu, kf.silu, kf.tanh, kf.sigmoid, kf.erf, abs, lambda v: -v, lambda v: v**2]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    kf.maximum,
    kf.minimum,
    lambda a, b: kf.where(a > b, b, a * 0.5),
    lambda a, b: a / (abs(b) + 1),
]
STEP = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.booleans())


def _tail(steps: list[Any], values: list[Any]) -> Any:
    """Apply random operators; every new value feeds from the previous one, so one value leaves."""
    for operator, other, scale, is_unary in steps:
        last = values[-1]
        if is_unary:
            new = UNARY[operator % len(UNARY)](last)
        else:
            partner = values[other % len(values)] if other % 5 else (scale - 50) / 32
            new = BINARY[operator % len(BINARY)](last, partner)
        values.append(kf.clip(new, -8, 8) if scale % 3 == 0 else kf.tanh(new))
    return values[-1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    steps=st.lists(STEP, min_size=1, max_size=8),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16]),
    seed=st.integers(0, 1000),
)
def test_random_tails_fuse_into_one_kernel(
    steps: list[Any], shapes: list[Any], dtype: Any, seed: int
) -> None:
    """Any DAG of pointwise operators after a product is one launch with the reference's numbers."""
    rng = np.random.default_rng(seed)
    gemm = NumpyGemm()
    layer = kf.fuse(gemm=gemm)(lambda x, w, extras: _tail(steps, [*extras, x @ w]))
    x, w, *extras = (
        np.asarray(rng.uniform(-1, 1, shape).astype(dtype)) for shape in [(M, K), (K, N), *shapes]
    )
    result = layer(x, w, extras)
    assert len(gemm.launches) == 1
    (expected,) = evaluate(layer.graph(x, w, extras), [x, w, *extras])
    eps = float(ml_dtypes.finfo(result.dtype).eps)
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=eps, atol=eps + 2e-4
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=st.lists(STEP, min_size=2, max_size=6), leak=st.integers(0, 5))
def test_a_returned_interior_value_ends_the_tail(steps: list[Any], leak: int) -> None:
    """With an interior value returned as well, the kernel stores no later one, and numbers hold."""

    def layer(x: Any, w: Any) -> Any:
        values = [x @ w]
        last = _tail(steps, values)
        return last, values[leak % (len(values) - 1)]

    rng = np.random.default_rng(leak)
    x, w = rng.uniform(-1, 1, (M, K)), rng.uniform(-1, 1, (K, N))
    x, w = x.astype(np.float32), w.astype(np.float32)
    plan = kf.fuse(gemm=NumpyGemm(), fallback="numpy")(layer).plan(x, w)
    call = plan.calls[0]
    assert {later.name for later in plan.calls[1:]} <= {"elementwise"}
    names = [node.name for node in plan.graph]
    assert names.index(call.output.name) <= names.index(plan.graph.outputs[1].name)
    for got, want in zip(plan.run(x, w), evaluate(plan.graph, [x, w]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)
