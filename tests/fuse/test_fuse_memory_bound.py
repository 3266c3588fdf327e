"""Element-wise and row-wise kernels under the graph: what goes together, and how exact it is."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.errors import FusionError
from kdsl_fuse.patterns.regions import MOST_NODES
from kdsl_fuse.reference import evaluate

F32 = np.float32
SHAPES = [(4, 12), (12,), (4, 1), (1, 1), ()]
UNARY = [kf.relu, kf.gelu, kf.silu, kf.tanh, kf.exp, kf.softplus, abs, lambda v: -v, kf.square]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    kf.maximum,
    lambda a, b: kf.where(a > b, b, a * 0.5),
    lambda a, b: a / (abs(b) + 1),
]
ROWS = [kf.softmax, kf.layer_norm, lambda v: v - kf.mean(v, axis=-1, keepdims=True)]
STEP = st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 9))


def _numbers(shape: Any, dtype: Any = F32, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).uniform(-1, 1, shape)).astype(dtype)


def _network(steps: Any, values: list[Any]) -> tuple[Any, ...]:
    for operator, other, kind in steps:
        last = values[-1]
        if kind < 4:
            new = UNARY[operator % len(UNARY)](last)
        elif kind < 9 or last.ndim == 0:
            new = BINARY[operator % len(BINARY)](last, values[other % len(values)])
        else:
            new = ROWS[operator % len(ROWS)](last)
        values.append(kf.tanh(new))
    return values[-1], values[len(values) // 2] + 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    steps=st.lists(STEP, min_size=1, max_size=9),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16]),
)
def test_random_graphs_need_no_numpy(steps: Any, shapes: Any, dtype: Any) -> None:
    """Any DAG of pointwise and row-wise operators is planned, with the reference's numbers."""
    args = [_numbers(shape, dtype, i) for i, shape in enumerate([*shapes, (4, 12)])]
    layer = kf.fuse(lambda *xs: _network(steps, list(xs)))
    for got, want in zip(layer(*args), evaluate(layer.graph(*args), args), strict=True):
        eps = float(ml_dtypes.finfo(want.dtype).eps)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        got, want = (x.astype(np.float64) for x in (got, want))
        np.testing.assert_allclose(got, want, atol=(len(steps) + 1) * 8 * eps + 1e-4)


def _names(function: Any, *shapes: Any, **options: Any) -> list[str]:
    specs = [kd.spec("f32", shape) for shape in shapes]
    return [call.name for call in kf.fuse(**options)(function).plan(*specs).calls]


MATRIX = (8, 16)


def test_what_goes_together() -> None:
    """Siblings share a launch, interior values do not split one, tails of products stay there."""
    assert _names(lambda x, y: (x + y, x * y, kf.exp(y)), MATRIX, MATRIX) == ["elementwise"]
    assert _names(lambda x, w: kf.gelu(x @ w) * 2, MATRIX, (16, 16)) == ["gemm_sm80"]
    both = _names(lambda x, w: (x @ w, kf.gelu(x @ w) * 2), MATRIX, (16, 16))
    assert both == ["gemm_sm80", "elementwise"]
    assert _names(lambda x, s: x * (s + 1), MATRIX, (16,)) == ["elementwise"]
    assert _names(lambda x, s: x * kf.exp(s), MATRIX, (16,)) == ["elementwise"] * 2
    late = _names(lambda x, y: kf.exp(x) * (1 + kf.softmax(y, axis=0)), MATRIX, MATRIX)
    assert late == ["rows"]


def test_a_way_through_another_kernel_parts_a_region() -> None:
    """What a product needs, and what reads both its operand and its result, are two launches."""

    def layer(x: Any, w: Any) -> Any:
        y = kf.exp(x)
        z = y @ w
        return kf.take(z, np.zeros(2, np.int32)), kf.tanh(z) + y, z * y

    specs = [kd.spec("f32", (16, 16))] * 2
    plan = kf.fuse(fallback="numpy")(layer).plan(*specs)
    assert [call.name for call in plan.calls] == ["elementwise", "gemm_sm80", "elementwise"]


