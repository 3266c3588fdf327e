"""Element-wise kernels: any DAG of pointwise nodes that no other kernel takes, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kdsl_fuse.calls import KernelCall, Operand, Preparation
from kdsl_fuse.elements import ElementFunction
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.ops import ALL_OPS
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.pointwise import (
    build,
    computable,
    needed_outside,
    operand_of,
    overlaps,
    recomputed,
)
from kdsl_fuse.patterns.regions import regions_of
from kdsl_fuse.reasons import Reason
from kdsl_fuse.strided import Shape, Strided

_MATRIX, _ROW = ("f16", (6, 40)), ("f16", (40,))


class Elementwise:
    """outputs = function(*inputs): pointwise operators of one shape, operands broadcast to it.

    All values that are needed elsewhere are stored, by one launch. It is asked for what the other
    patterns have left, so that tails of products and of rows stay there.
    """

    name = "elementwise"
    fills = True
    anchors: tuple[str, ...] = tuple(op.name for op in ALL_OPS if op.is_pointwise)
    examples: tuple[Example, ...] = (
        Example("a gate", lambda kf, x, y: kf.silu(x) * y + 1, (_MATRIX, _MATRIX)),
        Example(
            "ten operators of three operands",
            lambda kf, x, y, b: kf.gelu((x - y) * kf.sigmoid(x + b) + abs(y)) * kf.tanh(x) - y,
            (_MATRIX, _MATRIX, _ROW),
        ),
        Example(
            "broadcasts of rows and columns, results of three types",
            lambda kf, x, c, b: (kf.exp(x * c + b), x > c, kf.cast(kf.floor(x * 9), "i8")),
            (("f32", (3, 5, 16)), ("f32", (5, 1)), ("f32", (3, 1, 16))),
        ),
        Example(
            "integers of eight bits",
            lambda kf, x, y: (x + y) * 3 - kf.maximum(x, y),
            (("i8", (33,)), ("i8", (33,))),
        ),
        Example(
            "transposed and sliced operands",
            lambda kf, x, y: kf.relu(x.T - y[::2]),
            (("bf16", (8, 10)), ("bf16", (20, 8))),
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The region that begins with the anchor."""
        refusal = computable(facts.graph, anchor)
        if refusal is not None:
            return refusal
        regions = regions_of(facts, lambda node: computable(facts.graph, node) is None)
        region = regions.get(anchor.name, ())
        if not region or region[0] is not anchor:
            return []
        names = {node.name for node in region}
        stores = tuple(filter(partial(needed_outside, facts.graph, members=names), region))
        extra = recomputed(facts, region, anchor.shape)
        return [Match(self, region, stores or region[-1:], tuple(extra))]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/elementwise.py`."""
        nodes = [*match.recomputed, *match.covered]
        function, loaded = build(graph, nodes, match.stores)
        reads = [operand_of(graph, node, match.anchor.shape) for node in loaded]
        return elementwise_call(function, reads, match.stores, match.anchor.shape, options)


def elementwise_call(
    function: ElementFunction,
    reads: Sequence[Operand],
    stores: tuple[Node, ...],
    shape: Shape,
    options: Options,
) -> KernelCall:
    """One launch of `kernels/elementwise.py`, which sees all of it in this shape."""
    import kdsl_core as kd
    from kdsl_fuse.kernels.elementwise import choose, elementwise

    plan = choose(
        [kd.spec(node.dtype, shape) for node in stores],
        [Preparation().spec(read) for read in reads],
    )
    config = replace(plan.config, overlap=overlaps(options))
    layouts = [Strided(plan.modes.shape, strides) for strides in plan.modes.strides]
    count = len(stores)
    pairs = zip(reads, layouts[count:], strict=True)
    return KernelCall(
        name="elementwise",
        kernel=elementwise,
        grid=(plan.grid,),
        block=(config.threads,),
        operands=(),
        extras=tuple(x.seen_as(Strided(v.shape, v.strides, x.layout.offset)) for x, v in pairs),
        outputs=stores,
        seen=tuple(layouts[:count]),
        statics={"function": function, "config": config, "outputs": count},
        summary=f"{config.vectors} × {config.width} elements a thread",
        overlap=config.overlap,
    )
