"""Pooling and upsampling, with any pointwise tail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kdsl_fuse.calls import KernelCall, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_forms import attrs_of, guard, operands_of
from kdsl_fuse.patterns.folds import as_is
from kdsl_fuse.patterns.pointwise import overlaps
from kdsl_fuse.patterns.tails import build_tail, with_tails
from kdsl_fuse.reasons import Reason


class Windows:
    """tail(max, mean or only element of each window of images, extras…)."""

    name = "windows"
    anchors: tuple[str, ...] = ("MaxPool", "AveragePool", "Resize")
    examples: tuple[Example, ...] = (
        Example(
            "the largest of windows that hang over the edge",
            lambda kf, x: kf.relu(kf.max_pool2d(x, 3, 2, 1, ceil=True)),
            (("bf16", (2, 6, 9, 16)),),
        ),
        Example(
            "means without padding, in NCHW",
            lambda kf, x: kf.avg_pool2d(x, (3, 2), 2, 1, count_padding=False, layout="NCHW"),
            (("f32", (1, 3, 7, 8)),),
        ),
        Example(
            "larger images, added to others",
            lambda kf, x, y: kf.upsample2d(x, 2) + y,
            (("f16", (1, 3, 5, 24)), ("f16", (1, 6, 10, 24))),
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The operator with each tail that has one way out, the longest first."""
        values = (*facts.graph.operands(anchor), anchor)
        return guard(values) or with_tails(self, facts, anchor, as_is)

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/windows.py`."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.windows import choose, windows

        root = match.root
        tail, extras = build_tail(graph, match, fold=as_is)
        operands = operands_of(graph, match.anchor)
        specs = [Preparation().spec(x) for x in (*operands, *extras)]
        plan = choose(
            specs[0], kd.spec(root.dtype, root.shape), *specs[1:], **_config(match.anchor)
        )
        config = replace(plan.config, overlap=overlaps(options))
        return KernelCall(
            name="windows",
            kernel=windows,
            grid=(plan.grid,),
            block=(config.threads,),
            operands=operands,
            extras=extras,
            outputs=(root,),
            statics={"epilogue": tail, "config": config},
            summary=f"{config.take} of {config.kernel}, {config.width} channels a thread",
            overlap=config.overlap,
        )


def _config(anchor: Node) -> dict[str, Any]:
    """The fields of the kernel's configuration that the operator decides."""
    attrs = attrs_of(anchor)
    if anchor.op.name == "Resize":
        return {"kernel": (1, 1), "scale": attrs["scale"], "take": "only"}
    found = {"kernel": attrs["kernel"], "stride": attrs["stride"], "padding": attrs["pads"][:2]}
    if anchor.op.name == "MaxPool":
        return found | {"dilation": attrs["dilation"], "take": "max"}
    return found | {"take": "mean of inside" if attrs["inside"] else "mean"}
