"""GEMM + epilogue: a matrix product and any pointwise tail, in one kernel with one store."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import partial

from kdsl_core.dtypes import bf16, boolean, f16, f32, i8, i16, i32, u8, u16, u32
from kdsl_fuse import calls
from kdsl_fuse.calls import KernelCall, Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, Guard, grow_tail, side_nodes
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import Match, Options
from kdsl_fuse.patterns.gemm_families import Gemm, call_of
from kdsl_fuse.reasons import Reason
from kdsl_fuse.tail import Step, Tail, number_step

FLOATS = (f16, bf16, f32)
COMPUTED = (*FLOATS, boolean)
LOADED = (*COMPUTED, i8, i16, i32, u8, u16, u32)
OLDEST_ARCHITECTURE = 80  # mma.sync on bf16 and tf32, and cp.async


class GemmEpilogue:
    """act(x @ w * s + b …) + residual …: A and B in any major order, accumulated in f32."""

    name = "gemm_epilogue"
    anchor = "MatMul"

    def match(
        self, facts: Facts, anchor: Node, claimed: Set[str], options: Options
    ) -> Match | Reason:
        """The product with the longest tail that has one way out."""
        refusal = guard(facts.graph, anchor, options)
        if refusal is not None:
            return refusal
        growth = grow_tail(facts, anchor, _admit(facts.graph, anchor, claimed), _store)
        extra = side_nodes(facts, growth.covered, partial(_computes, facts.graph))
        return Match(self, tuple(growth.covered), tuple(extra), growth.reasons)

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of a GEMM kernel with the tail as its epilogue."""
        a, b = graph.operands(match.anchor)
        tail, extras = build_tail(graph, match)
        left, right = calls.operand(graph, a), calls.operand(graph, b, transpose=True)
        return call_of(Gemm(left, right, extras, match.root, tail), options)


# -- guards ---------------------------------------------------------------------------------


def guard(graph: Graph, node: Node, options: Options) -> Reason | None:
    """Why the kernel cannot compute this product at all."""
    a, b = graph.operands(node)
    return (
        _rank(a, b)
        or _sizes(a, b)
        or _dtypes(a, b)
        or _target(options.target)
        or _strides(graph, a)
        or _strides(graph, b)
    )


def _rank(a: Node, b: Node) -> Reason | None:
    if a.rank == b.rank == 2:
        return None
    return Reason(
        "KF-RANK",
        f"the GEMM kernel multiplies matrices, got {a} and {b}",
        fix="merge the batch axes before the call: x.reshape(-1, k) @ w",
    )


def _sizes(a: Node, b: Node) -> Reason | None:
    if min(*a.shape, *b.shape) > 0:
        return None
    return Reason("KF-SHAPE", f"the GEMM kernel needs sizes of at least 1, got {a} and {b}")


def _dtypes(a: Node, b: Node) -> Reason | None:
    if a.dtype is b.dtype and a.dtype in FLOATS:
        return None
    return Reason(
        "KF-DTYPE",
        f"the GEMM kernel multiplies f16, bf16 or f32, both operands alike, got {a} and {b}",
        fix="cast the arrays before the call",
    )


def _target(target: str) -> Reason | None:
    found = re.match(r"sm_(\d+)", target)
    if found is None or int(found[1]) >= OLDEST_ARCHITECTURE:
        return None
    return Reason("KF-TARGET", f"gemm_sm80 needs sm_80 or newer, the target is {target}")


def _strides(graph: Graph, node: Node) -> Reason | None:
    read = calls.operand(graph, node)
    if 1 in read.strides:
        return None
    return Reason(
        "KF-LAYOUT",
        f"the GEMM kernel needs one axis with stride 1, got {read}",
        fix=f"copy {read.value} to a dense array: numpy.ascontiguousarray({read.value})",
    )


def _computes(graph: Graph, node: Node) -> Reason | None:
    """Refuse nodes that the kernel cannot evaluate for one element."""
    where = f"{node.name} ({line_of(node.loc)})"
    if node.dtype not in COMPUTED:
        return Reason("KF-DTYPE", f"a tail computes in f32, and {where} is {node.dtype}")
    for operand in graph.operands(node):
        if operand.dtype not in LOADED:
            return Reason("KF-DTYPE", f"a tail cannot load {operand}, which {where} reads")
    return None


def _store(node: Node) -> Reason | None:
    if node.dtype in FLOATS:
        return None
    return Reason(
        "KF-DTYPE",
        f"the kernel stores f16, bf16 or f32, and {node.name} ({line_of(node.loc)}) "
        f"is {node.dtype}",
        fix=f"cast it in the function: kf.cast({node.name}, 'f32')",
    )


def _admit(graph: Graph, anchor: Node, claimed: Set[str]) -> Guard:
    def admit(node: Node) -> Reason | None:
        if node.name in claimed:
            return Reason("KF-ESCAPES", f"{node.name} is computed by another kernel")
        if node.shape != anchor.shape:
            return Reason(
                "KF-SHAPE",
                f"the tail of {anchor.name} has shape {list(anchor.shape)}, and {node.name} "
                f"({line_of(node.loc)}) has {list(node.shape)}",
            )
        return _computes(graph, node)

    return admit


# -- lowering -------------------------------------------------------------------------------


def build_tail(graph: Graph, match: Match) -> tuple[Tail, tuple[Operand, ...]]:
    """The match's pointwise nodes as a Tail, and the arrays that it loads, in its order."""
    nodes = [*match.recomputed, *match.covered[1:]]
    computed = {match.anchor.name, *(node.name for node in nodes)}
    reads = [x for node in nodes for x in graph.operands(node) if x.name not in computed]
    loaded = list(dict.fromkeys(x for x in reads if not x.is_number))
    index = {match.anchor.name: 0}
    index |= {node.name: position for position, node in enumerate(loaded, start=1)}
    steps: list[Step] = []
    first = 1 + len(loaded)
    for node in [*dict.fromkeys(x for x in reads if x.is_number), *nodes]:
        args = tuple(index[x.name] for x in graph.operands(node))
        step = (
            number_step(_python(node))
            if node.is_number
            else Step(node.op.name, args, node.op.attrs, node.loc)
        )
        index[node.name] = first + len(steps)
        steps.append(step)
    result = match.root
    if result.op.name == "Cast" and _closes(graph.operands(result)[0], computed):
        steps.pop()
        (result,) = graph.operands(result)
    tail = Tail(tuple(x.dtype.name for x in loaded), tuple(steps), index[result.name])
    extras = [calls.broadcast(calls.operand(graph, x), match.anchor.shape) for x in loaded]
    return tail, tuple(extras)


def _closes(source: Node, computed: set[str]) -> bool:
    """Whether a last cast of `source` does what the kernel's store does: one rounding from f32."""
    return source.name in computed and source.dtype.is_float


def _python(node: Node) -> bool | int | float:
    value = node.constant
    number: bool | int | float = value.item() if hasattr(value, "item") else value
    return number
