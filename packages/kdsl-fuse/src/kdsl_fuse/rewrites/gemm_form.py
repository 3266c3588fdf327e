"""One form of the matrix product: MatMul, whose tail has the scale and what is added."""

from __future__ import annotations

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead


def split_gemm(graph: Graph) -> None:
    """alpha·op(a)·op(b) + beta·c becomes MatMul of views, Mul and Add."""
    for node in list(graph):
        if node.op.name == "Gemm":
            take_instead(graph, node, _product(graph, node))


def _product(graph: Graph, node: Node) -> Node:
    a, b, *c = graph.operands(node)
    left = _turned(graph, a, node) if node.op["transA"] else a
    right = _turned(graph, b, node) if node.op["transB"] else b
    result = _scaled(graph, graph.add("MatMul", left, right, loc=node.loc), node.op["alpha"])
    if c:
        result = graph.add("Add", result, _scaled(graph, c[0], node.op["beta"]), loc=node.loc)
    return result


def _turned(graph: Graph, x: Node, node: Node) -> Node:
    return graph.add("Transpose", x, perm=(1, 0), loc=node.loc)


def _scaled(graph: Graph, x: Node, factor: float) -> Node:
    if factor == 1:
        return x
    number = graph.constant(factor, (), x.dtype, loc=x.loc)
    return graph.add("Mul", x, number, loc=x.loc)
