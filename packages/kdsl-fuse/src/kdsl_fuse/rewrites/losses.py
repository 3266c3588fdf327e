"""Losses summed over all rows, as the losses of each row and a reduction."""

from __future__ import annotations

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead


def split_losses(graph: Graph) -> None:
    """The sum or mean of cross-entropy losses becomes losses, their sum, and a quotient."""
    for node in list(graph):
        if node.op.name == "SoftmaxCrossEntropyLoss" and node.op["reduction"] != "none":
            take_instead(graph, node, _reduced(graph, node))


def _reduced(graph: Graph, node: Node) -> Node:
    scores, labels = graph.operands(node)
    ignored = node.op["ignore_index"]
    options = {"reduction": "none", "ignore_index": ignored}
    losses = graph.add("SoftmaxCrossEntropyLoss", scores, labels, loc=node.loc, **options)
    over = {"axes": tuple(range(losses.rank)), "keepdims": False}
    if node.op["reduction"] == "mean" and ignored is None:
        return graph.add("ReduceMean", losses, loc=node.loc, **over)
    total = graph.add("ReduceSum", losses, loc=node.loc, **over)
    if node.op["reduction"] == "sum":
        return total
    number = graph.constant(ignored, (), labels.dtype, loc=node.loc)
    counted = graph.add("Not", graph.add("Equal", labels, number, loc=node.loc), loc=node.loc)
    each = graph.add("Cast", counted, to="f32", loc=node.loc)
    count = graph.add("ReduceSum", each, loc=node.loc, **over)
    wide = graph.add("Cast", total, to="f32", loc=node.loc)
    quotient = graph.add("Div", wide, count, loc=node.loc)
    return graph.add("Cast", quotient, to=node.dtype.name, loc=node.loc)
