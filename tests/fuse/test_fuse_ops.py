"""Operators: type rules, and NumPy meanings against direct NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuse.numpy_kernel import KD, Lanes
from kdsl_core.dtypes import bf16, boolean, f16, f32, f64, i32
from kdsl_core.errors import FusionError
from kdsl_fuse.graph import Graph
from kdsl_fuse.ops import ALL_OPS, op_named
from kdsl_fuse.reference import evaluate

X = np.linspace(-3, 3, 13)
P = X + 4
DIRECT = {
    "Add": ((X, P), X + P),
    "Sub": ((X, P), X - P),
    "Mul": ((X, P), X * P),
    "Div": ((X, P), X / P),
    "Neg": ((X,), -X),
    "Abs": ((X,), np.abs(X)),
    "Max": ((X, -X), np.maximum(X, -X)),
    "Min": ((X, -X), np.minimum(X, -X)),
    "Clip": ((X, X * 0 - 1, X * 0 + 2), np.clip(X, -1, 2)),
    "Sqrt": ((P,), np.sqrt(P)),
    "Rsqrt": ((P,), P**-0.5),
    "Exp": ((X,), np.exp(X)),
    "Log": ((P,), np.log(P)),
    "Reciprocal": ((P,), P**-1.0),
    "Sign": ((X,), np.where(X > 0, 1, np.where(X < 0, -1, 0))),
    "Floor": ((X,), -(-X // 1) - (X % 1 != 0)),
    "Ceil": ((X,), X // 1 + (X % 1 != 0)),
    "Sin": ((X,), np.exp(1j * X).imag),
    "Cos": ((X,), np.exp(1j * X).real),
    "IsNaN": ((X / np.where(X, X, np.nan),), X == 0),
    "Equal": ((X, np.round(X)), np.round(X) == X),
    "Less": ((X, -X), -X > X),
    "LessOrEqual": ((X, -X), -X >= X),
    "Greater": ((X, -X), -X < X),
    "GreaterOrEqual": ((X, -X), -X <= X),
    "And": ((X > 0, X < 2), (X > 0) & (X < 2)),
    "Or": ((X > 2, X < 0), (X > 2) | (X < 0)),
    "Xor": ((X > 0, X < 2), (X <= 0) | (X >= 2)),
    "Not": ((X > 0,), X <= 0),
    "Where": ((X > 0, X, P), np.where(X > 0, X, P)),
    "Relu": ((X,), X * (X > 0)),
    "Sigmoid": ((X,), 0.5 + 0.5 * np.tanh(X / 2)),
    "Silu": ((X,), X * (0.5 + 0.5 * np.tanh(X / 2))),
    "Tanh": ((X,), np.sinh(X) / np.cosh(X)),
    "Erf": ((X,), [math.erf(x) for x in X]),
    "Softplus": ((X,), np.log(1 + np.exp(X))),
    "HardSwish": ((X,), X * np.clip(X + 3, 0, 6) / 6),
    "Mish": ((X,), X * np.tanh(np.log(1 + np.exp(X)))),
}
WITH_ATTRIBUTES: dict[str, tuple[dict[str, float], Any]] = {
    "LeakyRelu": ({"alpha": 0.1}, np.maximum(X, 0.1 * X)),
    "Elu": ({"alpha": 2.0}, np.maximum(X, 0) + np.minimum(0, 2 * (np.exp(X) - 1))),
    "HardSigmoid": ({"alpha": 0.3, "beta": 0.4}, np.clip(0.3 * X + 0.4, 0, 1)),
}


@pytest.mark.parametrize("name", DIRECT)
def test_meaning_in_numpy_and_in_a_kernel(name: str) -> None:
    """Reference and kernel code both give what the formula written out here gives."""
    args, expected = DIRECT[name]
    rule = op_named(name)
    np.testing.assert_allclose(rule.reference(*args), expected, rtol=1e-12, atol=1e-12)
    assert rule.kernel is not None
    lanes = [Lanes(np.asarray(a, np.float32 if a.dtype == np.float64 else a.dtype)) for a in args]
    np.testing.assert_allclose(rule.kernel(KD, *lanes).array, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", WITH_ATTRIBUTES)
def test_meaning_with_attributes(name: str) -> None:
    """The same for operators with numbers of their own."""
    attrs, expected = WITH_ATTRIBUTES[name]
    rule = op_named(name)
    assert rule.kernel is not None
    np.testing.assert_allclose(rule.reference(X, **attrs), expected, rtol=1e-12, atol=1e-12)
    in_kernel = rule.kernel(KD, Lanes(X.astype(np.float32)), **attrs).array
    np.testing.assert_allclose(in_kernel, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("exponent", [1, 2, 3, 7, -1, -3])
def test_integer_powers(exponent: int) -> None:
    """Repeated squaring equals NumPy's power."""
    rule = op_named("Pow")
    assert rule.kernel is not None
    in_kernel = rule.kernel(KD, Lanes(P.astype(np.float32)), exponent=exponent).array
    np.testing.assert_allclose(in_kernel, P ** float(exponent), rtol=3e-6)
    np.testing.assert_allclose(rule.reference(P, exponent), P ** float(exponent))


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_forms(form: str) -> None:
    """Both forms equal their formulas, in NumPy and in a kernel."""
    inner = np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)
    phi = [math.erf(x / math.sqrt(2)) for x in X] if form == "none" else np.tanh(inner)
    expected = X / 2 * (1 + np.asarray(phi))
    rule = op_named("Gelu")
    assert rule.kernel is not None
    np.testing.assert_allclose(rule.reference(X, form), expected, rtol=1e-12)
    in_kernel = rule.kernel(KD, Lanes(X.astype(np.float32)), approximate=form).array
    np.testing.assert_allclose(in_kernel, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Max", "Min", "Relu", "Clip"])
def test_nan_goes_through(name: str) -> None:
    """NaN in either operand gives NaN, as in NumPy."""
    rule = op_named(name)
    assert rule.kernel is not None
    nan, one = Lanes(np.float32([np.nan])), Lanes(np.float32([1.0]))
    rest: list[Any] = {"Max": [one], "Min": [one], "Relu": [], "Clip": [0.0, 2.0]}[name]
    assert np.isnan(rule.kernel(KD, nan, *rest).array).all()
    if name in ("Max", "Min"):
        assert np.isnan(rule.kernel(KD, one, nan).array).all()


def test_every_operator_is_declared_once() -> None:
    """Names in ALL_OPS are unique, and each pointwise one has a direct test above."""
    names = [op.name for op in ALL_OPS]
    assert len(set(names)) == len(names)
    tested = {*DIRECT, *WITH_ATTRIBUTES, "Pow", "Gelu", "Cast"}
    assert {op.name for op in ALL_OPS if op.is_pointwise} == tested


def _graph(*types: tuple[tuple[int, ...], Any]) -> tuple[Graph, list[Any]]:
    graph = Graph()
    return graph, [graph.input("abc"[i], *kind) for i, kind in enumerate(types)]


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ((4, 5), (5,), (4, 5)),
        ((4, 1), (1, 5), (4, 5)),
        ((), (3, 2), (3, 2)),
        ((2, 1, 3), (4, 1), (2, 4, 3)),
        ((0, 3), (1, 3), (0, 3)),
    ],
)
def test_broadcast_shapes(a: Any, b: Any, result: Any) -> None:
    """Shapes meet by NumPy's rule."""
    graph, (x, y) = _graph((a, f32), (b, f32))
    assert graph.add("Add", x, y).shape == result == np.broadcast_shapes(a, b)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [(f32, f32, f32), (f16, f32, f32), (f32, bf16, f32), (bf16, bf16, bf16), (i32, i32, i32)],
)
def test_promotion(a: Any, b: Any, result: Any) -> None:
    """Equal dtypes stay, and f16 or bf16 with f32 gives f32."""
    graph, (x, y) = _graph(((2,), a), ((2,), b))
    assert graph.add("Mul", x, y).dtype is result
    assert graph.add("Less", x, y).dtype is boolean


