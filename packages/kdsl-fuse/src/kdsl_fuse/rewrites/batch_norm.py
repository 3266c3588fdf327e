"""Normalisation by given statistics: one multiplication and one addition in a kernel's tail.

The weights of the product before it stay as they are: multiplying them would round them once more,
and the tail of a kernel applies the two numbers of each channel for nothing.
"""

from __future__ import annotations

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead


def fold_batch_norm(graph: Graph) -> None:
    """x·s + t with s = scale/√(variance + ε) and t = bias − mean·s, constants if those are."""
    for node in list(graph):
        if node.op.name == "BatchNormalization":
            take_instead(graph, node, _affine(graph, node))


def _affine(graph: Graph, node: Node) -> Node:
    x, scale, bias, mean, variance = graph.operands(node)

    def add(name: str, *operands: Node) -> Node:
        return graph.add(name, *operands, loc=node.loc)

    epsilon = graph.constant(node.op["epsilon"], (), variance.dtype, loc=node.loc)
    s = add("Mul", scale, add("Rsqrt", add("Add", variance, epsilon)))
    t = add("Sub", bias, add("Mul", mean, s))
    if x.op.name == "Transpose" and x.op["perm"] == _LAST_TO_SECOND.get(x.rank):
        (last,) = graph.operands(x)  # where the numbers of channels repeat as they are
        normalised = add("Add", add("Mul", last, s), t)
        return graph.add("Transpose", normalised, perm=x.op["perm"], loc=node.loc)
    shape = (node.shape[1],) + (1,) * (node.rank - 2)
    if node.rank > 2:
        s, t = (graph.add("Reshape", v, shape=shape, loc=node.loc) for v in (s, t))
    return add("Add", add("Mul", x, s), t)


_LAST_TO_SECOND = {rank: (0, rank - 1, *range(1, rank - 1)) for rank in (3, 4, 5)}
