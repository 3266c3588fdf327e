"""Pointwise tails of any kernel that computes one value for each element of a row-major result.

A pattern grows a tail with `admit` and `storable`, and lowers it with `build_tail`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kdsl_core.dtypes import bf16, boolean, f16, f32, i8, i16, i32, u8, u16, u32
from kdsl_fuse import calls
from kdsl_fuse.calls import Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, Guard, grow_tail, is_pointwise, side_nodes
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import Match, Pattern
from kdsl_fuse.patterns.folds import Fold, as_rows
from kdsl_fuse.reasons import Reason
from kdsl_fuse.strided import Shape
from kdsl_fuse.tail import Step, Tail, number_step

MOST_VARIANTS = 8  # matches at one anchor that a cover chooses from
FLOATS = (f16, bf16, f32)
COMPUTED = (*FLOATS, boolean)
LOADED = (*COMPUTED, i8, i16, i32, u8, u16, u32)
# Operators whose code calls functions that the hardware has in an approximate form.
APPROXIMATED = frozenset(
    {
        "Elu", "Erf", "Exp", "Gelu", "Log", "Mish", "Rsqrt", "Sigmoid", "Silu", "Softplus", "Sqrt",
        "Tanh",
    }
)  # fmt: skip


def _computable(graph: Graph, node: Node) -> Reason | None:
    """Refuse nodes that the kernel cannot evaluate for one element."""
    where = f"{node.name} ({line_of(node.loc)})"
    if node.dtype not in COMPUTED:
        return Reason("KF-DTYPE", f"a tail computes in f32, and {where} is {node.dtype}")
    for operand in graph.operands(node):
        if operand.dtype not in LOADED:
            return Reason("KF-DTYPE", f"a tail cannot load {operand}, which {where} reads")
    return None


def storable(node: Node) -> Reason | None:
    """Refuse a value that a kernel does not store."""
    if node.dtype in FLOATS:
        return None
    return Reason(
        "KF-DTYPE",
        f"the kernel stores f16, bf16 or f32, and {node.name} ({line_of(node.loc)}) "
        f"is {node.dtype}",
        fix=f"cast it in the function: kf.cast({node.name}, 'f32')",
    )


def admit(graph: Graph, anchor: Node, fold: Fold = as_rows) -> Guard:
    """What refuses nodes as members of the anchor's tail; the kernel sees values by `fold`."""

    def guard(node: Node) -> Reason | None:
        if node.shape != anchor.shape:
            return Reason(
                "KF-SHAPE",
                f"the tail of {anchor.name} has shape {list(anchor.shape)}, and {node.name} "
                f"({line_of(node.loc)}) has {list(node.shape)}",
            )
        return evaluable(graph, anchor, node, fold)

    return guard


def evaluable(graph: Graph, anchor: Node, node: Node, fold: Fold = as_rows) -> Reason | None:
    """Refuse a node that a kernel cannot evaluate for each element of the anchor's shape."""
    refusal = _computable(graph, node)
    if refusal is not None:
        return refusal
    for operand in graph.operands(node):
        if not operand.is_number and as_seen(graph, operand, anchor.shape, fold) is None:
            return Reason(
                "KF-LAYOUT",
                f"the kernel merges {_merged(fold)}, and {operand}, which {node.name} "
                f"({line_of(node.loc)}) reads, repeats along some of them",
            )
    return None


def _merged(fold: Fold) -> str:
    return f"all axes but the last{'' if fold is as_rows else ' two'}"


def as_seen(graph: Graph, node: Node, shape: Shape, fold: Fold = as_rows) -> Operand | None:
    """`node` repeated to `shape`, as a kernel sees it."""
    read = calls.operand(graph, node)
    layout = fold(read.layout.broadcast(shape))
    return None if layout is None else read.seen_as(layout)


def with_tails(
    pattern: Pattern, facts: Facts, anchor: Node, fold: Fold = as_rows, preference_us: float = 0.0
) -> list[Match]:
    """The anchor with each tail that has one way out, the longest first."""
    growth = grow_tail(facts, [anchor], admit(facts.graph, anchor, fold), storable)
    simple = partial(evaluable, facts.graph, anchor, fold=fold)
    return [
        Match(
            pattern,
            tuple(growth.members[:size]),
            recomputed=tuple(side_nodes(facts, growth.members[:size], simple)),
            refused=growth.reasons if size == growth.cuts[-1] else {},
            role="in the epilogue of",
            preference_us=preference_us,
        )
        for size in growth.cuts[: -1 - MOST_VARIANTS : -1]
    ]


def build_tail(
    graph: Graph, match: Match, sums: Sequence[Node] = (), fold: Fold = as_rows
) -> tuple[Tail, tuple[Operand, ...]]:
    """The match's pointwise nodes as a Tail, and the arrays that it loads, in its order.

    `sums` are the accumulators, the match's anchor unless stated.
    """
    sums = sums or (match.anchor,)
    nodes = [*match.recomputed, *(node for node in match.covered if is_pointwise(node))]
    computed = {node.name for node in (*sums, *nodes)}
    reads = [x for node in nodes for x in graph.operands(node) if x.name not in computed]
    loaded = list(dict.fromkeys(x for x in reads if not x.is_number))
    index = {node.name: position for position, node in enumerate((*sums, *loaded))}
    steps: list[Step] = []
    first = len(index)
    for node in [*dict.fromkeys(x for x in reads if x.is_number), *nodes]:
        args = tuple(index[x.name] for x in graph.operands(node))
        step = number_step(python_number(node)) if node.is_number else step_of(node, args)
        index[node.name] = first + len(steps)
        steps.append(step)
    result = match.root
    if result.op.name == "Cast" and _closes(graph.operands(result)[0], computed):
        steps.pop()
        (result,) = graph.operands(result)
    tail = Tail(tuple(x.dtype.name for x in loaded), tuple(steps), index[result.name], len(sums))
    extras = [as_seen(graph, x, sums[0].shape, fold) for x in loaded]
    return tail, tuple(extra for extra in extras if extra is not None)


def step_of(node: Node, args: tuple[int, ...]) -> Step:
    """The step that computes a node from values by number.

    For values of 16 bits approximate functions do, as one kernel for each operator would round them
    further.
    """
    quick = node.op.name in APPROXIMATED and node.dtype.bits <= 16
    return Step(node.op.name, args, node.op.attrs, node.loc, quick)


def _closes(source: Node, computed: set[str]) -> bool:
    """Whether a last cast of `source` does what the kernel's store does: one rounding from f32."""
    return source.name in computed and source.dtype.is_float


def python_number(node: Node) -> bool | int | float:
    """The number that a Constant holds."""
    value = node.constant
    number: bool | int | float = value.item() if hasattr(value, "item") else value
    return number
