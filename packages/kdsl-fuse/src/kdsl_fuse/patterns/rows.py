"""Row-wise kernels: softmax, norms, losses and reductions, with what comes before and behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_core.dtypes import boolean
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail, is_pointwise
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import Example, Match, Options, Pattern
from kdsl_fuse.patterns.pointwise import computable, needed_outside, operand_of, recomputed
from kdsl_fuse.patterns.row_calls import call_of
from kdsl_fuse.patterns.row_forms import LOSS, NORMS, POWERS, REDUCTIONS, RowForm, form_of
from kdsl_fuse.reasons import Reason

MOST_TAILS = 3  # lengths of tails, and of what comes before, that a cover chooses from
Guard = Callable[[Node], Reason | None]
_MATRIX, _ROW = ("bf16", (6, 48)), ("bf16", (48,))


class Rows:
    """epilogue(reductions of rows of prologue(inputs)): each row is read once.

    Pointwise operators before the row-wise one are its prologue, whose result may be stored too;
    those behind it are its tail.
    """

    name = "rows"
    generic = True  # plans tell why a product does not compute its own rows
    anchors: tuple[str, ...] = (*POWERS, *NORMS, LOSS, *REDUCTIONS)
    examples: tuple[Example, ...] = (
        Example("a softmax", lambda kf, x: kf.softmax(x), (_MATRIX,)),
        Example(
            "a masked softmax of columns",
            lambda kf, x, c: kf.softmax(kf.where(c, x * 0.5, -30.0), axis=0),
            (("f32", (9, 6)), ("boolean", (9, 1))),
        ),
        Example("a log-softmax", lambda kf, x: kf.log_softmax(x, axis=1), (("f16", (3, 17, 4)),)),
        Example(
            "residual in and out of an RMSNorm",
            lambda kf, x, r, w: _with_sum(x + r, lambda s: kf.rms_norm(s, w)),
            (_MATRIX, _MATRIX, _ROW),
        ),
        Example(
            "a LayerNorm with a tail",
            lambda kf, x, w, b, r: kf.gelu(kf.layer_norm(x, w, b)) * 2 + r,
            (("f32", (2, 5, 48)), ("f32", (48,)), ("f32", (48,)), ("f32", (5, 48))),
        ),
        Example(
            "a LayerNorm of two axes", lambda kf, x: kf.layer_norm(x, axis=1), (("f32", (3, 4, 8)),)
        ),
        Example(
            "losses", lambda kf, x, y: kf.cross_entropy(x * 0.5, y, "none") + 1,
            (("f32", (9, 8)), ("i32", (9,))),
        ),
        Example(
            "a mean of squares and its root",
            lambda kf, x: kf.sqrt(kf.mean(x * x, axis=-1, keepdims=True) + 1e-3),
            (("f16", (4, 3, 24)),),
        ),
        Example("a largest integer", lambda kf, x: kf.max(x, axis=1), (("i32", (5, 33)),)),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The operator with parts of what comes before and behind it, the most first."""
        graph = facts.graph
        form = form_of(graph, anchor)
        if form is None or (anchor.op.name in REDUCTIONS and form.x.rank - 1 not in form.axes):
            return []
        refusal = refusal_of(graph, anchor, form)
        if refusal is not None:
            return refusal
        before = prologue_of(facts, anchor, form)
        admit = tail_guard(graph, form, anchor.shape)
        growth = grow_tail(facts, [anchor], admit, lambda node: None)
        found = []
        for size in growth.cuts[: -1 - MOST_TAILS : -1]:
            tail = growth.members[1:size]
            for parts in _lengths(before):
                reasons = growth.reasons if size == growth.cuts[-1] else {}
                found.append(match_of(self, facts, anchor, form, parts, parts, tail, reasons))
        return sorted(found, key=lambda match: -len(match.covered))

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/rows.py`."""
        return call_of(graph, match, options)


def _with_sum(s: Node, norm: Callable[[Node], Node]) -> tuple[Node, Node]:
    return norm(s), s


def match_of(
    pattern: Pattern, facts: Facts, anchor: Node, form: RowForm, head: Sequence[Node],
    before: Sequence[Node], tail: list[Node], reasons: dict[str, Reason], **words: Any,
) -> Match:  # fmt: skip
    """The operator with its `head`, of which `before` is pointwise, and a tail.

    The rows themselves are stored, too, where others need them. `words` are further fields.
    """
    graph, covered = facts.graph, (anchor, *head, *tail)
    keeps = bool(head) and needed_outside(graph, form.x, {node.name for node in covered})
    extra = [
        *recomputed(facts, before, form.x.shape),
        *recomputed(facts, tail, anchor.shape, alone=True),
    ]
    root = tail[-1] if tail else anchor
    stored = (form.x, root) if keeps else (root,)
    return Match(pattern, covered, stored, tuple(dict.fromkeys(extra)), reasons, **words)


def refusal_of(graph: Graph, anchor: Node, form: RowForm) -> Reason | None:
    """Why no kernel computes the operator on rows."""
    kinds = (boolean,) if anchor.op.name in REDUCTIONS else ()
    if form.x.dtype in kinds:
        return Reason("KF-DTYPE", f"truth values have no {anchor.op.name}: cast {form.x}")
    refusal = computable(graph, anchor) or (computable(graph, form.x))
    if refusal is None and 0 in form.x.shape:
        refusal = Reason("KF-SHAPE", f"{anchor.name} reduces {form.x}, which has no elements")
    return refusal or _rows(graph, form, form.x, anchor)


def _rows(graph: Graph, form: RowForm, operand: Node, reader: Node) -> Reason | None:
    """Refuse an operand that cannot be read as rows."""
    read = operand_of(graph, operand, form.x.shape)
    if form.rows_of(read.layout) is not None:
        return None
    return Reason(
        "KF-LAYOUT",
        f"axes {list(form.axes)} of {operand}, which {reader.name} ({line_of(reader.loc)}) reads, "
        "do not follow each other in memory",
        fix="reduce one of these axes after the other, or copy the array before the call",
    )


def tail_guard(graph: Graph, form: RowForm, shape: tuple[int, ...]) -> Guard:
    """What refuses nodes before or behind the operator, which compute a value of a shape."""

    def guard(node: Node) -> Reason | None:
        if node.shape != shape:
            return Reason(
                "KF-SHAPE",
                f"the kernel computes {list(shape)} here, and {node.name} ({line_of(node.loc)}) "
                f"has {list(node.shape)}",
            )
        refusal = computable(graph, node)
        if refusal is not None or shape != form.x.shape:
            return refusal
        given = (x for x in graph.operands(node) if not x.is_number)
        return next((why for x in given if (why := _rows(graph, form, x, node))), None)

    return guard


def prologue_of(facts: Facts, anchor: Node, form: RowForm) -> list[Node]:
    """Pointwise nodes that lead to x alone, x first, each before those that feed it."""
    graph, admit = facts.graph, tail_guard(facts.graph, form, form.x.shape)
    found: list[Node] = []
    names = {anchor.name}
    waiting = {form.x.name: form.x}
    while waiting:
        node = waiting.pop(max(waiting, key=facts.order.__getitem__))
        inner = node is form.x or not needed_outside(graph, node, names)
        if not (inner and is_pointwise(node) and admit(node) is None):
            continue
        found.append(node)
        names.add(node.name)
        waiting |= {x.name: x for x in graph.operands(node) if x.name not in names}
    return found


def _lengths(before: list[Node]) -> list[list[Node]]:
    """Prologues to choose from, operands before consumers: all, a single node, none."""
    sizes = sorted({len(before), min(len(before), 1), 0}, reverse=True)
    return [before[:size][::-1] for size in sizes]
