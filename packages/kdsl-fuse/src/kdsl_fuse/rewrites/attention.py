"""Scaled dot-product attention, written out in products and a softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kdsl_core.dtypes import boolean
from kdsl_fuse import arrays
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.recognise import Formula, recognise
from kdsl_fuse.template import Attr, Bound, Call, Number, Value, words

Q, K, V, MASK = Value("q"), Value("k"), Value("v"), Value("mask")
SCALE, HIDDEN, PERM, AXIS = Number(), Number(), Attr(), Attr()
_LOWEST = -1e4  # a number this low hides a key: softmax gives it nothing


def _scores() -> Iterator[tuple[Call, Callable[[float], float]]]:
    """The scaled products, and the scale from the number in them."""
    keys = words.Transpose(K, perm=PERM)
    yield words.Mul(words.MatMul(Q, keys), SCALE), lambda number: number
    yield words.Div(words.MatMul(Q, keys), SCALE), lambda number: 1 / number
    yield words.MatMul(words.Mul(Q, SCALE), keys), lambda number: number
    yield words.MatMul(words.Div(Q, SCALE), keys), lambda number: 1 / number
    yield words.MatMul(Q, keys), lambda number: number


def _masked(scores: Call) -> list[Call]:
    return [scores, words.Add(scores, MASK), words.Where(MASK, scores, HIDDEN)]


def _probabilities(scores: Call) -> list[Call]:
    """The softmax, also between a cast to f32 and one back, which a fused kernel does not need."""
    wide = words.Softmax(words.Cast(scores, to="f32"), axis=AXIS)
    plain = words.Softmax(scores, axis=AXIS)
    return [plain, words.Cast(wide, to=Attr()), words.Cast(plain, to=Attr())]


def _build(scale_of: Callable[[float], float]) -> Callable[[Graph, Node, Bound], Node | None]:
    def build(graph: Graph, node: Node, bound: Bound) -> Node | None:
        q, v = bound[Q], bound[V]
        mask: Node | None = bound.get(MASK)
        perm = (*bound[PERM][:-2], bound[PERM][-1], bound[PERM][-2])
        keys = tuple(bound[K].shape[axis] for axis in perm)
        scores = (*node.shape[:-1], v.shape[-2])
        fits = q.rank == len(keys) == v.rank and q.shape[:-2] == keys[:-2] == v.shape[:-2]
        fits = fits and bound[AXIS] == len(scores) - 1
        if not fits or node.dtype is not q.dtype or (HIDDEN in bound and not _hides(bound)):
            return None
        if mask is not None and (mask.is_number or mask.rank > len(scores)):
            return None
        scale = scale_of(float(bound[SCALE].constant)) if SCALE in bound else 1.0
        causal = mask is not None and _is_causal(mask, scores)
        operands = [q, _turned(graph, bound[K], perm), v]
        operands += [] if mask is None or causal else [mask]
        return graph.add("Attention", *operands, causal=causal, scale=scale, loc=node.loc)

    return build


def _turned(graph: Graph, x: Node, perm: tuple[int, ...]) -> Node:
    if perm == tuple(range(x.rank)):
        return x
    return graph.add("Transpose", x, perm=perm, loc=x.loc)


def _hides(bound: Bound) -> bool:
    return bound[MASK].dtype is boolean and float(bound[HIDDEN].constant) <= _LOWEST


def _is_causal(mask: Node, scores: tuple[int, ...]) -> bool:
    """Whether a mask that the function holds hides exactly the keys behind each query."""
    rows, columns = scores[-2:]
    if mask.op.name != "Constant" or mask.shape[-2:] != (rows, columns):
        return False
    if arrays.library(mask.constant) != "numpy":
        return False
    held = np.asarray(mask.constant)
    seen = held if mask.dtype is boolean else np.where(held == 0, True, held > _LOWEST)
    zero = mask.dtype is boolean or bool(np.all(held[..., np.tri(rows, columns, dtype=bool)] == 0))
    return zero and bool(np.all(seen == np.tri(rows, columns, dtype=bool)))


_FORMS = tuple(
    Formula(words.MatMul(weights, V), _build(scale_of))
    for scores, scale_of in _scores()
    for masked in _masked(scores)
    for weights in _probabilities(masked)
)


def recognise_attention(graph: Graph) -> None:
    """softmax(q · kᵀ · scale + mask) · v, with a mask that is causal told apart."""
    recognise(graph, _FORMS)
