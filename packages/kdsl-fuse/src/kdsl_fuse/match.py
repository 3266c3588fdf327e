"""Finding the largest pointwise tail of a node that can leave the kernel as one value."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.ops import op_named
from kdsl_fuse.origin import line_of
from kdsl_fuse.reasons import Reason

Guard = Callable[[Node], Reason | None]

SOURCES = frozenset({"Input", "Constant"})


def is_free(node: Node) -> bool:
    """Whether the node's operator computes nothing: it is an argument, a number or a view."""
    return node.op.name in SOURCES or op_named(node.op.name).view is not None


@dataclass
class Growth:
    """What grew from anchors: `members` in order, of which the first cuts[i] are legal, each i.

    `reasons` says of each node behind the last cut why it stayed outside. Of several anchors there
    may be no cut, since only a node that ends them all makes one.
    """

    members: list[Node]
    cuts: list[int]
    reasons: dict[str, Reason] = field(default_factory=dict)

    @property
    def covered(self) -> list[Node]:
        """The anchors and their longest legal tail."""
        return self.members[: self.cuts[-1] if self.cuts else 0]


@dataclass(frozen=True)
class Facts:
    """What matching needs to know about a whole graph, computed once.

    `order` numbers the nodes topologically; `from_arguments` names the values that arguments and
    constants give through free and pointwise operators alone. `home` numbers the kernel of each
    node that has one already, where a pattern is asked for what is left. `memo` holds what
    patterns found out about the whole graph.
    """

    graph: Graph
    order: dict[str, int]
    from_arguments: frozenset[str]
    home: dict[str, int] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, graph: Graph) -> Facts:
        """Read them off a graph."""
        order: dict[str, int] = {}
        simple: set[str] = set()
        for index, node in enumerate(graph):
            order[node.name] = index
            local = is_free(node) or is_pointwise(node)
            if local and all(operand.name in simple for operand in graph.operands(node)):
                simple.add(node.name)
        return cls(graph, order, frozenset(simple))

    def beside(self, kernels: Iterable[Iterable[Node]]) -> Facts:
        """The same graph, some nodes of which have kernels."""
        home = {node.name: number for number, nodes in enumerate(kernels) for node in nodes}
        return replace(self, home=home, memo={})


def is_pointwise(node: Node) -> bool:
    """Whether the node's operator works element by element."""
    return op_named(node.op.name).is_pointwise


def grow_tail(facts: Facts, anchors: Sequence[Node], admit: Guard, store: Guard) -> Growth:
    """Follow the pointwise consumers of the anchors, and keep the longest part with one way out.

    `admit` refuses a node as a member, `store` refuses it as the value that is written. A node is a
    legal way out when every edge that leaves an earlier member ends in a member: then, and only
    then, no interior value is needed elsewhere. Growth stops at the first edge that can never end
    in a member, so a network of many layers is not walked once per layer.
    """
    graph = facts.graph
    growth = Growth(list(anchors), [1] if len(anchors) == 1 else [])
    members = {anchor.name for anchor in anchors}
    frontier = _Frontier(graph, facts.order, admit, growth.reasons)
    for anchor in anchors:
        frontier.leave(anchor)
    while not frontier.sealed and (node := frontier.pop()) is not None:
        frontier.open_edges -= sum(operand.name in members for operand in graph.operands(node))
        members.add(node.name)
        growth.members.append(node)
        if frontier.open_edges == 0:
            refusal = store(node)
            if refusal is None:
                growth.cuts.append(len(growth.members))
            else:
                growth.reasons[node.name] = refusal
        frontier.leave(node)
    _explain_the_rest(graph, growth, frontier.waiting())
    return growth


class _Frontier:
    """Edges that leave the members: those whose ends wait, in topological order, to be members.

    `sealed` says that an edge, or a return, leaves for good.
    """

    def __init__(
        self, graph: Graph, order: dict[str, int], admit: Guard, reasons: dict[str, Reason]
    ) -> None:
        self.open_edges = 0
        self.sealed = False
        self._graph = graph
        self._order = order
        self._admit = admit
        self._reasons = reasons
        self._heap: list[tuple[int, str]] = []
        self._seen: set[str] = set()

    def leave(self, node: Node) -> None:
        """Add the edges that leave a new member."""
        self.sealed |= self._graph.is_output(node)
        for consumer in self._graph.consumers(node):
            self.open_edges += 1
            if consumer.name not in self._seen:
                self._seen.add(consumer.name)
                self._meet(consumer)

    def _meet(self, consumer: Node) -> None:
        refusal = self._admit(consumer) if is_pointwise(consumer) else None
        if refusal is not None:
            self._reasons[consumer.name] = refusal
        if refusal is not None or not is_pointwise(consumer):
            self.sealed = True
        else:
            heapq.heappush(self._heap, (self._order[consumer.name], consumer.name))

    def pop(self) -> Node | None:
        """The next node that may become a member."""
        return self._graph[heapq.heappop(self._heap)[1]] if self._heap else None

    def waiting(self) -> list[Node]:
        """The nodes that were not reached."""
        return [self._graph[name] for _, name in sorted(self._heap)]


def _explain_the_rest(graph: Graph, growth: Growth, waiting: list[Node]) -> None:
    seen = [*growth.members, *waiting]
    names = {node.name for node in seen}
    inner = {node.name for node in growth.covered[:-1]}
    outer = [node for node in seen if node.name not in inner]
    escaping = [node for node in outer if _needed_outside(graph, node, names)]
    for node in seen[len(growth.covered) :]:
        other = next((other for other in escaping if other is not node), None)
        if node.name not in growth.reasons and other is not None:
            growth.reasons[node.name] = escapes(graph, other, names)


def _needed_outside(graph: Graph, node: Node, members: set[str]) -> bool:
    return graph.is_output(node) or any(
        consumer.name not in members for consumer in graph.consumers(node)
    )


def escapes(graph: Graph, node: Node, members: set[str]) -> Reason:
    """The refusal that names a value and who else needs it."""
    readers = [c for c in graph.consumers(node) if c.name not in members]
    if graph.is_output(node):
        who = "returned"
    else:
        who = f"read by {readers[0].name} ({line_of(readers[0].loc)})"
    return Reason(
        "KF-ESCAPES",
        f"{node.name} ({line_of(node.loc)}) is also {who}, and the kernel stores one value",
        fix=f"compute {node.name} in a fused function of its own, or do not keep it",
    )


def side_nodes(facts: Facts, region: list[Node], admit: Guard, anchors: int = 1) -> list[Node]:
    """Pointwise nodes that feed the tail behind the anchors from arguments alone, in order.

    They are recomputed for each element inside the kernel, so nothing escapes even if others read
    them too.
    """
    graph = facts.graph
    seen = {node.name for node in region}
    found: list[Node] = []
    stack = [operand for node in region[anchors:] for operand in graph.operands(node)]
    while stack:
        node = stack.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        if is_pointwise(node) and node.name in facts.from_arguments and admit(node) is None:
            found.append(node)
            stack.extend(graph.operands(node))
    return sorted(found, key=lambda node: facts.order[node.name])
