"""Arrays one behind the other: one launch copies all of them."""

from __future__ import annotations

from kdsl_fuse.calls import KernelCall, Preparation, operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.pointwise import computable, overlaps
from kdsl_fuse.reasons import Reason


class Concat:
    """Concat by itself; a part of another type than the result is converted."""

    name = "concat"
    anchors: tuple[str, ...] = ("Concat",)
    examples: tuple[Example, ...] = (
        Example(
            "along the last axis",
            lambda kf, x, y: kf.concatenate([x, y, x], axis=-1),
            (("f16", (2, 3, 16)), ("f16", (2, 3, 8))),
        ),
        Example(
            "parts of a transposed matrix, and two types",
            lambda kf, x, y: kf.concatenate([x.T, y[:, ::2]]),
            (("f32", (5, 6)), ("bf16", (3, 10))),
        ),
        Example(
            "integers",
            lambda kf, x, y: kf.concatenate([x, y], 1),
            (("i32", (3, 1)), ("i32", (3, 4))),
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The operator, where no part is empty."""
        empty = next((x for x in facts.graph.operands(anchor) if 0 in x.shape), None)
        if empty is not None:
            return Reason("KF-SHAPE", f"there is nothing to copy of {empty}")
        return computable(facts.graph, anchor) or [Match(self, (anchor,))]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/concat.py`."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.concat import choose, concat

        node = match.anchor
        parts = tuple(operand(graph, x) for x in graph.operands(node))
        result = kd.spec(node.dtype, node.shape)
        plan = choose(
            result, *map(Preparation().spec, parts), axis=node.op["axis"],
            overlap=overlaps(options),
        )  # fmt: skip
        return KernelCall(
            name="concat",
            kernel=concat,
            grid=plan.grid,
            block=(plan.config.threads,),
            operands=(),
            extras=parts,
            outputs=match.stores,
            statics={"config": plan.config},
            summary=f"{plan.config.width} elements a thread",
            overlap=plan.config.overlap,
        )
