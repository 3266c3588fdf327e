"""A kernel of the caller's own, put into the graph with `kf.custom`."""

from __future__ import annotations

from kdsl_fuse import calls
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.ops.custom import Launch
from kdsl_fuse.patterns.base import Example, Match, Options


class CustomKernel:
    """The node by itself; other kernels are fused around it."""

    name = "custom"
    anchors: tuple[str, ...] = ("Custom",)
    examples: tuple[Example, ...] = ()  # there is no kernel of kdsl's to show

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match]:
        """The node, always."""
        return [Match(self, (anchor,))]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The caller's launch on the node's operands."""
        launch: Launch = match.anchor.op["launch"]
        return call_of(graph, launch, graph.operands(match.anchor), match.root)


def call_of(graph: Graph, launch: Launch, operands: tuple[Node, ...], output: Node) -> KernelCall:
    """The launch with views of stored values as its operands."""
    return KernelCall(
        name=launch.name,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        operands=tuple(calls.operand(graph, node) for node in operands),
        extras=(),
        outputs=(output,),
        statics=dict(launch.statics),
        summary="of the caller's own",
    )
