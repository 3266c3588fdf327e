"""Kernels of the caller's own for sub-graphs that a function describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_fuse import calls
from kdsl_fuse.arrays import Spec
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, is_free
from kdsl_fuse.ops.custom import Launch
from kdsl_fuse.patterns.base import Example, Match, Options, Pattern
from kdsl_fuse.patterns.custom import call_of
from kdsl_fuse.reasons import Reason
from kdsl_fuse.template import Call, Expression, Number, Value, find

REGISTERED: list[Pattern] = []
FIRST_US = 1000.0  # what a registered kernel is preferred by, more than any one kernel saves

Choose = Callable[..., Launch | None]


class Registered:
    """The sub-graph that a function of arrays describes, computed by the caller's kernel.

    `choose(*specs)` gets dtype, shape and strides of the operands in the order of the function's
    arguments, and returns the launch, or None where the kernel does not take them.
    """

    examples: tuple[Example, ...] = ()

    def __init__(self, name: str, graph: Graph, choose: Choose) -> None:
        self.name = name
        self._choose = choose
        self._operands, self._expression = expression_of(graph)
        self.anchors: tuple[str, ...] = (self._expression.op,)

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The sub-graph that ends at the anchor."""
        bound = find(facts.graph, self._expression, anchor)
        if bound is None:
            return []
        nodes = [node for part, node in bound.items() if isinstance(part, Call)]
        inside = {node.name: node for node in nodes if not is_free(node)}
        covered = sorted(inside.values(), key=lambda node: facts.order[node.name])
        operands = tuple(bound[value] for value in self._operands)
        if self._launch(facts.graph, operands) is None:
            return Reason("KF-SHAPE", f"{self.name} does not take {', '.join(map(str, operands))}")
        return [Match(self, tuple(covered), preference_us=FIRST_US)]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The caller's launch."""
        bound = find(graph, self._expression, match.root)
        assert bound is not None, f"{match.root} was matched before"
        operands = tuple(bound[value] for value in self._operands)
        launch = self._launch(graph, operands)
        assert launch is not None, f"{self.name} took these operands before"
        return call_of(graph, launch, operands, match.root)

    def _launch(self, graph: Graph, operands: Sequence[Node]) -> Launch | None:
        reads = (calls.operand(graph, node) for node in operands)
        return self._choose(*(Spec(read.dtype, read.shape, read.strides) for read in reads))


def expression_of(graph: Graph) -> tuple[list[Value], Call]:
    """The arguments of a graph with one result, and the expression that computes it.

    Raises: ArgumentError K964 for a graph that holds arrays, or has no or several results.
    """
    parts: dict[str, Expression] = {}
    for node in graph:
        operands = tuple(parts[operand.name] for operand in graph.operands(node))
        if node.op.name == "Input":
            parts[node.name] = Value(node.name)
        elif node.is_number:
            parts[node.name] = Number(float(node.constant))
        elif node.op.name == "Constant":
            raise _unfit(f"it holds the array {node}", "pass the array as an argument")
        else:
            parts[node.name] = Call(node.op.name, operands, dict(node.op.attrs))
    result = parts[graph.outputs[0].name]
    if len(graph.outputs) != 1 or not isinstance(result, Call):
        raise _unfit("it does not return one computed array", "return the value that is stored")
    given = [parts[node.name] for node in graph.inputs]
    return [value for value in given if isinstance(value, Value)], result


def _unfit(why: str, fix: str) -> ArgumentError:
    return ArgumentError(f"a registered function describes one kernel: {why}", code="K964", fix=fix)


def register(
    pattern: Pattern | Callable[..., Any], specs: Sequence[Any] = (), choose: Choose | None = None
) -> Pattern:
    """Let a kernel of your own compute its sub-graphs, before all kernels of kdsl.

    Either give a `Pattern`, or a function of arrays that describes the sub-graph, `kd.spec`s to
    trace it with (their number of axes counts, their sizes do not), and `choose(*specs)`, which
    returns the `kf.Launch` for operands that have these types, or None. Functions that were planned
    before keep their plans.

    Returns the pattern, for `unregister`.
    Raises: ArgumentError K964 for a function that describes no single kernel.
    """
    if choose is not None:
        made: Any = _described(pattern, specs, choose)
    else:
        made = pattern
    if not all(hasattr(made, word) for word in ("name", "anchors", "match", "lower")):
        raise _unfit(f"got {made!r} alone", "give kd.specs and choose with it, or a Pattern")
    found: Pattern = made
    REGISTERED.append(found)
    return found


def _described(function: Any, specs: Sequence[Any], choose: Choose) -> Registered:
    from kdsl_fuse.frontends.python import fuse
    from kdsl_fuse.rewrites import rewrite

    graph = fuse(function).graph(*specs)
    rewrite(graph)
    return Registered(getattr(function, "__name__", "registered"), graph, choose)


def unregister(pattern: Pattern) -> None:
    """Take back what `register` returned."""
    REGISTERED.remove(pattern)
