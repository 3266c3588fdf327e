"""GEMM + epilogue: a matrix product and any pointwise tail, in one kernel with one store."""

from __future__ import annotations

import math
import re
from functools import partial

from kdsl_fuse import calls
from kdsl_fuse.calls import KernelCall, Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail, side_nodes
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.gemm_families import Gemm, call_of
from kdsl_fuse.patterns.tails import FLOATS, admit, build_tail, evaluable, storable
from kdsl_fuse.reasons import Reason

MOST_VARIANTS = 8  # matches at one anchor that a cover chooses from
OLDEST_ARCHITECTURE = 80  # mma.sync on bf16 and tf32, and cp.async


class GemmEpilogue:
    """act(x @ w * s + b …) + residual …: A and B in any major order, accumulated in f32.

    Axes of x before the last are rows of one matrix, where its strides allow that.
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
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The product with each tail that has one way out, the longest first."""
        refusal = guard(facts.graph, anchor, options)
        if refusal is not None:
            return refusal
        growth = grow_tail(facts, anchor, admit(facts.graph, anchor), storable)
        matches = []
        for size in growth.cuts[: -1 - MOST_VARIANTS : -1]:
            covered = growth.members[:size]
            extra = side_nodes(facts, covered, partial(evaluable, facts.graph, anchor))
            reasons = growth.reasons if size == growth.cuts[-1] else {}
            matches.append(
                Match(
                    self,
                    tuple(covered),
                    recomputed=tuple(extra),
                    refused=reasons,
                    role="in the epilogue of",
                )
            )
        return matches

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of a GEMM kernel with the tail as its epilogue."""
        a, b = graph.operands(match.anchor)
        tail, extras = build_tail(graph, match)
        left, right = _matrix(graph, a), calls.operand(graph, b)
        assert left is not None, f"the guard let {a} pass"
        right = right.seen_as(right.layout.permuted((1, 0)))
        return call_of(Gemm(left, right, extras, match.root, tail), options)


# -- guards ---------------------------------------------------------------------------------


def guard(graph: Graph, node: Node, options: Options) -> Reason | None:
    """Why the kernel cannot compute this product at all."""
    a, b = graph.operands(node)
    return (
        _rank(a, b)
        or _sizes(a, b)
        or _dtypes(a, b)
        or _target(options.target)
        or _strides(a, _matrix(graph, a))
        or _strides(b, calls.operand(graph, b))
    )


def _rank(a: Node, b: Node) -> Reason | None:
    if b.rank == 2:
        return None
    return Reason(
        "KF-RANK",
        f"the GEMM kernel multiplies by a matrix, got {a} and {b}",
        fix="multiply each matrix of the batch by itself, or all by one: x @ w",
    )


def _sizes(a: Node, b: Node) -> Reason | None:
    if min(*a.shape, *b.shape) > 0:
        return None
    return Reason("KF-SHAPE", f"the GEMM kernel needs sizes of at least 1, got {a} and {b}")


def _dtypes(a: Node, b: Node) -> Reason | None:
    if a.dtype is b.dtype and a.dtype in FLOATS:
        return None
    return Reason(
        "KF-DTYPE",
        f"the GEMM kernel multiplies f16, bf16 or f32, both operands alike, got {a} and {b}",
        fix="cast the arrays before the call",
    )


def _target(target: str) -> Reason | None:
    found = re.match(r"sm_(\d+)", target)
    if found is None or int(found[1]) >= OLDEST_ARCHITECTURE:
        return None
    return Reason("KF-TARGET", f"gemm_sm80 needs sm_80 or newer, the target is {target}")


def _strides(node: Node, read: Operand | None) -> Reason | None:
    if read is not None and 1 in read.strides:
        return None
    what = f"the axes of {node} merged into rows" if read is None else f"{read}"
    name = node.name if read is None else read.value
    return Reason(
        "KF-LAYOUT",
        f"the GEMM kernel needs one axis with stride 1 of a matrix, got {what}",
        fix=f"copy {name} to a dense array: numpy.ascontiguousarray({name})",
    )


def _matrix(graph: Graph, node: Node) -> Operand | None:
    """`node` as a matrix of its last axis and all others; None where strides do not allow it."""
    read = calls.operand(graph, node)
    if node.rank == 2:
        return read
    rows = read.layout.reshaped((math.prod(node.shape[:-1]), node.shape[-1]))
    return None if rows is None else read.seen_as(rows)
