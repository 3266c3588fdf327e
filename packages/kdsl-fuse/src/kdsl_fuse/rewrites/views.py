"""Views in one form: axes in another order, other sizes, parts; chains of a kind are one."""

from __future__ import annotations

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead


def merge_views(graph: Graph) -> None:
    """Squeeze and Unsqueeze become Reshape, chains of one kind one node, and no-ops vanish."""
    for node in list(graph):
        simpler = _simpler(graph, node)
        if simpler is not None:
            take_instead(graph, node, simpler)


def _simpler(graph: Graph, node: Node) -> Node | None:
    name = node.op.name
    if name in ("Squeeze", "Unsqueeze", "Reshape"):
        return _reshape(graph, node)
    if name == "Transpose":
        return _transpose(graph, node)
    if name in ("Slice", "Expand"):
        (x,) = graph.operands(node)
        if x.shape == node.shape:
            return x
        if name == x.op.name == "Slice":
            return _slice(graph, node, x)
    return None


def _reshape(graph: Graph, node: Node) -> Node | None:
    (x,) = graph.operands(node)
    while x.op.name in ("Squeeze", "Unsqueeze", "Reshape"):
        (x,) = graph.operands(x)
    if x.shape == node.shape:
        return x
    if node.op.name == "Reshape" and x is graph.operands(node)[0]:
        return None
    return graph.add("Reshape", x, shape=node.shape, loc=node.loc)


def _transpose(graph: Graph, node: Node) -> Node | None:
    (x,), perm = graph.operands(node), node.op["perm"]
    while x.op.name == "Transpose":
        inner = x.op["perm"]
        perm = tuple(inner[axis] for axis in perm)
        (x,) = graph.operands(x)
    if perm == tuple(range(x.rank)):
        return x
    if x is graph.operands(node)[0]:
        return None
    return graph.add("Transpose", x, perm=perm, loc=node.loc)


def _slice(graph: Graph, node: Node, inner: Node) -> Node:
    (x,) = graph.operands(inner)
    starts, steps, stops = [], [], []
    for axis, size in enumerate(node.shape):
        step = inner.op["steps"][axis]
        start = inner.op["starts"][axis] + node.op["starts"][axis] * step
        steps.append(step * node.op["steps"][axis])
        starts.append(min(start, x.shape[axis]))
        stops.append(starts[-1] + max(0, (size - 1) * steps[-1] + 1) if size else starts[-1])
    return graph.add(
        "Slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps), loc=node.loc
    )
