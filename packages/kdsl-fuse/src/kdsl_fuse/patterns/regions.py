"""Regions of pointwise nodes: what is left for element-wise kernels, in as few parts as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdsl_fuse.calls import stored
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import SOURCES, Facts, is_pointwise
from kdsl_fuse.ops import op_named
from kdsl_fuse.patterns.pointwise import needed_outside

if TYPE_CHECKING:
    import networkx as nx

MOST_NODES = 256  # of a kernel, whose code grows with them
MOST_ARRAYS = 24  # that a kernel reads, or that leave it: each takes registers
Regions = dict[str, tuple[Node, ...]]
"""The region of each node, in topological order."""


def regions_of(facts: Facts, takes: Callable[[Node], bool]) -> Regions:
    """The regions of all pointwise nodes without a kernel that `takes` admits.

    Nodes of one shape that read each other, or the same value, are together unless a way from one
    to another leads through other kernels: no region waits for itself, nor for one that waits for
    it. A node is put off to where its result is read. Time is linear in the size of the graph.
    """
    if "regions" not in facts.memo:
        facts.memo["regions"] = _Partition(facts, takes).regions()
    found: Regions = facts.memo["regions"]
    return found


@dataclass(frozen=True, eq=False)
class _Partition:
    facts: Facts
    takes: Callable[[Node], bool]

    def regions(self) -> Regions:
        """Connected nodes of equal shape and level, cut where they are too many for a kernel."""
        import networkx as nx

        graph, level = self.facts.graph, self._levels()
        members = [node for node in graph if node.name in level]
        near: nx.Graph[object] = nx.Graph()
        for node in members:
            key = (level[node.name], node.shape)
            near.add_node(node.name)
            for operand in graph.operands(node):
                if (level.get(operand.name), operand.shape) == key:
                    near.add_edge(operand.name, node.name)
                elif not operand.is_number:
                    near.add_edge(("read", operand.name, *key), node.name)
        found: Regions = {}
        for part in nx.connected_components(near):
            names = sorted(
                (x for x in part if isinstance(x, str)), key=self.facts.order.__getitem__
            )
            for piece in _pieces(graph, [graph[name] for name in names]):
                found |= dict.fromkeys((node.name for node in piece), piece)
        return found

    def _levels(self) -> dict[str, int]:
        """A number for each node of a region that grows wherever a value passes through memory."""
        import networkx as nx

        waits = self._waits()
        order = list(nx.topological_sort(waits))
        level: dict[Any, int] = {}
        for unit in order:
            steps = (level[x] + gap for x, _, gap in waits.in_edges(unit, data="gap"))
            level[unit] = max(steps, default=-1)
        for unit in reversed(order):
            later = [level[x] - gap for _, x, gap in waits.out_edges(unit, data="gap")]
            if later and isinstance(unit, str) and not self._returned(unit):
                level[unit] = max(level[unit], min(later))
        return {x: n for x, n in level.items() if isinstance(x, str) and self._taken(x)}

    def _waits(self) -> nx.DiGraph[Any]:
        """Kernels, and nodes without one, with the least difference of their levels."""
        import networkx as nx

        graph, home = self.facts.graph, self.facts.home
        waits: nx.DiGraph[Any] = nx.DiGraph()
        for node in graph:
            unit = home.get(node.name, node.name)
            waits.add_node(unit)
            for operand in graph.operands(node):
                before = home.get(operand.name, operand.name)
                if before == unit:
                    continue
                gap = 0 if self._is_view(unit) or self._together(operand, node) else 1
                known = waits.get_edge_data(before, unit, {"gap": 0})["gap"]
                waits.add_edge(before, unit, gap=max(gap, known))
        return waits

    def _taken(self, name: str) -> bool:
        node = self.facts.graph[name]
        return name not in self.facts.home and is_pointwise(node) and self.takes(node)

    def _together(self, a: Node, b: Node) -> bool:
        return a.shape == b.shape and self._taken(a.name) and self._taken(b.name)

    def _is_view(self, unit: Any) -> bool:
        """Whether it is a node that no kernel writes."""
        if not isinstance(unit, str):
            return False
        node = self.facts.graph[unit]
        is_view = op_named(node.op.name).view is not None
        return is_view and stored(self.facts.graph, node)[0] is not node

    def _returned(self, name: str) -> bool:
        node = self.facts.graph[name]
        return node.op.name in SOURCES or self.facts.graph.is_output(node)


def _pieces(graph: Graph, nodes: list[Node]) -> Iterator[tuple[Node, ...]]:
    """Nodes in topological order, cut where a kernel would get too many of them, or of arrays."""
    names = {node.name for node in nodes}
    piece: list[Node] = []
    arrays: set[str] = set()
    for node in nodes:
        own = {x.name for x in graph.operands(node) if x.name not in names and not x.is_number}
        own |= {node.name} if needed_outside(graph, node, names) else set()
        if piece and (len(piece) == MOST_NODES or len(arrays | own) > MOST_ARRAYS):
            yield tuple(piece)
            piece, arrays = [], set()
        piece.append(node)
        arrays |= own
    yield tuple(piece)
