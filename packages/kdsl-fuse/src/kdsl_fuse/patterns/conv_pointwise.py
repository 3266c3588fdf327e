"""1×1 convolutions without stride or padding are products of matrices."""

from __future__ import annotations

from kdsl_fuse.calls import KernelCall, Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_forms import guard, operands_of
from kdsl_fuse.patterns.folds import as_rows
from kdsl_fuse.patterns.gemm_families import Gemm, call_of
from kdsl_fuse.patterns.products import target_refusal
from kdsl_fuse.patterns.tails import build_tail, with_tails
from kdsl_fuse.reasons import Reason


class ConvPointwise:
    """act(x @ wᵀ * s + b …) + residual … for pixels as rows, by the kernels of products."""

    name = "conv_pointwise"
    anchors: tuple[str, ...] = ("Conv",)
    examples: tuple[Example, ...] = (
        Example(
            "bias, activation and a residual",
            lambda kf, x, w, b, r: kf.relu(kf.conv2d(x, w, b)) + r,
            (("f16", (2, 3, 5, 16)), ("f16", (24, 1, 1, 16)), ("f16", (24,)),
             ("f16", (2, 3, 5, 24))),
        ),
        Example(
            "a sequence in NCHW",
            lambda kf, x, w: kf.silu(kf.conv1d(x, w, layout="NCHW")),
            (("f32", (1, 8, 12)), ("f32", (6, 8, 1))),
        ),
        Example(
            "on Hopper", lambda kf, x, w, b: kf.gelu(kf.conv2d(x, w, b)),
            (("bf16", (1, 4, 8, 32)), ("bf16", (40, 1, 1, 32)), ("bf16", (40,))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The convolution with each tail that has one way out; none where it is no product."""
        graph = facts.graph
        x, w = graph.operands(anchor)
        attrs = anchor.op
        plain = w.shape[1:3] == attrs["stride"] == (1, 1) and attrs["groups"] == 1
        if not plain or any(attrs["pads"]) or x.dtype is not w.dtype:
            return []
        if _matrices(graph, anchor) is None:
            return []
        refusal = guard((x, w, anchor)) or target_refusal(options.target)
        return refusal or with_tails(self, facts, anchor)

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of a GEMM kernel with the tail as its epilogue."""
        tail, extras = build_tail(graph, match)
        matrices = _matrices(graph, match.anchor)
        assert matrices is not None, f"{match.anchor} was matched"
        return call_of(Gemm(*matrices, extras, match.root, tail), options)


def _matrices(graph: Graph, anchor: Node) -> tuple[Operand, Operand] | None:
    """Pixels (m, k) and filters (n, k); None where strides do not allow it."""
    found = []
    for read in operands_of(graph, anchor):
        layout = as_rows(read.layout)
        if layout is None or 1 not in layout.strides:
            return None
        found.append(read.seen_as(layout))
    return found[0], found[1]
