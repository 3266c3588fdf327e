"""A transformer's encoder as people write it: what is recognised, what is left, and its numbers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

import kdsl_fuse as kf
from kdsl_fuse.graph import Graph
from kdsl_fuse.plan import NumpyStep
from kdsl_fuse.reference import evaluate
from kdsl_fuse.rewrites import rewrite

B, S, H, D, WIDE, WORDS = 2, 6, 2, 8, 32, 11
HIDDEN = H * D
F32 = np.float32
Weights = dict[str, Any]


def norm(x: Any, scale: Any, bias: Any) -> Any:
    """LayerNorm in small steps."""
    centred = x - kf.mean(x, -1, keepdims=True)
    variance = kf.mean(centred**2, -1, keepdims=True)
    return centred / kf.sqrt(variance + 1e-12) * scale + bias


def heads(x: Any) -> Any:
    """[batch, rows, hidden] as [batch, heads, rows, depth]."""
    return kf.transpose(x.reshape(B, S, H, D), (0, 2, 1, 3))


def layer(x: Any, w: Weights, mask: Any) -> Any:
    """Attention and a feed-forward network, each with its residual and its norm."""
    q, k, v = (heads(kf.linear(x, w[f"w{n}"], w[f"b{n}"])) for n in "qkv")
    scores = q @ kf.transpose(k, (0, 1, 3, 2)) / math.sqrt(D) + mask
    e = kf.exp(scores - kf.max(scores, -1, keepdims=True))
    mixed = e / kf.sum(e, -1, keepdims=True) @ v
    merged = kf.transpose(mixed, (0, 2, 1, 3)).reshape(B, S, HIDDEN)
    x = norm(kf.linear(merged, w["wo"], w["bo"]) + x, w["s1"], w["t1"])
    up = kf.linear(x, w["wu"], w["bu"])
    up = up * 0.5 * (1 + kf.erf(up / math.sqrt(2)))
    return norm(kf.linear(up, w["wd"], w["bd"]) + x, w["s2"], w["t2"])


def encoder(ids: Any, seen: Any, words: Any, layers: list[Weights]) -> Any:
    """Embeddings, layers, and the mean over the words that are there."""
    x = kf.embedding(ids, words)
    mask = (1 - seen)[:, None, None, :] * -10000.0
    for w in layers:
        x = layer(x, w, mask)
    there = kf.expand_dims(seen, -1)
    return kf.sum(x * there, 1) / kf.sum(there, 1)


def arguments(count: int) -> tuple[Any, ...]:
    """Words, which of them are there, and weights."""
    rng = np.random.default_rng(4)

    def draw(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype(F32)

    def weights() -> Weights:
        square = {f"w{n}": draw(HIDDEN, HIDDEN) for n in "qkvo"}
        biases = {f"b{n}": draw(HIDDEN) for n in "qkvod"} | {"bu": draw(WIDE)}
        norms = {name: draw(HIDDEN) for name in ("s1", "t1", "s2", "t2")}
        return square | biases | norms | {"wu": draw(WIDE, HIDDEN), "wd": draw(HIDDEN, WIDE)}

    seen = np.asarray([[1] * S, [1] * (S - 2) + [0] * 2], F32)
    ids = rng.integers(0, WORDS, (B, S)).astype(np.int32)
    return ids, seen, draw(WORDS, HIDDEN), [weights() for _ in range(count)]


def _counts(graph: Graph) -> Counter[str]:
    views = ("Input", "Constant", "Transpose", "Reshape", "Slice", "Expand")
    return Counter(node.op.name for node in graph if node.op.name not in views)


def test_an_encoder_is_recognised() -> None:
    """Two layers written in small steps become products, attention, norms, GELU and sums."""
    graph = kf.fuse(encoder).graph(*arguments(2))
    rewrite(graph)
    assert _counts(graph) == {
        "MatMul": 12,
        "Add": 16,
        "Attention": 2,
        "LayerNormalization": 4,
        "Gelu": 2,
        "Gather": 1,
        "Sub": 1,
        "Mul": 2,
        "ReduceSum": 2,
        "Div": 1,
    }


def test_an_encoder_runs() -> None:
    """Products with their tails are kernels, the rest is told, and numbers are the reference's."""
    args = arguments(1)
    fused = kf.fuse(fallback="numpy")(encoder)
    plan = fused.plan(*args)
    flat = [*args[:3], *args[3][0].values()]
    assert [node.name for node in plan.graph.inputs][-1].startswith("layers[0].")
    (expected,) = evaluate(fused.graph(*args), flat)
    np.testing.assert_allclose(fused(*args), expected, rtol=2e-4, atol=2e-5)
    counted = Counter(call.name for call in plan.calls)
    assert counted["gemm_sm80"] == 4 and counted["gemm_rows_sm80"] == 2
    left = {step.node.op.name for step in plan.steps if isinstance(step, NumpyStep)}
    assert left <= {"Attention", "Gather", "Reshape"}
