"""The meaning of a graph in NumPy, under the contract that fused kernels keep.

Every operator computes in `compute` precision on unrounded operands; values are rounded at Cast
nodes, and once more when an output is stored in its own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.ops import op_named

Array = np.ndarray[Any, np.dtype[Any]]


def evaluate(
    graph: Graph, arrays: Sequence[Any], compute: Any = np.float64, *, rounded: bool = True
) -> list[Array]:
    """The graph's outputs for `arrays`, one per graph input, `rounded` to their dtypes or wide."""
    values: dict[str, Array] = {}
    given = dict(zip((node.name for node in graph.inputs), arrays, strict=True))
    for node in graph:
        if node.op.name == "Input":
            values[node.name] = widen(given[node.name], compute)
        elif node.op.name == "Constant":
            values[node.name] = constant(node, compute)
        else:
            operands = graph.operands(node)
            reads = [values[operand.name] for operand in operands]
            values[node.name] = apply(node, operands, reads, compute)
    results = [(values[node.name], node.dtype) for node in graph.outputs]
    return [round_to(value, dtype) if rounded else value for value, dtype in results]


def apply(node: Node, operands: Sequence[Node], arrays: Sequence[Array], compute: Any) -> Array:
    """One operator on wide arrays, with a wide result."""
    rule = op_named(node.op.name, node.loc)
    attrs = dict(node.op.attrs)
    if node.op.name == "Custom":  # its kernel reads the types of its operands, not wide ones
        attrs["dtypes"] = tuple(operand.dtype for operand in operands)
    with np.errstate(all="ignore"):
        return widen(rule.reference(*arrays, **attrs), compute)


def constant(node: Node, compute: Any) -> Array:
    """The wide array of a Constant; a Python number is not rounded to the dtype it adapted to."""
    if isinstance(node.constant, float):
        return np.asarray(node.constant, compute)
    if node.is_number:
        return widen(np.asarray(node.constant, node.dtype.numpy), compute)
    return widen(node.constant, compute)


def widen(array: Any, compute: Any) -> Array:
    """`array` in `compute` precision when it holds floats, otherwise as it is."""
    array = np.asarray(array)
    is_float = array.dtype.kind not in "biu"  # ml_dtypes' floats are of kind "V" for NumPy
    return np.asarray(array, compute) if is_float else np.asarray(array)


def round_to(array: Array, dtype: DType) -> Array:
    """`array` stored as `dtype`: the rounding at the end of a kernel."""
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype.numpy)
