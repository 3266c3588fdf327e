"""Any convolution, one product after the other: what no faster kernel takes."""

from __future__ import annotations

import math
from dataclasses import replace

from kdsl_fuse.calls import KernelCall, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_forms import attrs_of, guard, operands_of
from kdsl_fuse.patterns.folds import as_is
from kdsl_fuse.patterns.pointwise import overlaps
from kdsl_fuse.patterns.tails import build_tail, with_tails
from kdsl_fuse.reasons import Reason

FLOPS_A_US = 5e6  # what the direct kernel computes about, where others are as fast as memory
MOST_US = 1e5  # that it is ever said to be slower: it is better than no kernel


class ConvDirect:
    """act(conv(x, w) * s + b …) + residual …: any stride, dilation, padding and grouping.

    Images, filters and residuals in any strides, NCHW among them; transposed convolutions too.
    """

    name = "conv_direct"
    generic = True
    anchors: tuple[str, ...] = ("Conv", "ConvTranspose")
    examples: tuple[Example, ...] = (
        Example(
            "f32, stride, dilation and uneven padding, a bias and an activation",
            lambda kf, x, w, b: kf.hard_swish(
                kf.conv2d(x, w, b, stride=(2, 1), padding=(1, 0, 0, 2), dilation=(1, 2))
            ),
            (("f32", (2, 7, 9, 3)), ("f32", (6, 3, 3, 3)), ("f32", (6,))),
        ),
        Example(
            "groups of f32 in NCHW, BatchNorm and a residual",
            lambda kf, x, w, s, r: kf.relu(
                kf.batch_norm(
                    kf.conv2d(x, w, padding=1, groups=2, layout="NCHW"), s, s, s, kf.exp(s)
                )
                + r
            ),
            (("f32", (1, 6, 5, 6)), ("f32", (4, 3, 3, 3)), ("f32", (4,)), ("f32", (1, 4, 5, 6))),
        ),
        Example(
            "a transposed convolution",
            lambda kf, x, w, b: kf.sigmoid(kf.conv_transpose2d(x, w, b, stride=2, padding=1)),
            (("f16", (1, 4, 5, 8)), ("f16", (4, 3, 3, 8)), ("f16", (4,))),
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The convolution with each tail that has one way out, the longest first."""
        values = (*facts.graph.operands(anchor), anchor)
        return guard(values) or with_tails(self, facts, anchor, as_is, -_slower_us(facts, anchor))

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/conv_direct.py`."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.conv_direct import choose, conv_direct

        anchor, root = match.anchor, match.root
        tail, extras = build_tail(graph, match, fold=as_is)
        operands, attrs = operands_of(graph, anchor), attrs_of(anchor)
        x, w = map(Preparation().spec, operands)
        plan = choose(
            x, w, kd.spec(root.dtype, root.shape), *map(Preparation().spec, extras),
            stride=attrs["stride"], padding=attrs["pads"][:2], dilation=attrs["dilation"],
            groups=attrs["groups"], transposed=anchor.op.name == "ConvTranspose",
        )  # fmt: skip
        config = replace(plan.config, overlap=overlaps(options))
        return KernelCall(
            name="conv_direct",
            kernel=conv_direct,
            grid=plan.grid,
            block=(config.threads,),
            operands=operands,
            extras=extras,
            outputs=(root,),
            statics={"epilogue": tail, "config": config},
            summary=f"any convolution, without tensor cores: {plan}",
            overlap=config.overlap,
        )


def _slower_us(facts: Facts, anchor: Node) -> float:
    _, w = facts.graph.operands(anchor)
    products = 2 * math.prod(anchor.shape) * math.prod(w.shape[1:])
    return min(products / FLOPS_A_US, MOST_US)
