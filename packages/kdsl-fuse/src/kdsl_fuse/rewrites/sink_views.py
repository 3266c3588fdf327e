"""Views behind products go behind their tails, so that the tails stay with the products."""

from __future__ import annotations

from kdsl_fuse.calls import stored
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import SOURCES, is_free, is_pointwise
from kdsl_fuse.rewrites.dead_nodes import take_instead

_SUNK = ("Transpose", "Reshape")


def sink_views(graph: Graph) -> None:
    """f(view(a), view(b), c) becomes view(f(a, b, c′)) for pointwise f and c from outside.

    c′ is the view of c by which each element meets the same ones as before.
    """
    for node in list(graph):
        if not is_pointwise(node):
            continue
        operands = graph.operands(node)
        view = next((x for x in operands if _is_sunk(graph, x) and x.shape == node.shape), None)
        if view is None:
            continue
        moved = [_moved(graph, x, view) for x in operands]
        if all(x is not None for x in moved):
            inner = graph.add(
                node.op.name, *(x for x in moved if x), loc=node.loc, **dict(node.op.attrs)
            )
            take_instead(
                graph, node, graph.add(view.op.name, inner, loc=view.loc, **dict(view.op.attrs))
            )


def _is_sunk(graph: Graph, node: Node) -> bool:
    """Whether the node is a view of a computed value."""
    return node.op.name in _SUNK and not is_free(graph.operands(node)[0])


def _moved(graph: Graph, x: Node, view: Node) -> Node | None:
    """The operand that meets the elements before the view; None where there is none for free."""
    (source,) = graph.operands(view)
    if x.op == view.op and x.shape == view.shape:
        (before,) = graph.operands(x)
        return before if before.shape == source.shape else None
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
