"""What fusion saves: memory traffic and launches, and both as time."""

from __future__ import annotations

from dataclasses import dataclass

from kdsl_fuse.calls import stored
from kdsl_fuse.graph import Graph
from kdsl_fuse.patterns.base import Match

# An H200 copies 4.26 TB/s (docs/facts.md), and one more kernel in a CUDA graph costs about 2 µs;
# covers depend on the ratio of the two only, which is alike on other chips.
BYTES_PER_US = 4.26e6
LAUNCH_US = 2.0
# A node without a kernel stops the plan, or runs in NumPy: no saving outweighs that.
UNCOVERED_US = 1e6


@dataclass(frozen=True)
class Savings:
    """What fusion saves against one kernel per operator."""

    bytes: int
    launches: int

    @property
    def us(self) -> float:
        """The same as time, in µs."""
        return self.bytes / BYTES_PER_US + self.launches * LAUNCH_US


def savings(graph: Graph, match: Match) -> Savings:
    """Each interior value is neither written nor read back; each operator inside is no launch.

    A value that is stored and read inside as well is not read back.
    """
    members = {node.name for node in match.covered}
    traffic = 0
    for node in match.covered:
        readers = sum(consumer.name in members for consumer in graph.consumers(node))
        traffic += node.bytes * (readers + (node not in match.stores))
    traffic += sum(2 * node.bytes for node in match.recomputed)
    return Savings(traffic, _computed(graph, match) - 1 + len(match.recomputed))


def gain_us(graph: Graph, match: Match) -> float:
    """How much better a plan is with this match than with none of its nodes covered, in µs."""
    return savings(graph, match).us + match.preference_us + UNCOVERED_US * _computed(graph, match)


def _computed(graph: Graph, match: Match) -> int:
    """How many of the covered nodes are values of their own, no views of others."""
    return sum(stored(graph, node)[0] is node for node in match.covered)
