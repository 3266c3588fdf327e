"""Views behind kernels go behind what reads them, so that tails stay with their kernels."""

from __future__ import annotations

from kdsl_fuse.calls import stored
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import SOURCES, is_free, is_pointwise
from kdsl_fuse.ops.reductions import REDUCTIONS
from kdsl_fuse.rewrites.dead_nodes import take_instead
from kdsl_fuse.strided import broadcasts

_SUNK = ("Transpose", "Reshape")
_ROW_WISE = frozenset({"LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"})
_REDUCTIONS = frozenset(op.name for op in REDUCTIONS)


def sink_views(graph: Graph) -> None:
    """f(view(a), view(b), c) becomes view(f(a, b, c′)) for pointwise f and c from outside.

    c′ is the view of c by which each element meets the same ones as before.
    """
    for node in list(graph):
        if node.op.name == "Concat":
            _sink_transposes(graph, node)
        elif node.op.name in _REDUCTIONS:
            _sink_reduced(graph, node)
        elif node.op.name in _ROW_WISE:
            _sink_behind_rows(graph, node)
        inner: Node | None = node
        while inner is not None and is_pointwise(inner):  # of several views, one after the other
            inner = _sink(graph, inner)


def _sink(graph: Graph, node: Node) -> Node | None:
    """Put one view behind the node; returns what takes the node's place before it."""
    operands = graph.operands(node)
    view = next((x for x in operands if _is_sunk(graph, x) and x.shape == node.shape), None)
    if view is None:
        return None
    moved = [_moved(graph, x, view) for x in operands]
    if not all(x is not None for x in moved):
        return None
    inner = graph.add(node.op.name, *(x for x in moved if x), loc=node.loc, **dict(node.op.attrs))
    take_instead(graph, node, graph.add(view.op.name, inner, loc=view.loc, **dict(view.op.attrs)))
    return inner


def _sink_transposes(graph: Graph, node: Node) -> None:
    """Concat of values whose axes are transposed alike becomes a transpose of one of the values."""
    first, *others = graph.operands(node)
    if not _is_sunk(graph, first) or first.op.name != "Transpose":
        return
    perm = first.op["perm"]
    if all(x.op == first.op for x in others):
        parts = [graph.operands(x)[0] for x in (first, *others)]
        joined = graph.add("Concat", *parts, axis=perm[node.op["axis"]], loc=node.loc)
        take_instead(graph, node, graph.add("Transpose", joined, perm=perm, loc=node.loc))


def _sink_reduced(graph: Graph, node: Node) -> None:
    """A reduction of transposed axes becomes one of the axes as they lie."""
    (x,) = graph.operands(node)
    if not _is_sunk(graph, x) or x.op.name != "Transpose":
        return
    perm, axes, keepdims = x.op["perm"], node.op["axes"], node.op["keepdims"]
    own = tuple(sorted(perm[axis] for axis in axes))
    (source,) = graph.operands(x)
    reduced = graph.add(node.op.name, source, axes=own, keepdims=keepdims, loc=node.loc)
    order = perm
    if not keepdims:
        kept = [axis for axis in range(x.rank) if axis not in own]
        order = tuple(kept.index(perm[axis]) for axis in range(x.rank) if axis not in axes)
    take_instead(graph, node, graph.add("Transpose", reduced, perm=order, loc=node.loc))


def _sink_behind_rows(graph: Graph, node: Node) -> None:
    """What is done with rows of values whose other axes are reshaped is reshaped instead."""
    x, *parameters = graph.operands(node)
    if not _is_sunk(graph, x) or x.op.name != "Reshape" or node.op["axis"] != x.rank - 1:
        return
    (source,) = graph.operands(x)
    if source.shape[-1:] != x.shape[-1:]:
        return
    attrs = dict(node.op.attrs) | {"axis": source.rank - 1}
    inner = graph.add(node.op.name, source, *parameters, loc=node.loc, **attrs)
    take_instead(graph, node, graph.add("Reshape", inner, shape=x.shape, loc=x.loc))


def _is_sunk(graph: Graph, node: Node) -> bool:
    """Whether the node is a view, or a view of a view, of a computed value; no copy of one."""
    if node.op.name not in _SUNK or stored(graph, node)[0] is node:
        return False
    (source,) = graph.operands(node)
    return not is_free(source) or _is_sunk(graph, source)


def _moved(graph: Graph, x: Node, view: Node) -> Node | None:
    """The operand that meets the elements before the view; None where there is none for free."""
    (source,) = graph.operands(view)
    if x.op == view.op and (x.shape == view.shape or x.op.name == "Transpose"):
        (before,) = graph.operands(x)
        return before if broadcasts(before.shape, source.shape) else None
    if x.is_number:
        return x
    base, layout = stored(graph, x)
    if base.op.name not in SOURCES:
        return None
    if view.op.name == "Transpose":
        return _turned_back(graph, x, view)
    if layout.broadcast(view.shape).reshaped(source.shape) is None:
        return None
    repeated = graph.add("Expand", x, shape=view.shape, loc=x.loc) if x.shape != view.shape else x
    return graph.add("Reshape", repeated, shape=source.shape, loc=x.loc)


def _turned_back(graph: Graph, x: Node, view: Node) -> Node:
    """`x` with all axes of the view, in the order that they had before it."""
    if x.rank < view.rank:
        x = graph.add("Reshape", x, shape=(1,) * (view.rank - x.rank) + x.shape, loc=x.loc)
    perm = view.op["perm"]
    inverse = tuple(perm.index(axis) for axis in range(view.rank))
    return graph.add("Transpose", x, perm=inverse, loc=x.loc)
