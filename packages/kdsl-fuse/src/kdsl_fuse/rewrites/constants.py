"""What can be computed now is not computed at each call."""

from __future__ import annotations

import math

import numpy as np

from kdsl_fuse import arrays, reference
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import is_free, is_pointwise
from kdsl_fuse.rewrites.dead_nodes import take_instead

_ROUNDED = ("f16", "bf16", "e4m3", "e5m2")


def fold_constants(graph: Graph) -> None:
    """Replace operators on constants by their values, computed in f64.

    Narrow floats are folded where the function rounds them anyway, by a cast; folding in between
    would round once more. A result larger than its operands is left to the kernels.
    """
    for node in list(graph):
        operands = graph.operands(node)
        if is_pointwise(node):
            node, operands = _with_numbers(graph, node, operands)
        if operands and all(map(_is_known, operands)) and _is_worthwhile(node, operands):
            take_instead(graph, node, _value(graph, node, operands))


def _with_numbers(
    graph: Graph, node: Node, operands: tuple[Node, ...]
) -> tuple[Node, tuple[Node, ...]]:
    """The node with numbers in place of arrays of one element, which kernels then bake in."""
    others = [x for x in operands if not _is_single(x)]
    if len(others) == len(operands) or all(x.shape != node.shape for x in others):
        return node, operands
    held = tuple(_number(graph, x) if _is_single(x) else x for x in operands)
    new = graph.add(node.op.name, *held, loc=node.loc, **dict(node.op.attrs))
    take_instead(graph, node, new)
    return new, held


def _is_single(node: Node) -> bool:
    """Whether the node is an array that holds one known number."""
    return _is_known(node) and node.shape != () and math.prod(node.shape) == 1


def _number(graph: Graph, node: Node) -> Node:
    value = node.constant.item()
    return graph.constant(value, (), node.dtype, loc=node.loc)


def _is_known(node: Node) -> bool:
    return node.op.name == "Constant" and (
        node.is_number or arrays.library(node.constant) == "numpy"
    )


def _is_worthwhile(node: Node, operands: tuple[Node, ...]) -> bool:
    if is_free(node) or node.op.name == "Custom":
        return False
    rounds = node.dtype.name in _ROUNDED and node.op.name != "Cast" and node.shape != ()
    return not rounds and node.bytes <= max(64, *(operand.bytes for operand in operands))


def _value(graph: Graph, node: Node, operands: tuple[Node, ...]) -> Node:
    known = [reference.constant(operand, np.float64) for operand in operands]
    result = reference.apply(node, operands, known, np.float64)
    if node.shape != () or node.op.name == "Cast":
        result = reference.round_to(result, node.dtype)
    held = np.ascontiguousarray(result) if node.shape else result.item()
    return graph.constant(held, node.shape, node.dtype, loc=node.loc)
