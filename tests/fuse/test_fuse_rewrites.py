"""Rewrites: each brings many ways of writing into one form, keeps the numbers, and is done once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from kdsl_fuse.frontends.traced import TracedArray
from kdsl_fuse.graph import Graph
from kdsl_fuse.reference import evaluate
from kdsl_fuse.rewrites import ALL_REWRITES, rewrite

F32 = np.float32
RNG = np.random.default_rng(3)
X, B = RNG.standard_normal((4, 6), F32), RNG.standard_normal(6, F32)
W, S = RNG.standard_normal((6, 5), F32), RNG.standard_normal(5, F32)
ONE = RNG.uniform(0.5, 1.5, 5).astype(F32)
MASK = np.tri(4, dtype=bool)
Q, K, V = (RNG.standard_normal((2, 3, 4, 8), F32) for _ in range(3))


def _softmax(x: Any, axis: int = -1, shift: bool = True, multiply: bool = False) -> Any:
    e = kf.exp(x - kf.max(x, axis, keepdims=True)) if shift else kf.exp(x)
    total = kf.sum(e, axis, keepdims=True)
    return e * kf.reciprocal(total) if multiply else e / total


def _norm(x: Any, centred: bool, root: bool, epsilon: float = 1e-5) -> Any:
    top = x - kf.mean(x, -1, keepdims=True) if centred else x
    mean = kf.mean(top * top, -1, keepdims=True) + epsilon
    return top / kf.sqrt(mean) if root else top * kf.rsqrt(mean)


def _gelu_tanh(x: Any, cube: Any) -> Any:
    return 0.5 * x * (1 + kf.tanh(math.sqrt(2 / math.pi) * (x + cube)))


def _attention(q: Any, k: Any, v: Any, mask: Any = None, where: Any = None) -> Any:
    scores = q @ kf.transpose(k, (0, 1, 3, 2)) * 0.35
    scores = scores if mask is None else scores + mask
    scores = scores if where is None else kf.where(where, scores, -1e9)
    return _softmax(scores) @ v


# A function, its arguments, and the operators of its only form, in order.
FORMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "gemm": (lambda a, b, c: kf.gemm(a, b, c), (X, W, S), ["MatMul", "Add"]),
    "gemm, scaled and turned": (
        lambda a, b, c: kf.gemm(a, b, c, alpha=2, beta=0.5, transA=True, transB=True),
        (np.ascontiguousarray(X.T), np.ascontiguousarray(W.T), S),
        ["Transpose", "Transpose", "MatMul", "Mul", "Mul", "Add"],
    ),
    "linear": (
        lambda a, b, c: kf.linear(a, b, c),
        (X, np.ascontiguousarray(W.T), S),
        ["Transpose", "MatMul", "Add"],
    ),
    "batch norm of held statistics": (
        lambda a, b: kf.batch_norm(a @ b, ONE, S, S * 0.1, ONE),
        (X, W),
        ["MatMul", "Mul", "Add"],
    ),
    "batch norm of images": (
        lambda a: kf.batch_norm(a, ONE[:3], S[:3], S[:3], ONE[:3]),
        (Q,),
        ["Reshape", "Reshape", "Mul", "Add"],
    ),
    "constants": (lambda a: a * (kf.exp(a * 0 + 1) - a) + S[0], (X,), None),
    "views": (
        lambda a: kf.expand_dims(kf.transpose(kf.transpose(a.T)), 0)[0].reshape(3, 8),
        (X,),
        ["Transpose", "Reshape"],
    ),
    "turned twice": (lambda a: kf.exp(a.T.T.reshape(4, 6)), (X,), ["Exp"]),
    "slices of slices": (lambda a: a[1:, ::2][1:, 1:], (X,), ["Slice"]),
    "computed twice": (
        lambda a: kf.exp(a) / (kf.exp(a) + 1) * (kf.exp(a) + 1),
        (X,),
        ["Exp", "Add", "Div", "Mul"],
    ),
    "dead": (lambda a: (kf.exp(a), kf.log(a))[0], (X,), ["Exp"]),
    "powers": (lambda a: a * a * a, (X,), ["Pow"]),
    "reciprocal root": (lambda a: 1 / kf.sqrt(a), (np.abs(X),), ["Rsqrt"]),
    "sigmoid": (lambda a: 1 / (1 + kf.exp(-a)), (X,), ["Sigmoid"]),
    "silu": (lambda a: a / (kf.exp(-a) + 1), (X,), ["Silu"]),
    "gelu": (lambda a: 0.5 * a * (1 + kf.erf(a / math.sqrt(2))), (X,), ["Gelu"]),
    "gelu, grouped": (lambda a: a * (0.5 * (kf.erf(a * 0.5**0.5) + 1)), (X,), ["Gelu"]),
    "gelu tanh": (lambda a: _gelu_tanh(a, 0.044715 * a**3), (X,), ["Gelu"]),
    "gelu tanh, products": (lambda a: _gelu_tanh(a, 0.044715 * a * a * a), (X,), ["Gelu"]),
    "gelu tanh, cube": (lambda a: _gelu_tanh(a, a * a * a * 0.044715), (X,), ["Gelu"]),
    "softmax": (_softmax, (X,), ["Softmax"]),
    "softmax of columns": (lambda a: _softmax(a, 0, multiply=True), (X,), ["Softmax"]),
    "softmax, unshifted": (lambda a: _softmax(a, shift=False), (X,), ["Softmax"]),
    "log softmax": (
        lambda a: a - kf.log(kf.sum(kf.exp(a), -1, keepdims=True)),
        (X,),
        ["LogSoftmax"],
    ),
    "log of softmax": (lambda a: kf.log(_softmax(a)), (X,), ["LogSoftmax"]),
    "layer norm": (lambda a: _norm(a, True, True), (X,), ["LayerNormalization"]),
    "layer norm, affine": (
        lambda a, b: _norm(a, True, False) * b + b,
        (X, B),
        ["LayerNormalization"],
    ),
    "rms norm": (lambda a, b: b * _norm(a, False, False), (X, B), ["RMSNormalization"]),
    "attention": (_attention, (Q, K, V), ["Attention"]),
    "attention, added mask": (
        _attention,
        (Q, K, V, RNG.standard_normal((4, 4), F32)),
        ["Attention"],
    ),
    "attention, causal": (
        lambda q, k, v: _attention(q, k, v, where=MASK),
        (Q, K, V),
        ["Attention"],
    ),
    "attention, chosen": (
        lambda q, k, v, w: _attention(q, k, v, where=w > 0),
        (Q, K, V, RNG.uniform(-1, 1, (4, 4)).astype(F32) + np.eye(4, dtype=F32) * 2),
        ["Greater", "Attention"],
    ),
    "attention, cast": (
        lambda q, k, v: kf.cast(_softmax(q / 2.5 @ kf.transpose(k, (0, 1, 3, 2))), "f32") @ v,
        (Q, K, V),
        ["Attention"],
    ),
    "transpose behind a product": (
        lambda a, b, c: kf.relu((a @ b).T + c) * 2,
        (X, W, X[:, 0].copy()),
        ["Reshape", "Transpose", "MatMul", "Add", "Relu", "Mul", "Transpose"],
    ),
    "reshape behind a product": (
        lambda a, b, c: kf.relu((a @ b).reshape(2, 2, 5) + c),
        (X, W, S),
        ["MatMul", "Expand", "Reshape", "Add", "Relu", "Reshape"],
    ),
}  # fmt: skip


def _operators(graph: Graph) -> list[str]:
    return [node.op.name for node in graph if node.op.name not in ("Input", "Constant")]


@pytest.mark.parametrize("name", FORMS)
def test_form_and_numbers(name: str) -> None:
    """The graph gets the form listed, computes the same, is valid, and stays as it is."""
    function, args, form = FORMS[name]
    graph = kf.fuse(function).graph(*args)
    before = evaluate(graph, args)
    rewrite(graph)
    graph.validate()
    assert form is None or sorted(_operators(graph)) == sorted(form)
    for got, expected in zip(evaluate(graph, args), before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    table = graph.table()
    rewrite(graph)
    assert graph.table() == table


@pytest.mark.parametrize("change", dict.fromkeys(ALL_REWRITES), ids=lambda f: f.__name__)
def test_each_rewrite_alone(change: Callable[[Graph], None]) -> None:
    """Each by itself keeps all numbers and all types, and a second time changes nothing."""
    for function, args, _ in FORMS.values():
        graph = kf.fuse(function).graph(*args)
        before = evaluate(graph, args)
        change(graph)
        graph.validate()
        for got, expected in zip(evaluate(graph, args), before, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        table = graph.table()
        change(graph)
        assert graph.table() == table


# Functions that look like a form but are none.
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "interior returned": (
        lambda a: (_softmax(a), kf.exp(a - kf.max(a, -1, True))),
        (X,),
        "Softmax",
    ),
    "other axes": (
        lambda a: kf.exp(a) / kf.sum(kf.exp(a * 1.0), 0, True),
        (X,),
        "Softmax",
    ),
    "other number": (lambda a: 0.5 * a * (1 + kf.erf(a * 0.7)), (X,), "Gelu"),
    "epsilon outside": (
        lambda a: a / (kf.sqrt(kf.mean(a * a, -1, True)) + 1e-5),
        (X,),
        "RMSNormalization",
    ),
    "scale of columns": (
        lambda a, b: _norm(a, True, True) * b,
        (X, X[:, :1].copy()),
        "two operands",
    ),
    "mask that is not causal": (
        lambda q, k, v: _attention(q, k, v, where=MASK[::-1].copy()),
        (Q, K, V),
        "causal=True",
    ),
    "keys of another batch": (
        lambda q, k: _softmax(q @ kf.transpose(k, (0, 1, 3, 2)) * 0.5) @ k,
        (Q, K[:1]),
        "Attention",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_a_form_stays(name: str) -> None:
    """A formula with an interior value needed elsewhere, or with other numbers, is left alone."""
    function, args, absent = OTHERS[name]
    graph = kf.fuse(function).graph(*args)
    before = evaluate(graph, args)
    rewrite(graph)
    table = graph.table()
    if absent == "two operands":
        (norm,) = (node for node in graph if node.op.name == "LayerNormalization")
        assert len(graph.operands(norm)) == 1
    else:
        assert absent not in table
    for got, expected in zip(evaluate(graph, args), before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_attributes_of_what_is_recognised() -> None:
    """Axis, epsilon, scale, and a causal mask are read off the formula."""
    graph = kf.fuse(lambda a: _norm(_softmax(a, 0), True, True, 1e-3)).graph(X)
    rewrite(graph)
    soft, norm = (node for node in graph if node.op.name not in ("Input", "Constant"))
    assert soft.op["axis"] == 0
    assert (norm.op["axis"], norm.op["epsilon"]) == (1, 1e-3)
    causal = np.where(MASK, 0, -np.inf).astype(F32)
    graph = kf.fuse(lambda q, k, v: _attention(q, k, v, causal)).graph(Q, K, V)
    rewrite(graph)
    (node,) = graph.outputs
    assert (node.op["causal"], node.op["scale"]) == (True, 0.35)
    assert len(graph.operands(node)) == 3


def test_narrow_constants_are_not_rounded_twice() -> None:
    """A chain on held bf16 is folded only where the function casts it."""
    held = np.linspace(0, 1, 6).astype(ml_dtypes.bfloat16)
    x = X.astype(ml_dtypes.bfloat16)

    def left(function: Any) -> list[str]:
        graph = kf.fuse(function).graph(x)
        before = evaluate(graph, [x])
        rewrite(graph)
        np.testing.assert_array_equal(evaluate(graph, [x])[0], before[0])
        return _operators(graph)

    assert left(lambda a: a + lifted(a, held) * 3) == ["Mul", "Add"]
    assert left(lambda a: a + kf.cast(lifted(a, held), "f32")) == ["Add"]


def lifted(like: TracedArray, held: Any) -> TracedArray:
    """A held array as a traced one."""
    return TracedArray(like.trace, like.trace.lift(held, None, None))
