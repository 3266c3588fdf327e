"""Convolutions as kernels read them, and why none computes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_fuse import calls
from kdsl_fuse.calls import Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.patterns.tails import FLOATS
from kdsl_fuse.reasons import Reason


def operands_of(graph: Graph, anchor: Node) -> tuple[Operand, ...]:
    """What a convolution or a pooling reads: images (n, h, w, c), filters (k, r, s, c / groups)."""
    return tuple(calls.operand(graph, x) for x in graph.operands(anchor))


def guard(values: Sequence[Node]) -> Reason | None:
    """Why no kernel for windows of images computes with these values."""
    for value in values:
        if value.dtype not in FLOATS:
            return Reason(
                "KF-DTYPE",
                f"kernels for windows of images take f16, bf16 and f32, got {value}",
                fix=f"cast it in the function: kf.cast({value.name}, 'f32')",
            )
        if 0 in value.shape:
            return Reason("KF-SHAPE", f"{value} has no elements")
    return None


def problem_of(graph: Graph, anchor: Node) -> ConvProblem | None:
    """The sizes of a convolution that pads alike on both sides; None for another one."""
    x, w = graph.operands(anchor)
    top, left, bottom, right = anchor.op["pads"]
    if (top, left) != (bottom, right):
        return None
    n, height, width, channels = x.shape
    return ConvProblem(
        n, height, width, channels, w.shape[0], kernel=(w.shape[1], w.shape[2]),
        padding=(top, left), **{name: anchor.op[name] for name in ("stride", "dilation", "groups")},
    )  # fmt: skip


def attrs_of(anchor: Node) -> dict[str, Any]:
    """The attributes of an operator."""
    return dict(anchor.op.attrs)
