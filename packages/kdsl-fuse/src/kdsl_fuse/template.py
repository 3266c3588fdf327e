"""Small expressions to be found in a graph, whatever the order of commutative operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import is_free

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"})


@dataclass(frozen=True, eq=False)
class Value:
    """Any value; the same one wherever this object stands in an expression."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class Number:
    """A Python number: any one, or the one stated (to 1 part in a million)."""

    value: float | None = None


@dataclass(frozen=True, eq=False)
class Attr:
    """Any value of an attribute; the same one wherever this object stands."""


@dataclass(frozen=True, eq=False)
class Call:
    """An operator on expressions. The same object stands for the same node."""

    op: str
    operands: tuple[Expression, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


Expression = Value | Number | Call
Bound = dict[Any, Any]
"""What was found for each part of an expression: nodes, and values of attributes."""


class _Words:
    """`words.Add(a, b, axis=0)` is the expression of that operator."""

    def __getattr__(self, op: str) -> Any:
        def call(*operands: Expression | float, **attrs: Any) -> Call:
            made = (Number(x) if isinstance(x, int | float) else x for x in operands)
            return Call(op, tuple(made), attrs)

        return call


words = _Words()


def find(graph: Graph, expression: Call, node: Node) -> Bound | None:
    """The parts of an expression whose result is `node`; None where it is another one.

    Its interior values must not be needed outside of it.
    """
    if expression.op != node.op.name:
        return None
    bound = _solve(graph, ((expression, node),), {})
    return None if bound is None or _leaks(graph, bound, node) else bound


def _solve(graph: Graph, left: tuple[tuple[Expression, Node], ...], bound: Bound) -> Bound | None:
    if not left:
        return bound
    (part, node), *rest = left
    if part in bound:
        return _solve(graph, tuple(rest), bound) if bound[part] is node else None
    if isinstance(part, Call):
        return _solve_call(graph, part, node, tuple(rest), bound)
    if isinstance(part, Number) and not _is_number(node, part.value):
        return None
    return _solve(graph, tuple(rest), {**bound, part: node})


def _solve_call(
    graph: Graph, part: Call, node: Node, rest: tuple[tuple[Expression, Node], ...], bound: Bound
) -> Bound | None:
    operands = graph.operands(node)
    if part.op != node.op.name or len(operands) != len(part.operands):
        return None
    found = {**bound, part: node}
    given = dict(node.op.attrs)
    for name, wanted in part.attrs.items():
        value = given[name]
        if (
            found.setdefault(wanted, value) != value
            if isinstance(wanted, Attr)
            else wanted != value
        ):
            return None
    orders = permutations(operands) if part.op in COMMUTATIVE else [operands]
    for order in orders:
        pairs = zip(part.operands, order, strict=True)
        solution = _solve(graph, (*pairs, *rest), found)
        if solution is not None:
            return solution
    return None


def _is_number(node: Node, wanted: float | None) -> bool:
    if not node.is_number or isinstance(node.constant, bool):
        return False
    return wanted is None or math.isclose(float(node.constant), wanted, rel_tol=1e-6)


def _leaks(graph: Graph, bound: Bound, root: Node) -> bool:
    inside = {node.name for part, node in bound.items() if isinstance(part, Call)}
    return any(
        graph.is_output(node) or any(c.name not in inside for c in graph.consumers(node))
        for part, node in bound.items()
        if isinstance(part, Call) and node is not root and not is_free(node)
    )