def test_a_residual_sum_is_stored_beside_the_norm() -> None:
    """x + r is computed once, in the norm's kernel, though the graph returns it and adds to it."""

    def layer(x: Any, r: Any, w: Any) -> Any:
        total = x + r
        return kf.rms_norm(total, w) + total, total

    args = [_numbers(s, ml_dtypes.bfloat16, i) for i, s in enumerate((MATRIX, MATRIX, (16,)))]
    fused = kf.fuse(layer)
    (call,) = fused.plan(*args).calls
    assert len(call.outputs) == 2 and len(call.extras) == 3
    for got, want in zip(fused(*args), evaluate(fused.graph(*args), args), strict=True):
        np.testing.assert_allclose(got.astype(F32), want.astype(F32), rtol=1e-2, atol=1e-2)


def test_long_graphs_are_cut() -> None:
    """A chain of more operators than a kernel takes runs in as few as hold it."""

    def chain(x: Any) -> Any:
        for _ in range(MOST_NODES):
            x = x * 0.5 + 1
        return x

    x = _numbers((32,))
    plan = kf.fuse(chain).plan(x)
    assert [call.name for call in plan.calls] == ["elementwise"] * 2
    np.testing.assert_allclose(plan.run(x), 2, rtol=1e-6)


def test_functions_are_approximate_for_16_bits_alone() -> None:
    """The hardware's instructions compute bf16 functions, those of f32 stay exact."""
    for dtype, approximate in (("bf16", True), ("f32", False)):
        (call,) = kf.fuse(lambda x: kf.tanh(x) * 3).plan(kd.spec(dtype, (64,))).calls
        assert ("tanh.approx.f32" in call.ptx("sm_90a")) == approximate


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("columns", [24, 20000])
def test_rows_of_any_length_on_any_target(target: str, columns: int) -> None:
    """Short and long rows; clusters and stages are for targets that have them."""
    x = _numbers((2, columns))
    layer = kf.fuse(target=target)(lambda x: kf.softmax(x * 2) * 100)
    (call,) = layer.plan(x).calls
    assert ".visible .entry" in call.ptx(target)
    wide = np.exp(2 * x.astype(np.float64))
    np.testing.assert_allclose(layer(x), 100 * wide / wide.sum(1, keepdims=True), rtol=1e-5)


def test_losses_over_all_rows() -> None:
    """Sum and mean of losses, with a label that is ignored."""
    scores, labels = _numbers((9, 12)), np.arange(9, dtype=np.int64)
    each = -np.log(np.exp(scores) / np.exp(scores).sum(1, keepdims=True))[np.arange(9), labels]
    for options, want in (
        ({"reduction": "mean"}, each.mean()),
        ({"reduction": "sum"}, each.sum()),
        ({"reduction": "mean", "ignore_index": 3}, np.delete(each, 3).mean()),
    ):
        layer = kf.fuse(lambda x, y, options=options: kf.cross_entropy(x, y, **options))
        np.testing.assert_allclose(layer(scores, labels), want, rtol=1e-5)


def test_integers() -> None:
    """Narrow integers wrap as in NumPy, wide ones are exact; reductions of truth values are not."""
    small = (np.arange(12) * 21).astype(np.uint8)
    np.testing.assert_array_equal(kf.fuse(lambda x: x + x)(small), small + small)
    large = np.arange(10) << 40
    np.testing.assert_array_equal(kf.fuse(lambda x: (x + 1) * 3)(large), (large + 1) * 3)


@pytest.mark.parametrize("function", [kf.softmax, kf.layer_norm, lambda x: kf.sum(x, axis=0)])
def test_what_memory_bound_kernels_refuse(function: Any) -> None:
    """f64 and arrays without elements are refused with their codes."""
    for spec, code in ((kd.spec("f64", MATRIX), "KF-DTYPE"), (kd.spec("f32", (0, 4)), "KF-SHAPE")):
        with pytest.raises(FusionError, match=code) as caught:
            kf.fuse(lambda x: function(x)).plan(spec)
        assert caught.value.code == "K909"


def test_plans_are_written_down() -> None:
    """The kernels of such plans can be warmed up from a manifest."""
    layer = kf.fuse(lambda x, y: (kf.cross_entropy(kf.tanh(x), y, "none") + 1, kf.sum(x, axis=0)))
    plan = layer.plan(kd.spec("bf16", (400, 16)), kd.spec("i64", (400,)))
    assert len(plan.keys()) == 3
    assert plan.manifest() is not None
