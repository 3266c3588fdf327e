"""`@kf.fuse` on Python functions: signatures, caching, nests, and Python that cannot be traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_core.errors import ArgumentError, FusionError
from kdsl_fuse.arrays import Spec, spec_of

F32 = np.float32
X, W, B = np.ones((4, 3), F32), np.ones((3, 5), F32), np.ones(5, F32)


def test_plan_is_made_once_per_signature(gemm: NumpyGemm) -> None:
    """Equal shapes, dtypes and numbers share a plan; anything else makes a new one."""
    traces = []

    @kf.fuse(gemm=gemm)
    def layer(x: Any, w: Any, scale: float = 1.0) -> Any:
        traces.append(x.shape)
        return (x @ w) * scale

    for args in ((X, W), (X * 2, W), (X, W, 2.0), (X, W, -0.0), (X, W, 0.0), (X[:2], W)):
        result = layer(*args)
        scale = args[2] if len(args) > 2 else 1.0
        np.testing.assert_array_equal(result, args[0] @ W * scale)
    assert len(traces) == len(layer.plans) == 5
    assert layer.plan(X, W) is layer.plan(x=X, w=W, scale=1.0)
    assert layer.__name__ == "layer"


def test_specs_plan_without_data(gemm: NumpyGemm) -> None:
    """An object with dtype, shape and strides is enough for a plan, but not for a run."""
    layer = kf.fuse(gemm=gemm)(lambda x, w: x @ w)
    spec = spec_of(X)
    assert isinstance(spec, Spec)
    plan = layer.plan(spec, W)
    assert plan is layer.plan(X, W)
    with pytest.raises(ArgumentError, match="the plan was made for"):
        plan.run(spec, W)


def test_nests_constants_and_inlining(gemm: NumpyGemm) -> None:
    """Tuples, lists and dicts of arrays, arrays held by the function, and fused helpers work."""
    held = np.arange(5, dtype=F32)

    @kf.fuse(gemm=gemm)
    def helper(y: Any) -> Any:
        return kf.relu(y - held)

    @kf.fuse(gemm=gemm)
    def layer(x: Any, params: dict[str, Any], act: Any) -> Any:
        return [act(helper(x @ params["w"] + params["b"][0]) + held)]

    (result,) = layer(X, {"w": W, "b": (B,)}, kf.tanh)
    np.testing.assert_allclose(result, np.tanh(np.maximum(4 - held, 0) + held) + X[:, :1] * 0)
    assert len(gemm.launches) == 1
    graph = layer.graph(X, {"w": W, "b": (B,)}, kf.tanh)
    assert [node.name for node in graph.inputs] == ["x", "params.w", "params.b[0]"]
    assert sum(node.op.name == "Constant" for node in graph) == 1


def test_numpy_array_on_the_left_is_recorded(gemm: NumpyGemm) -> None:
    """NumPy hands its operators over; its scalars keep their dtype."""
    layer = kf.fuse(gemm=gemm)(lambda x: B + F32(2) * (X @ x))
    np.testing.assert_array_equal(layer(W), 2 * (X @ W) + B)
    compare = kf.fuse(gemm=gemm)(lambda x: kf.where(x != X, 1.0, x))
    assert {n.op.name for n in compare.graph(X)} >= {"Not", "Equal", "Where"}


def test_arguments_and_inputs_can_be_returned(gemm: NumpyGemm) -> None:
    """An argument, or its transpose, comes back as it is."""
    same, turned = kf.fuse(gemm=gemm)(lambda x: (x, x.T))(X)
    assert same is X
    assert np.shares_memory(turned, X)
    np.testing.assert_array_equal(turned, X.T)


UNSUPPORTED = {
    "if": (lambda y: 1 if y > 0 else 2, "kf.where"),
    "chained comparison": (lambda y: 0 < y < 1, "kf.where"),
    "iteration": (lambda y: list(y), "whole array"),
    "float": (lambda y: float(y), "its own argument"),
    "np.exp": (lambda y: np.exp(y), "kf.exp"),
    "np.concatenate": (lambda y: np.concatenate([y, y]), r"kf\.\*"),
    "np.asarray": (lambda y: np.asarray(y), "NumPy needs the numbers"),
    "2 ** y": (lambda y: 2**y, "kf.exp"),
    "floor division": (lambda y: y // 2, "divide with /"),
    "method": (lambda y: y.sum(), "kf"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_python_names_line_and_mend(name: str, gemm: NumpyGemm) -> None:
    """Each construct is K905 at the author's line, and says what to write instead."""
    construct, mend = UNSUPPORTED[name]
    with pytest.raises(FusionError, match=mend) as caught:
        kf.fuse(gemm=gemm)(lambda x, w: construct(x @ w))(X, W)
    error = caught.value
    assert error.code == "K905"
    assert error.loc is not None
    assert error.loc.line == construct.__code__.co_firstlineno
    assert "test_fuse_frontend.py" in str(error)


