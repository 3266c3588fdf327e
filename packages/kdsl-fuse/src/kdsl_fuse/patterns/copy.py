"""Values in another order that no strides can say: one launch writes them anew."""

from __future__ import annotations

from kdsl_fuse.calls import KernelCall, operand, stored
from kdsl_fuse.elements import VALUE
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.elementwise import elementwise_call
from kdsl_fuse.patterns.pointwise import computable
from kdsl_fuse.reasons import Reason


class Copy:
    """A reshape of a view that would have to be copied. Asked for what no other kernel writes."""

    name = "copy"
    fills = True
    anchors: tuple[str, ...] = ("Reshape",)
    examples: tuple[Example, ...] = (
        Example("a transposed matrix", lambda kf, x: x.T.reshape(-1), (("bf16", (6, 10)),)),
        Example(
            "heads that are merged",
            lambda kf, x: kf.transpose(x, (0, 2, 1, 3)).reshape(2, 3, 16),
            (("f32", (2, 4, 3, 4)),),
        ),
        Example("integers", lambda kf, x: x[:, :3].reshape(6), (("i8", (2, 6)),)),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The reshape, where it is a value of its own."""
        if stored(facts.graph, anchor)[0] is not anchor:
            return []
        return computable(facts.graph, anchor) or [Match(self, (anchor,))]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/elementwise.py`, which sees the result before the reshape."""
        (x,) = graph.operands(match.anchor)
        return elementwise_call(VALUE, [operand(graph, x)], match.stores, x.shape, options)
