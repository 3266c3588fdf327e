"""What is computed twice is computed once."""

from __future__ import annotations

from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead


def merge_equal_nodes(graph: Graph) -> None:
    """Give all readers of equal nodes (operator, attributes, operands) the first of them."""
    first: dict[Any, Node] = {}
    for node in list(graph):
        if node.op.name == "Input":
            continue
        same = first.setdefault(_key(graph, node), node)
        if same is not node:
            take_instead(graph, node, same)


def _key(graph: Graph, node: Node) -> Any:
    if node.op.name != "Constant":
        return node.op, tuple(operand.name for operand in graph.operands(node))
    # 0.0 and −0.0 are equal but not the same, and arrays are known by identity
    held = repr(node.constant) if node.is_number else id(node.constant)
    return held, node.shape, node.dtype, node.strides
