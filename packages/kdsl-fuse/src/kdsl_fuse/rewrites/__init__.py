"""Changes that bring a graph into the form that patterns expect, in the order of application."""

from __future__ import annotations

from collections.abc import Callable

from kdsl_fuse.graph import Graph
from kdsl_fuse.rewrites.dead_nodes import drop_dead_nodes

ALL_REWRITES: tuple[Callable[[Graph], None], ...] = (drop_dead_nodes,)


def rewrite(graph: Graph) -> None:
    """Apply all of them once, in place."""
    for change in ALL_REWRITES:
        change(graph)
