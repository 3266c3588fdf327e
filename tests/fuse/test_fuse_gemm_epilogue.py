"""The GEMM + epilogue pattern: what it takes, what it refuses and why, and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from covering import combined
from fuse.numpy_kernel import NumpyGemm
from kdsl_core.errors import FusionError
from kdsl_fuse.graph import Graph
from kdsl_fuse.patterns import Options
from kdsl_fuse.plan import make_plan
from kdsl_fuse.reference import evaluate

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32

TAILS: dict[str, Callable[..., Any]] = {
    "plain": lambda y, b, c, r, s: y,
    "bias_gelu": lambda y, b, c, r, s: kf.gelu(y + b),
    "bias_gelu_tanh": lambda y, b, c, r, s: kf.gelu(y + b, approximate="tanh"),
    "residual": lambda y, b, c, r, s: kf.relu(y + b) + r,
    "transposed_residual": lambda y, b, c, r, s: y - (r.T).T,
    "scale": lambda y, b, c, r, s: y * 0.125 * s,
    "column": lambda y, b, c, r, s: kf.silu(y * c),
    "two_activations": lambda y, b, c, r, s: kf.tanh(y) * kf.sigmoid(y + b),
    "casts": lambda y, b, c, r, s: (kf.cast(y + b, "bf16") * 3).astype("f32"),
    "mask": lambda y, b, c, r, s: kf.where((y > 0) & (r != 0), y, 0.1 * y),
    "truth": lambda y, b, c, r, s: kf.cast(y > b, "f32"),
    "side": lambda y, b, c, r, s: y + kf.exp(b * 2) / c,
    "clip": lambda y, b, c, r, s: kf.clip(abs(-y) ** 2 + 1, 1.5, 3.0) ** -2,
    "one_sided": lambda y, b, c, r, s: kf.maximum(kf.clip(y, low=-0.5), kf.minimum(r, 1)),
}


def _arrays(rng: np.random.Generator, dtype: Any, m: int = 6, n: int = 9, k: int = 5) -> list[Any]:
    shapes = ((m, k), (k, n), (n,), (m, 1), (m, n), ())
    x, w, b, c, r, s = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return [x, w, b, (np.abs(c) + 1).astype(dtype), r, np.asarray(s)]


def _fused(tail: Callable[..., Any], gemm: NumpyGemm | None, **options: Any) -> Any:
    return kf.fuse(gemm=gemm, **options)(lambda x, w, b, c, r, s: tail(x @ w, b, c, r, s))


@pytest.mark.parametrize(
    "name, dtype", combined([*TAILS], {"f32": F32, "bf16": BF16, "f16": F16}, together=1)
)
def test_tail_becomes_one_kernel(name: str, dtype: Any, gemm: NumpyGemm, rng: Any) -> None:
    """Every tail is one launch whose result, in NumPy and in the simulator, is the f64 reference
    rounded once."""
    layer, args = _fused(TAILS[name], gemm), _arrays(rng, dtype)
    in_numpy = layer(*args)
    plan = layer.plan(*args)
    assert len(plan.calls) == len(gemm.launches) == 1
    (expected,) = evaluate(layer.graph(*args), args)
    _assert_rounded_once(in_numpy, expected, name)
    _assert_rounded_once(_fused(TAILS[name], None)(*args), expected, name)


@pytest.mark.parametrize(("dtype", "n"), [(BF16, 16), (F16, 9)], ids=["bf16-tma", "f16"])
@pytest.mark.parametrize("name", TAILS)
def test_tail_on_hopper(name: str, dtype: Any, n: int, rng: Any) -> None:
    """The same tails in the kernel that sm_90a has, for results that leave by TMA and others."""
    layer, args = _fused(TAILS[name], None, target="sm_90a"), _arrays(rng, dtype, n=n)
    (call,) = layer.plan(*args).calls
    assert call.name == "gemm_sm90"
    (expected,) = evaluate(layer.graph(*args), args)
    _assert_rounded_once(layer(*args), expected, name)


def _assert_rounded_once(result: Any, expected: Any, name: str) -> None:
    ulp = float(ml_dtypes.finfo(expected.dtype).eps)
    if name == "casts":  # a value beside a rounding boundary may round either way
        ulp = float(ml_dtypes.finfo(BF16).eps)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=2 * ulp + 1e-5, atol=1e-4
    )


def test_extras_are_views_with_stride_zero(gemm: NumpyGemm, rng: Any) -> None:
    """Row, column, scalar and residual reach the kernel as views of the output's shape."""
    layer = _fused(lambda y, b, c, r, s: (y + b) * c + r * s, gemm)
    args = _arrays(rng, F32)
    layer(*args)
    extras = gemm.launches[0]["extras"]
    strides = [tuple(step // x.itemsize for step in x.strides) for x in extras]
    (call,) = layer.plan(*args).calls
    assert [extra.value for extra in call.extras] == ["r", "s", "b", "c"]
    assert [extra.strides for extra in call.extras] == strides == [(9, 1), (0, 0), (0, 1), (1, 0)]
    given = dict(zip("xwbcrs", args, strict=True))
    for extra, view in zip(call.extras, extras, strict=True):
        assert np.shares_memory(given[extra.value], view)


def test_equal_tails_are_equal_values(gemm: NumpyGemm, rng: Any) -> None:
    """Tails with equal steps are equal and hash alike, whatever the shapes; others differ."""

    def tail(scale: float, m: int) -> Any:
        layer = _fused(lambda y, b, c, r, s: kf.gelu(y + b) * scale, gemm)
        return layer.plan(*_arrays(rng, F32, m=m)).calls[0].epilogue

    assert tail(2.0, 6) == tail(2.0, 7)
    assert hash(tail(2.0, 6)) == hash(tail(2.0, 7))
    assert tail(0.0, 6) != tail(-0.0, 6)


def test_epilogue_prints_as_a_function(gemm: NumpyGemm, rng: Any) -> None:
    """A tail is readable; the last cast is left to the kernel's store."""
    layer = _fused(lambda y, b, c, r, s: kf.cast(kf.relu(y + b) * 2, "bf16"), gemm)
    (call,) = layer.plan(*_arrays(rng, F32)).calls
    assert str(call.epilogue).splitlines() == [
        "def epilogue(acc: f32, x0: f32):",
        "    v0 = Add(acc, x0)",
        "    v1 = Relu(v0)",
        "    v2 = Mul(v1, 2.0)",
        "    return v2",
    ]
    assert call.output.dtype.name == "bf16"
    assert "epilogue" in str(call)


def test_any_major_order_is_read_in_place(gemm: NumpyGemm, rng: Any) -> None:
    """Transposes of arguments and of kernel results become views; nothing is copied."""
    x, w = rng.standard_normal((5, 6), F32), rng.standard_normal((9, 5), F32)
    layer = kf.fuse(gemm=gemm)(lambda x, w: kf.relu(x.T @ w.T).T @ x.T)
    np.testing.assert_allclose(layer(x, w), np.maximum(x.T @ w.T, 0).T @ x.T, rtol=1e-4, atol=1e-5)
    first, second = layer.plan(x, w).calls
    assert [str(read) for read in first.operands] == ["x[6, 5]:(1, 6)", "w[9, 5]:(5, 1)"]
    assert [str(read) for read in second.operands] == ["relu0[9, 6]:(1, 9)", "x[5, 6]:(6, 1)"]


def test_two_products_one_tail(gemm: NumpyGemm, rng: Any) -> None:
    """A node that two products could take is given to one; the other is computed first."""
    x, w = rng.standard_normal((4, 5), F32), rng.standard_normal((5, 6), F32)
    layer = kf.fuse(gemm=gemm)(lambda x, w, v: kf.gelu(x @ w) * kf.silu(x @ v))
    plan = layer.plan(x, w, w)
    assert len(plan.calls) == 2
    assert sorted(call.output.op.name for call in plan.calls)[0] in ("Gelu", "Mul")
    (expected,) = evaluate(plan.graph, [x, w, w])
    np.testing.assert_allclose(layer(x, w, w), expected, rtol=1e-4, atol=1e-6)


LEAKS: dict[str, tuple[Callable[..., Any], list[str], str]] = {
    "product returned": (lambda y, b: (kf.gelu(y + b), y), ["MatMul"], "KF-ESCAPES"),
    "sum returned": (lambda y, b: (kf.gelu(y + b), y + b), ["Add"], "KF-ESCAPES"),
    "middle returned": (lambda y, b: _keep(kf.relu(y + b)), ["Relu"], "KF-ESCAPES"),
    "read by a product": (lambda y, b: _again(kf.relu(y + b)), ["MatMul", "Relu"], "KF-ESCAPES"),
    "larger shape": (lambda y, b: y + kf.cast(_three(b), "f32"), ["MatMul"], "KF-SHAPE"),
    "integer": (lambda y, b: kf.cast(y + b, "i32"), ["Add"], "KF-DTYPE"),
    "truth value": (lambda y, b: y + b > 0, ["Add"], "KF-DTYPE"),
}


def _keep(a: Any) -> Any:
    return a, kf.tanh(a)


def _again(a: Any) -> Any:
    return kf.exp(a) + 1, a.T @ a


def _three(b: Any) -> Any:
    return b + np.zeros((2, 1, 1), F32)


@pytest.mark.parametrize("name", LEAKS)
def test_each_leak_ends_the_tail(name: str, gemm: NumpyGemm, rng: Any) -> None:
    """The kernel stores the last value before the leak; the rest is apart, with its code."""
    tail, stored, code = LEAKS[name]
    x, w, b = (rng.standard_normal(shape).astype(F32) for shape in ((6, 5), (5, 9), (9,)))

    def layer(x: Any, w: Any, b: Any) -> Any:
        return tail(x @ w, b)

    plan = kf.fuse(gemm=gemm)(layer).plan(x, w, b)
    products = [call for call in plan.calls if call.name == "gemm_sm80"]
    assert sorted(call.output.op.name for call in products) == stored
    assert code in {reason.code for reason in plan.cover.apart.values()}
    results = plan.run(x, w, b)
    for got, want in zip(
        results if isinstance(results, tuple) else [results],
        evaluate(plan.graph, [x, w, b]),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "options", "code"),
    [
        (((2, 3, 4), (2, 4, 5)), (F32, F32), {}, "KF-RANK"),
        (((3, 0), (0, 5)), (F32, F32), {}, "KF-SHAPE"),
        (((3, 4), (4, 5)), (np.int32, np.int32), {}, "KF-DTYPE"),
        (((3, 4), (4, 5)), (F16, F32), {}, "KF-DTYPE"),
        (((3, 4), (4, 5)), (F32, F32), {"target": "sm_75"}, "KF-TARGET"),
    ],
)
def test_guards(shapes: Any, dtypes: Any, options: Any, code: str, gemm: NumpyGemm) -> None:
    """A product that the kernel cannot compute is refused with a code, never attempted."""
    args = [np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with pytest.raises(FusionError, match=code) as caught:
        kf.fuse(gemm=gemm, **options)(lambda x, w: x @ w).plan(*args)
    assert caught.value.code == "K909"


def test_strides_without_a_unit_are_refused(gemm: NumpyGemm) -> None:
    """A sliced operand with no contiguous axis is KF-LAYOUT, with the mend."""
    x = np.ones((4, 8), F32)[:, ::2]
    with pytest.raises(FusionError, match="KF-LAYOUT") as caught:
        kf.fuse(gemm=gemm)(lambda x, w: x @ w).plan(x, np.ones((4, 4), F32))
    assert "ascontiguousarray" in str(caught.value)


def test_what_has_no_kernel_is_refused(gemm: NumpyGemm) -> None:
    """Nothing runs in NumPy silently: what no kernel computes is KF-PATTERN."""
    with pytest.raises(FusionError, match="KF-PATTERN"):
        kf.fuse(gemm=gemm)(lambda x: kf.take(x, np.zeros(2, np.int32))).plan(np.ones((3, 4), F32))


def test_matching_does_not_recurse(gemm: NumpyGemm) -> None:
    """A tail and a side chain of a thousand operators each are matched."""

    def deep(x: Any, w: Any) -> Any:
        y, side = x @ w, w @ x
        for _ in range(1000):
            y = y + 1
        scale = w + 0
        for _ in range(1000):
            scale = scale * 2
        return y * scale, side

    plan = kf.fuse(gemm=gemm)(deep).plan(np.ones((2, 2), F32), np.ones((2, 2), F32))
    assert len(plan.calls) == 2


def test_matching_cost_is_linear_in_the_layers(gemm: NumpyGemm, monkeypatch: Any) -> None:
    """Twice as many residual layers read the consumers of at most 2.2 times as many nodes."""
    reads = 0
    consumers = Graph.consumers

    def counted(self: Graph, node: Any) -> Any:
        nonlocal reads
        reads += 1
        return consumers(self, node)

    def cost(layers: int) -> int:
        def network(x: Any, w: Any) -> Any:
            for _ in range(layers):
                x = kf.relu(x @ w + 1) * 0.5 + x
            return x

        graph = kf.fuse(gemm=gemm)(network).graph(np.ones((2, 2), F32), np.ones((2, 2), F32))
        before = reads
        assert len(make_plan(graph, Options(gemm=gemm)).calls) == layers
        return reads - before

    monkeypatch.setattr(Graph, "consumers", counted)
    assert cost(40) <= 2.2 * cost(20)


def test_followers_of_a_refused_node_share_its_code(gemm: NumpyGemm, rng: Any) -> None:
    """What reads a node without a kernel is refused for the same cause, and says so."""

    def layer(x: Any, w: Any) -> Any:
        y = x @ w
        return kf.take(y, np.zeros(2, np.int32))

    plan = kf.fuse(gemm=gemm, fallback="numpy")(layer).plan(
        np.ones((2, 3), F16), np.ones((3, 2), F32)
    )
    assert {name: reason.code for name, reason in plan.reasons.items()} == dict.fromkeys(
        ("matmul0", "gather0"), "KF-DTYPE"
    )
    assert plan.reasons["gather0"].sentence == "it follows matmul0, which has no kernel"