@pytest.mark.parametrize(("a", "b"), [(f16, bf16), (f32, f64), (i32, f32)])
def test_dtypes_that_need_a_cast(a: Any, b: Any) -> None:
    """Everything else is K902, naming both values."""
    graph, (x, y) = _graph(((2,), a), ((2,), b))
    with pytest.raises(FusionError, match="does not mix") as caught:
        graph.add("Add", x, y)
    assert caught.value.code == "K902"
    assert [note[0] for note in caught.value.notes] == ["a", "b"]


@pytest.mark.parametrize(
    ("op", "types", "attrs", "code"),
    [
        ("Exp", [((2,), i32)], {}, "K904"),
        ("Add", [((2,), boolean), ((2,), boolean)], {}, "K904"),
        ("And", [((2,), f32), ((2,), f32)], {}, "K904"),
        ("Where", [((2,), f32), ((2,), f32), ((2,), f32)], {}, "K904"),
        ("Pow", [((2,), f32)], {"exponent": 0.5}, "K914"),
        ("Gelu", [((2,), f32)], {"approximate": "fast"}, "K919"),
        ("Transpose", [((2, 3), f32)], {"perm": (0, 0)}, "K915"),
        ("MatMul", [((2, 3), f32), ((2, 3), f32)], {}, "K903"),
        ("MatMul", [((3,), f32), ((3, 2), f32)], {}, "K903"),
        ("MatMul", [((2, 2, 3), f32), ((4, 3, 2), f32)], {}, "K918"),
        ("Add", [((2, 3), f32), ((2,), f32)], {}, "K901"),
        ("Convolve", [((2,), f32)], {}, "K917"),
    ],
)
def test_refused_operands(op: str, types: Any, attrs: Any, code: str) -> None:
    """Each rule refuses what it cannot take, with its own code."""
    graph, operands = _graph(*types)
    with pytest.raises(FusionError) as caught:
        graph.add(op, *operands, **attrs)
    assert caught.value.code == code


def test_reference_rounds_at_casts_and_at_the_end_only() -> None:
    """The sum of a bf16 and a tiny bf16 survives until the output, unless a cast is stated."""
    for stated, expected in ((False, 2.0**-9), (True, 0.0)):
        graph, (x, y) = _graph(((1,), bf16), ((1,), bf16))
        total = graph.add("Add", x, y)
        total = graph.add("Cast", total, to="bf16") if stated else total
        graph.outputs = [graph.add("Sub", total, x)]
        ones, tiny = (np.asarray([v], ml_dtypes.bfloat16) for v in (1.0, 2.0**-9))
        assert evaluate(graph, [ones, tiny])[0] == expected
