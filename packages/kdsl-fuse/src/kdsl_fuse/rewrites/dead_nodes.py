"""Values that no output needs are not computed."""

from __future__ import annotations

from kdsl_fuse.graph import Graph


def drop_dead_nodes(graph: Graph) -> None:
    """Remove every node that no output depends on; arguments stay."""
    returned = {output.name for output in graph.outputs}
    for node in reversed(list(graph)):
        kept = node.op.name == "Input" or node.name in returned
        if not kept and not graph.consumers(node):
            graph.remove(node)
