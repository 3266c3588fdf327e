"""Operators that were written out in smaller ones are recognised by their formulas.

Each module of formulas has a tuple `RECOGNISED`; adding a formula is a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.dead_nodes import take_instead
from kdsl_fuse.template import COMMUTATIVE, Bound, Call, find


@dataclass(frozen=True, eq=False)
class Formula:
    """An expression, and what to put in its place: None where its parts do not fit after all."""

    expression: Call
    build: Callable[[Graph, Node, Bound], Node | None]


def recognise(graph: Graph, formulas: Iterable[Formula]) -> None:
    """Replace each value that one of the formulas computes; the first that fits counts."""
    by_root: dict[tuple[str, str | None], list[Formula]] = {}
    for formula in formulas:
        by_root.setdefault(_key(formula.expression), []).append(formula)
    for node in list(graph):
        if node.name not in graph.net:
            continue
        operands = graph.operands(node)
        first = operands[0].op.name if operands else None
        for formula in chain(*(by_root.get((node.op.name, x), ()) for x in (first, None))):
            bound = find(graph, formula.expression, node)
            made = None if bound is None else formula.build(graph, node, bound)
            if made is not None:
                take_instead(graph, node, made)
                break


def _key(expression: Call) -> tuple[str, str | None]:
    """The operator, and that of the first operand where only one is possible."""
    first = expression.operands[0]
    known = isinstance(first, Call) and expression.op not in COMMUTATIVE
    return expression.op, first.op if known and isinstance(first, Call) else None
