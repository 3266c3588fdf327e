"""Operators that move, reduce and normalise: meanings written out here, types, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from fuse.test_fuse_ops import _graph as graph_of
from kdsl_core.dtypes import boolean, f16, f32, i32
from kdsl_core.errors import FusionError
from kdsl_fuse.graph import Graph
from kdsl_fuse.ops import ALL_OPS
from kdsl_fuse.reference import evaluate

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
P = RNG.uniform(0.5, 1.5, 4).astype(np.float32)
IDS = np.asarray([[2, 0], [1, 1]], np.int32)
Q, K, V = (RNG.standard_normal((1, h, 5, 8)).astype(np.float32) for h in (4, 2, 2))


def _loop_softmax(row: Any) -> Any:
    e = [math.exp(v) for v in row]
    return np.asarray(e) / math.fsum(e)


def _attention(q: Any, k: Any, v: Any, allowed: Callable[[int, int], bool]) -> Any:
    out = np.zeros((1, 4, 5, 8))
    for head in range(4):
        for row in range(5):
            seen = [c for c in range(5) if allowed(row, c)]
            scores = [float(q[0, head, row] @ k[0, head // 2, c]) / math.sqrt(8) for c in seen]
            out[0, head, row] = _loop_softmax(scores) @ v[0, head // 2, seen]
    return out


def _norm(x: Any) -> Any:
    return np.stack([[(r - r.mean()) / math.sqrt(r.var() + 1e-5) for r in m] for m in x])


# A function of kf, its arguments, and what it gives, written another way.
MEANINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "transpose": (lambda x: kf.transpose(x, (1, -1, 0)), (X,), np.moveaxis(X, 0, -1)),
    "T": (lambda x: x.T, (X,), X.T),
    "method": (lambda x: x.transpose(2, 0, 1), (X,), np.moveaxis(X, -1, 0)),
    "reshape": (lambda x: kf.reshape(x, (4, -1)), (X,), X.ravel().reshape(4, 6)),
    "reshape to a vector": (lambda x: x.reshape(-1), (X,), X.ravel()),
    "slices": (lambda x: x[1, ..., 1:3], (X,), X[1, :, 1:3]),
    "steps": (lambda x: x[:, ::2, None, -1], (X,), X[:, ::2, None, 3]),
    "empty": (lambda x: x[2:], (X,), X[2:]),
    "squeeze": (lambda x: kf.squeeze(x[:1, :, 1:2]), (X,), X[0, :, 1]),
    "squeeze one": (lambda x: kf.squeeze(x[:1], 0), (X,), X[0]),
    "unsqueeze": (lambda x: kf.expand_dims(x, (0, -1)), (X,), X[None, ..., None]),
    "expand": (
        lambda x: kf.broadcast_to(x[:, :1], (5, 2, 3, 4)),
        (X,),
        np.tile(X[:, :1], (5, 1, 3, 1)),
    ),
    "concat": (lambda x: kf.concatenate([x, x[:, 1:]], -2), (X,), np.hstack([X, X[:, 1:]])),
    "split": (lambda x: kf.split(x, 2, -1)[1], (X,), X[..., 2:]),
    "split at": (lambda x: kf.split(x, [1, 3], 2)[1], (X,), X[..., 1:3]),
    "take": (lambda x, i: kf.take(x, i, 1), (X, IDS), X[:, IDS]),
    "embedding": (lambda i, t: kf.embedding(i, t), (IDS, X[0]), X[0][IDS]),
    "sum": (lambda x: kf.sum(x, (0, -1)), (X,), np.einsum("ijk->j", X)),
    "sum of all": (lambda x: kf.sum(x), (X,), math.fsum(X.ravel())),
    "mean": (lambda x: kf.mean(x, 1, keepdims=True), (X,), X.sum(1)[:, None] / 3),
    "max": (lambda x: kf.max(x, -1), (X,), np.sort(X)[..., -1]),
    "min": (lambda x: kf.min(x, 0), (X,), np.sort(X, 0)[0]),
    "prod": (lambda x: kf.prod(x, 2), (X,), X[..., 0] * X[..., 1] * X[..., 2] * X[..., 3]),
    "var": (lambda x: kf.var(x, 1), (X,), X.std(1) ** 2),
    "integers": (lambda i: kf.sum(i, 0), (IDS,), IDS[0] + IDS[1]),
    "softmax": (lambda x: kf.softmax(x), (X,), np.apply_along_axis(_loop_softmax, -1, X)),
    "log softmax": (
        lambda x: kf.log_softmax(x, 0),
        (X,),
        np.log(np.apply_along_axis(_loop_softmax, 0, X)),
    ),
    "layer norm": (lambda x, p: kf.layer_norm(x, p, p), (X, P), _norm(X) * P + P),
    "layer norm, plain": (lambda x: kf.layer_norm(x), (X,), _norm(X)),
    "layer norm of matrices": (
        lambda x: kf.layer_norm(x, axis=1),
        (X,),
        _norm(X.reshape(2, 1, 12)).reshape(X.shape),
    ),
    "layer norm, bias": (lambda x, p: kf.layer_norm(x, None, p), (X, P), _norm(X) + P),
    "rms norm": (
        lambda x, p: kf.rms_norm(x, p, epsilon=0.5),
        (X, P),
        X * P / np.sqrt(np.einsum("ijk,ijk->ij", X, X) / 4 + 0.5)[..., None],
    ),
    "batch norm": (
        lambda x, p: kf.batch_norm(x.T, p[1:], p[1:], p[1:], p[1:], epsilon=0.0),
        (X, P),
        ((X - P[1:][:, None]) / np.sqrt(P[1:][:, None]) * P[1:][:, None] + P[1:][:, None]).T,
    ),
    "gemm": (
        lambda a, b, c: kf.gemm(a, b, c, alpha=2.0, beta=-1.0, transB=True),
        (X[0], X[1], P[:3]),
        2 * np.einsum("ik,jk->ij", X[0], X[1]) - P[:3],
    ),
    "linear": (lambda a, b: kf.linear(a, b), (X[0], X[1]), np.einsum("ik,jk->ij", X[0], X[1])),
    "matmul": (lambda a: kf.matmul(a, a[0].T), (X,), np.einsum("bik,jk->bij", X, X[0])),
    "attention": (
        lambda q, k, v: kf.attention(q, k, v),
        (Q, K, V),
        _attention(Q, K, V, lambda r, c: True),
    ),
    "attention, causal": (
        lambda q, k, v: kf.attention(q, k, v, causal=True),
        (Q, K, V),
        _attention(Q, K, V, lambda r, c: c <= r),
    ),
    "attention, mask": (
        lambda q, k, v, m: kf.attention(q, k, v, m > 0),
        (Q, K, V, np.eye(5, dtype=np.float32)),
        _attention(Q, K, V, lambda r, c: c == r),
    ),
    "attention, bias": (
        lambda q, k, v, m: kf.attention(q, k, v, m, scale=8**-0.5),
        (Q, K, V, np.where(np.tri(5), 0, -np.inf).astype(np.float32)),
        _attention(Q, K, V, lambda r, c: c <= r),
    ),
    "cross-entropy": (
        lambda x, i: kf.cross_entropy(x[0], i[0], "none"),
        (X, np.asarray([[3, 0, 1]], np.int32)),
        [-math.log(_loop_softmax(X[0, r])[c]) for r, c in enumerate((3, 0, 1))],
    ),
    "cross-entropy, mean of some": (
        lambda x, i: kf.cross_entropy(x[0], i[0], ignore_index=-100),
        (X, np.asarray([[3, -100, 1]], np.int32)),
        -(math.log(_loop_softmax(X[0, 0])[3]) + math.log(_loop_softmax(X[0, 2])[1])) / 2,
    ),
    "cross-entropy, sum": (
        lambda x, i: kf.cross_entropy(x[0], i[0], "sum"),
        (X, np.asarray([[3, 0, 1]], np.int32)),
        -sum(math.log(_loop_softmax(X[0, r])[c]) for r, c in enumerate((3, 0, 1))),
    ),
    "truth values": (
        lambda x: kf.cast(kf.logical_or(kf.logical_and(x > 0, x < 1), ~(x < 5)), "f32"),
        (X,),
        (X > 0) * (X < 1) * 1.0,
    ),
    "exactly one": (
        lambda x: kf.cast(kf.logical_xor(x > 0, kf.logical_not(x >= 1)), "f32"),
        (X,),
        (X <= 0) + (X >= 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_meaning_and_type(name: str) -> None:
    """The reference gives what is written out, in the shape and dtype that the rule foretells."""
    function, args, expected = MEANINGS[name]
    graph = kf.fuse(function).graph(*args)
    (wide,) = evaluate(graph, args, rounded=False)
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=1e-6)
    (node,) = graph.outputs
    assert node.shape == np.shape(expected) == wide.shape
    assert node.dtype.numpy == evaluate(graph, args)[0].dtype


def test_views_of_results_cost_nothing() -> None:
    """Slices, permutations and reshapes around a product are read and returned in place."""

    @kf.fuse
    def layer(x: Any, w: Any, b: Any) -> Any:
        heads = kf.reshape(x[..., 1:] @ w + b[::2], (2, 3, 2, 3))
        return kf.transpose(heads, (0, 2, 1, 3)), kf.split(heads, 2, 2)[1]

    x, w = X, RNG.standard_normal((3, 6)).astype(np.float32)
    b = np.arange(12, dtype=np.float32)
    plan = layer.plan(x, w, b)
    assert [call.name for call in plan.calls] == ["gemm_sm80"]
    turned, part = layer(x, w, b)
    expected = (x[..., 1:] @ w + b[::2]).reshape(2, 3, 2, 3)
    np.testing.assert_allclose(turned, expected.transpose(0, 2, 1, 3), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(part, expected[:, :, 1:], rtol=1e-5, atol=1e-5)
    assert np.shares_memory(turned, part)


def test_a_reshape_that_must_copy_is_a_launch() -> None:
    """Merging axes that do not follow each other in memory is a kernel, also between others."""

    def layer(x: Any) -> Any:
        y = kf.exp(x)
        z = kf.transpose(y).reshape(x.shape)
        return z, kf.exp(z) + y

    plan = kf.fuse(layer).plan(X)
    assert [call.name for call in plan.calls] == ["elementwise"] * 3
    assert "copy: f32 [4, 3, 2]" in plan.explain()
    powers = np.exp(X)
    turned = powers.T.reshape(X.shape)
    for got, want in zip(plan.run(X), (turned, np.exp(turned) + powers), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(FusionError, match=r"reshape0.*KF-DTYPE"):
        kf.fuse(lambda x: x.T.reshape(12, 2))(X.astype(np.float64))


def test_what_has_no_kernel_is_counted() -> None:
    """The error names each operator without a kernel with its count, and the code of each."""

    rows = np.zeros(2, np.int32)

    def layer(x: Any) -> Any:
        picked = kf.take(kf.take(x, rows), rows)
        return picked, kf.exp(kf.cast(picked, "f64"))

    with pytest.raises(FusionError, match=r"4 of 4 .*: Gather ×2, Cast, Exp") as caught:
        kf.fuse(layer)(X)
    assert str(caught.value).count("KF-PATTERN") == 2


Z = (2, 3, 4)
NORM = {"axis": 2, "epsilon": 1e-5}
GEMM = {"alpha": 1.0, "beta": 1.0, "transA": False, "transB": False}
PLAIN = {"causal": False, "scale": 1.0}
SUM = {"reduction": "sum", "ignore_index": None}
LOSS = "SoftmaxCrossEntropyLoss"
WHOLE = {"axes": (0, 3), "keepdims": False}


@pytest.mark.parametrize(
    ("op", "types", "attrs", "code"),
    [
        ("ReduceSum", [(Z, f32)], WHOLE, "K950"),
        ("ReduceSum", [(Z, f32)], {"axes": (1, 1), "keepdims": False}, "K950"),
        ("ReduceMean", [(Z, i32)], {"axes": (0,), "keepdims": True}, "K904"),
        ("Softmax", [((), f32)], {"axis": 0}, "K950"),
        ("Softmax", [(Z, i32)], {"axis": 0}, "K904"),
        ("Reshape", [(Z, f32)], {"shape": (5, 5)}, "K951"),
        ("Reshape", [(Z, f32)], {"shape": (-4, -6)}, "K951"),
        ("Slice", [((4,), f32)], {"starts": (1,), "stops": (5,), "steps": (1,)}, "K952"),
        ("Slice", [((4,), f32)], {"starts": (0,), "stops": (4,), "steps": (0,)}, "K952"),
        ("Expand", [(Z, f32)], {"shape": (2, 3, 5)}, "K953"),
        ("Expand", [(Z, f32)], {"shape": (4,)}, "K953"),
        ("Squeeze", [(Z, f32)], {"axes": (1,)}, "K954"),
        ("Unsqueeze", [(Z, f32)], {"axes": (4,)}, "K950"),
        ("Concat", [(Z, f32), ((2, 3, 5), f32)], {"axis": 1}, "K955"),
        ("Concat", [(Z, f32), (Z, i32)], {"axis": 1}, "K902"),
        ("Gather", [(Z, f32), ((2,), f32)], {"axis": 0}, "K956"),
        ("LayerNormalization", [(Z, f32), ((3,), f32)], NORM, "K957"),
        ("BatchNormalization", [(Z, f32)] + [((4,), f32)] * 4, {"epsilon": 0.0}, "K957"),
        ("Attention", [(Z, f32), (Z, f32), ((2, 4, 4), f32)], PLAIN, "K958"),
        ("Attention", [(Z, f32)] * 3 + [((3, 4), f32)], PLAIN, "K958"),
        ("Attention", [((4,), f32)] * 3, PLAIN, "K958"),
        (LOSS, [((2, 3), f32), ((2,), f32)], SUM, "K959"),
        (LOSS, [((2, 3), f32), ((2,), i32)], {**SUM, "reduction": "most"}, "K959"),
        ("Gemm", [((2, 3), f32), ((2, 3), f32)], GEMM, "K960"),
        ("Gemm", [((2, 3), f32), ((3, 2), f32), ((3,), f32)], GEMM, "K960"),
        ("Gemm", [(Z, f32), (Z, f32)], GEMM, "K960"),
        ("IsNaN", [((2,), boolean)], {}, "K904"),
    ],
)  # fmt: skip
def test_refused_operands(op: str, types: Any, attrs: Any, code: str) -> None:
    """Each rule refuses what it cannot take, with its own code."""
    graph = Graph()
    operands = [graph.input(f"x{i}", *kind) for i, kind in enumerate(types)]
    with pytest.raises(FusionError) as caught:
        graph.add(op, *operands, **attrs)
    assert caught.value.code == code


def test_narrow_types_stay() -> None:
    """Reductions and norms of f16 and bf16 keep their type, mixed parameters widen."""
    graph, (x, p) = graph_of(((2, 4), f16), ((4,), f32))
    assert graph.add("ReduceSum", x, axes=(1,), keepdims=False).dtype is f16
    assert graph.add("LayerNormalization", x, axis=1, epsilon=0.0).dtype is f16
    assert graph.add("LayerNormalization", x, p, axis=1, epsilon=0.0).dtype is f32


def test_every_operator_has_a_function() -> None:
    """What a graph can hold, a fused function can say."""
    folder = Path(str(kf.__file__)).parent / "frontends"
    words = "".join(path.read_text() for path in folder.glob("*.py"))
    missing = [op.name for op in ALL_OPS if f'"{op.name}"' not in words]
    assert missing == ["Input", "Constant"]


def test_numbers_of_narrow_arrays() -> None:
    """Held narrow arrays and NumPy scalars are operands of every kind of operator."""
    held = np.ones((4, 2), ml_dtypes.bfloat16)
    layer = kf.fuse(lambda x: kf.concatenate([x, held], 1))
    x = np.ones((4, 3), ml_dtypes.bfloat16)
    assert evaluate(layer.graph(x), [x])[0].shape == (4, 5)
