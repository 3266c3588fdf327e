"""Pointwise nodes of a match as an `ElementFunction`, and which nodes there may be in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kdsl_core.dtypes import i64, u64
from kdsl_core.ir.target import target_of
from kdsl_fuse import calls
from kdsl_fuse.calls import Operand
from kdsl_fuse.elements import ElementFunction
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, side_nodes
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import Options
from kdsl_fuse.patterns.tails import LOADED, python_number, step_of
from kdsl_fuse.reasons import Reason
from kdsl_fuse.strided import Shape
from kdsl_fuse.tail import Step, number_step

HOPPER = 90
COMPUTED = (*LOADED, i64, u64)
# Operators that cost a thread as good as nothing: they are done again for each element that reads
# a broadcast result, instead of by a kernel of their own.
CHEAP = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu",
        "Rsqrt", "Sqrt", "Sub", "Where", "Xor",
    }
)  # fmt: skip

_ONCE = Reason("KF-COST", "it is better computed once")


def computable(graph: Graph, node: Node) -> Reason | None:
    """Refuse a node that memory-bound kernels cannot evaluate for one element, or store."""
    for value in (node, *graph.operands(node)):
        if value.dtype not in COMPUTED:
            return Reason(
                "KF-DTYPE",
                f"kernels compute each element in f32 or in integers, and {value}, "
                f"of {node.name} ({line_of(node.loc)}), is neither",
                fix=f"cast it in the function: kf.cast({value.name}, 'f32')",
            )
    if 0 in node.shape:
        return Reason("KF-SHAPE", f"there is nothing to compute in {node} ({line_of(node.loc)})")
    return None


def recomputed(
    facts: Facts, nodes: Sequence[Node], shape: Shape, *, alone: bool = False
) -> list[Node]:
    """Cheap nodes smaller than `shape` that feed `nodes` from arguments alone.

    With `alone` also nodes of that shape that nothing else reads: they need no kernel then.
    """
    graph = facts.graph

    def admit(node: Node) -> Reason | None:
        if node.shape == shape:
            fits = alone and len(graph.consumers(node)) == 1 and not graph.is_output(node)
        else:
            fits = node.op.name in CHEAP
        return computable(graph, node) if fits else _ONCE

    return side_nodes(facts, [nodes[0], *nodes], admit) if nodes else []


def build(
    graph: Graph,
    nodes: Iterable[Node],
    results: Sequence[Node],
    given: Mapping[str, int] | None = None,
    *,
    rounded: bool = False,
) -> tuple[ElementFunction, list[Node]]:
    """The function of `nodes`, operands before consumers, and the values that it loads.

    Operands are those `given` by number, from 0, then the loaded ones. Results are written to
    memory in their own types unless they are `rounded` for further use.
    """
    nodes, index = list(nodes), dict(given or {})
    first = len(index)
    computed = {*index, *(node.name for node in nodes)}
    reads = [x for node in nodes for x in graph.operands(node) if x.name not in computed]
    reads += [x for x in results if x.name not in computed]
    loaded = list(dict.fromkeys(x for x in reads if not x.is_number))
    index |= {node.name: first + position for position, node in enumerate(loaded)}
    first += len(loaded)
    steps: list[Step] = []
    for node in [*dict.fromkeys(x for x in reads if x.is_number), *nodes]:
        steps += _steps(graph, node, index, first + len(steps))
        index[node.name] = first + len(steps) - 1
    numbers = tuple(index[_stored(graph, x, rounded, computed).name] for x in results)
    return ElementFunction(first, tuple(steps), numbers), loaded


def _steps(graph: Graph, node: Node, index: Mapping[str, int], place: int) -> list[Step]:
    """The node; behind integers of few bits, which are computed in 32, what cuts off the others."""
    if node.is_number:
        return [number_step(python_number(node))]
    args = tuple(index[x.name] for x in graph.operands(node))
    step = step_of(node, args)
    if node.op.name == "Cast" or not node.dtype.is_int or node.dtype.bits >= 32:
        return [step]
    return [step, Step("Cast", (place,), (("to", node.dtype.name),), node.loc)]


def _stored(graph: Graph, node: Node, rounded: bool, computed: set[str]) -> Node:
    """The value to store for a node: a last cast of floats is what the store itself does."""
    if rounded or node.op.name != "Cast" or node.name not in computed:
        return node
    (source,) = graph.operands(node)
    return source if source.dtype.is_float and node.dtype.is_float else node


def operand_of(graph: Graph, node: Node, shape: Shape) -> Operand:
    """The Operand that reads `node` repeated to `shape`."""
    read = calls.operand(graph, node)
    return read.seen_as(read.layout.broadcast(shape))


def needed_outside(graph: Graph, node: Node, members: set[str]) -> bool:
    """Whether the graph returns the node, or anything but `members` reads it."""
    return graph.is_output(node) or any(c.name not in members for c in graph.consumers(node))


def overlaps(options: Options) -> bool:
    """Whether kernels of the target can wait for the launch before themselves."""
    return target_of(options.target).number >= HOPPER
