"""GEMM + epilogue: a matrix product and any pointwise tail, in one kernel with one store."""

from __future__ import annotations

from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.gemm_families import Gemm, call_of
from kdsl_fuse.patterns.products import fold_of, guard, left, right
from kdsl_fuse.patterns.tails import build_tail, with_tails
from kdsl_fuse.reasons import Reason


class GemmEpilogue:
    """act(x @ w * s + b …) + residual …: A and B in any major order, accumulated in f32.

    Where w is one matrix, axes of x before the last are rows of one matrix; where w has more axes,
    those before the last two are one batch of products. Strides must allow that.
    """

    name = "gemm_epilogue"
    anchors: tuple[str, ...] = ("MatMul",)
    examples: tuple[Example, ...] = (
        Example("product", lambda kf, x, w: x @ w, (("bf16", (17, 24)), ("bf16", (24, 40)))),
        Example(
            "bias, activation, residual",
            lambda kf, x, w, b, r: kf.gelu(x @ w + b) + r,
            (("f16", (9, 16)), ("f16", (16, 8)), ("f16", (8,)), ("f16", (9, 8))),
        ),
        Example(
            "a product of sequences",
            lambda kf, x, w, b: kf.relu(x @ w.T * 0.5 + b),
            (("f32", (2, 3, 8)), ("f32", (16, 8)), ("f32", (16,))),
        ),
        Example(
            "a batch of products",
            lambda kf, x, w, b, r: kf.tanh(x @ w + b) * r,
            (("f16", (3, 9, 16)), ("f16", (3, 16, 24)), ("f16", (24,)), ("f16", (3, 9, 24))),
        ),
        Example(
            "a batch of products on Hopper",
            lambda kf, x, w, b: kf.silu(x @ w.transpose(0, 1, 3, 2) + b),
            (("bf16", (2, 2, 20, 24)), ("bf16", (2, 2, 16, 24)), ("bf16", (2, 2, 20, 1))),
            target="sm_90a",
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The product with each tail that has one way out, the longest first."""
        refusal = guard(facts.graph, anchor, options)
        if refusal is not None:
            return refusal
        return with_tails(self, facts, anchor, fold_of(facts.graph, anchor))

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of a GEMM kernel with the tail as its epilogue."""
        return call_of(gemm_of(graph, match), options)


def gemm_of(graph: Graph, match: Match) -> Gemm:
    """The product that a match of `GemmEpilogue` is."""
    fold = fold_of(graph, match.anchor)
    tail, extras = build_tail(graph, match, fold=fold)
    a, b = left(graph, match.anchor), right(graph, match.anchor)
    assert a is not None and b is not None, f"the guard let {match.anchor} pass"
    return Gemm(a, b, extras, match.root, tail, fold)