def test_item_assignment_is_refused(gemm: NumpyGemm) -> None:
    """y[i] = v is K905."""

    def layer(x: Any) -> Any:
        x[0] = 1
        return x

    with pytest.raises(FusionError, match=r"kf\.where") as caught:
        kf.fuse(gemm=gemm)(layer)(X)
    assert caught.value.code == "K905"


@pytest.mark.parametrize(
    ("function", "args", "code"),
    [
        (lambda x: 3, (X,), "K908"),
        (lambda x: x, (3,), "K921"),
        (lambda x: x + "a", (X,), "K906"),
        (lambda x, o: x, (X, {1}), "K922"),
        (lambda x: kf.where(x > 0, 1.0, 0.0), (X,), "K916"),
        (lambda x: x + 1.5, (np.ones(3, np.int32),), "K916"),
        (lambda x: x + 300, (np.ones(3, np.int8),), "K916"),
        (lambda x: x**0.5, (X,), "K914"),
    ],
)
def test_bad_arguments(function: Any, args: Any, code: str, gemm: NumpyGemm) -> None:
    """Wrong arguments, returns and numbers each have a code."""
    with pytest.raises(FusionError) as caught:
        kf.fuse(gemm=gemm)(function)(*args)
    assert caught.value.code == code
    assert caught.value.loc is not None


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(lambda: kf.gelu(X), "K920"), (lambda: kf.fuse(fallback="torch"), "K923")],
)
def test_function_outside_fuse_and_unknown_fallback(wrong: Any, code: str) -> None:
    """kf.gelu on a NumPy array, and a fallback that does not exist, are refused."""
    with pytest.raises(FusionError) as caught:
        wrong()
    assert caught.value.code == code


def test_value_kept_between_calls_is_refused(gemm: NumpyGemm) -> None:
    """A traced value of an earlier call cannot be used in a later one."""
    kept: list[Any] = []

    def layer(x: Any) -> Any:
        kept.append(x)
        return x + kept[0]

    kf.fuse(gemm=gemm)(layer)(X)
    with pytest.raises(FusionError) as caught:
        kf.fuse(gemm=gemm)(layer)(X)
    assert caught.value.code == "K907"


def test_shape_conflict_shows_both_source_lines(gemm: NumpyGemm) -> None:
    """The error stands at the operator, and its notes name the line of each operand."""

    def layer(x: Any, w: Any, b: Any) -> Any:
        first = x @ w
        second = b * 2
        return first + second

    with pytest.raises(FusionError) as caught:
        kf.fuse(gemm=gemm)(layer)(X, W, np.ones(4, F32))
    base = layer.__code__.co_firstlineno
    text = str(caught.value)
    assert caught.value.code == "K901"
    assert caught.value.loc is not None
    assert caught.value.loc.line == base + 3
    assert "axis -1 is 5 and 4" in text
    for offset in (1, 2):
        assert f"test_fuse_frontend.py:{base + offset}" in text


def test_plan_checks_its_arguments(gemm: NumpyGemm) -> None:
    """Wrong count, shape, dtype or strides is K910 with the values."""
    plan = kf.fuse(gemm=gemm)(lambda x, w: x @ w).plan(X, W)
    wrong = [(X,), (X[:2], W), (X.astype(np.float16), W), (np.asfortranarray(X), W), (1, W)]
    for args in wrong:
        with pytest.raises(ArgumentError) as caught:
            plan.run(*args)
        assert caught.value.code == "K910"


def test_backward_strides_are_refused(gemm: NumpyGemm) -> None:
    """A reversed view is K924 with the mend."""
    with pytest.raises(ArgumentError, match="ascontiguousarray") as caught:
        kf.fuse(gemm=gemm)(lambda x, w: x @ w)(X[::-1], W)
    assert caught.value.code == "K924"
