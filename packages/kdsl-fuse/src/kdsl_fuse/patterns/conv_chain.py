"""What patterns share that cover a convolution, pointwise nodes, and one more operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kdsl_fuse.calls import Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail
from kdsl_fuse.patterns.base import Match
from kdsl_fuse.patterns.folds import as_is
from kdsl_fuse.patterns.tails import admit, build_tail
from kdsl_fuse.tail import Tail


def up_to(facts: Facts, anchor: Node, operator: str) -> tuple[list[Node], Node | None]:
    """The convolution with pointwise nodes up to an `operator` that alone reads them, and that."""
    graph = facts.graph
    growth = grow_tail(facts, [anchor], admit(graph, anchor, as_is), lambda node: None)
    for size in growth.cuts:
        head = growth.members[:size]
        readers = graph.consumers(head[-1])
        single = len(readers) == 1 and not graph.is_output(head[-1])
        if single and readers[0].op.name == operator:
            return head, readers[0] if graph.operands(readers[0])[0] is head[-1] else None
    return [anchor], None


def tail_of(graph: Graph, match: Match, part: Sequence[Node]) -> tuple[Tail, tuple[Operand, ...]]:
    """A part of the match as a tail of its first node, and what that loads."""
    wanted = {x.name for node in part[1:] for x in graph.operands(node)}
    recomputed: list[Node] = []
    for node in reversed(match.recomputed):
        if node.name in wanted:
            recomputed.insert(0, node)
            wanted |= {x.name for x in graph.operands(node)}
    own = replace(match, covered=tuple(part), stores=(part[-1],), recomputed=tuple(recomputed))
    return build_tail(graph, own, sums=(part[0],), fold=as_is)
