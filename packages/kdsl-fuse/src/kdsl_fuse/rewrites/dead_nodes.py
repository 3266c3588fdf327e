"""Values that no output needs are not computed."""

from __future__ import annotations

from kdsl_fuse.graph import Graph, Node


def drop_dead_nodes(graph: Graph) -> None:
    """Remove every node that no output depends on; arguments stay."""
    returned = {output.name for output in graph.outputs}
    for node in reversed(list(graph)):
        kept = node.op.name == "Input" or node.name in returned
        if not kept and not graph.consumers(node):
            graph.remove(node)


def take_instead(graph: Graph, node: Node, new: Node) -> None:
    """Let everything read `new` instead of `node`, and remove what nothing needs any more."""
    graph.replace(node, new)
    drop_unused(graph, node)


def drop_unused(graph: Graph, node: Node) -> None:
    """Remove a node that nothing reads, and its operands that nothing else reads."""
    left = [node]
    while left:
        node = left.pop()
        unused = node.name in graph.net and not graph.consumers(node) and not graph.is_output(node)
        if unused and node.op.name != "Input":
            left.extend(graph.operands(node))
            graph.remove(node)
