"""A product and what is done with its rows, in one kernel: norms, softmax, losses and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kdsl_fuse.calls import KernelCall, Operand, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail
from kdsl_fuse.patterns import products
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.folds import as_rows
from kdsl_fuse.patterns.gemm_families import Addressable, has_wgmma
from kdsl_fuse.patterns.row_calls import Parts, parts_of
from kdsl_fuse.patterns.row_forms import LOSS, NORMS, POWERS, REDUCTIONS, RowForm, form_of
from kdsl_fuse.patterns.rows import MOST_TAILS, match_of, prologue_of, refusal_of, tail_guard
from kdsl_fuse.reasons import Reason

if TYPE_CHECKING:
    from kdsl_fuse.kernels.gemm_rows_sm90_plan import RowsOfProducts

MOST_COLUMNS = 256  # of a tile
_X, _W = ("bf16", (37, 24)), ("bf16", (24, 48))
_ROW = ("bf16", (48,))


class GemmRows:
    """epilogue(reductions of rows of prologue(x @ w, …)) where a tile holds the rows.

    The product with its bias, activation and residual is the prologue, which may be stored too;
    the row-wise operator and its tail follow in registers.
    """

    name = "gemm_rows"
    anchors: tuple[str, ...] = (*POWERS, *NORMS, LOSS, *REDUCTIONS)
    examples: tuple[Example, ...] = (
        Example("a softmax of a product", lambda kf, x, w: kf.softmax(x @ w), (_X, _W)),
        Example(
            "a residual sum, stored, and its RMSNorm",
            lambda kf, x, w, r, s: _with_sum(kf, x @ w + r, s),
            (("f16", (37, 24)), ("f16", (24, 40)), ("f16", (37, 40)), ("f16", (40,))),
        ),
        Example(
            "a LayerNorm of sequences with a tail, of f32",
            lambda kf, x, w, b, s, t: kf.gelu(kf.layer_norm(kf.relu(x @ w + b), s, t)),
            (("f32", (2, 9, 8)), ("f32", (8, 33)), *((("f32", (33,)),) * 3)),
        ),
        Example(
            "a sum of squares for each row",
            lambda kf, x, w: kf.sqrt(kf.sum(kf.cast(x @ w, "f32") ** 2, axis=-1)),
            (_X, ("bf16", (24, 72))),
        ),
        Example(
            "losses of logits",
            lambda kf, x, w, y: kf.cross_entropy(x @ w, y, "none"),
            (_X, _W, ("i32", (37,))),
        ),
        Example(
            "LayerNorm on Hopper, with a residual before and a tail behind",
            lambda kf, x, w, b, r, s, t: kf.silu(kf.layer_norm(x @ w + b + r, s, t)) * 2,
            (_X, _W, _ROW, ("bf16", (37, 48)), _ROW, _ROW),
            target="sm_90a",
        ),
        Example(
            "a softmax on Hopper, of rows of no whole eights, in f32",
            lambda kf, x, w: kf.softmax(kf.cast(x @ w, "f32") * 0.5),
            (("f16", (70, 40)), ("f16", (40, 52))),
            target="sm_90a",
        ),
        Example(
            "the largest of each row on Hopper, and the products",
            lambda kf, x, w: _with_largest(kf, kf.cast(x @ w.T, "bf16")),
            (("bf16", (2, 20, 16)), ("bf16", (24, 16))),
            target="sm_90a",
        ),
        Example(
            "losses on Hopper",
            lambda kf, x, w, y: kf.cross_entropy(x @ w, y, "none") + 1,
            (_X, _W, ("i32", (37,))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The operator with the product whose rows it reads, and tails of several lengths."""
        graph = facts.graph
        form = form_of(graph, anchor)
        if form is None or form.axes != (form.x.rank - 1,) or options.gemm is not None:
            return []
        before = prologue_of(facts, anchor, form)
        product = next(_products(graph, form, before), None)
        if product is None:
            return []
        refusal = _refusal(graph, anchor, form, product, options)
        if refusal is not None:
            return refusal
        growth = grow_tail(
            facts, [anchor], tail_guard(graph, form, anchor.shape), lambda node: None
        )
        found = []
        for size in growth.cuts[: -1 - MOST_TAILS : -1]:
            tail = growth.members[1:size]
            reasons = growth.reasons if size == growth.cuts[-1] else {}
            made = match_of(
                self, facts, anchor, form, (product, *before[::-1]), before[::-1], tail, reasons,
                role="in registers with",
            )  # fmt: skip
            if operands_of(graph, made) is not None:
                found.append(replace(made, preference_us=_preference_us(graph, made, options)))
        return found or Reason(
            "KF-LAYOUT",
            f"the kernel reads rows of a matrix, and what {anchor.name} or its tail reads beside "
            f"{product.name} has none",
            fix="copy it to a dense array",
        )

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/gemm_rows_sm90.py` or `kernels/gemm_rows_sm80.py`."""
        parts = _parts(graph, match)
        operands = operands_of(graph, match)
        a, b = products.left(graph, _product(match)), products.right(graph, _product(match))
        assert a is not None and b is not None and operands is not None, "the guards let it pass"
        reads, writes = operands
        launch = _on_hopper if has_wgmma(a.dtype, options.target) else _elsewhere
        return KernelCall(
            **launch(a, match, parts, options, (*writes, *reads)),
            operands=(a, b),
            extras=tuple(reads),
            outputs=match.stores,
            seen=tuple(x.layout for x in writes),
        )


def _with_sum(kf: Any, x: Any, weight: Any) -> Any:
    return kf.rms_norm(x, weight), x


def _with_largest(kf: Any, x: Any) -> Any:
    return kf.max(x, axis=-1), x


def _products(graph: Graph, form: RowForm, before: Sequence[Node]) -> Iterator[Node]:
    """Products of the rows' shape by one matrix that these nodes alone read, or the rows are."""
    inside = {node.name for node in before}
    given = [x for node in before for x in graph.operands(node)] or [form.x]
    for node in given:
        if node.op.name != "MatMul" or node.shape != form.x.shape:
            continue
        readers = (consumer.name for consumer in graph.consumers(node))
        alone = not graph.is_output(node) and inside.issuperset(readers)
        if (node is form.x or alone) and products.fold_of(graph, node) is as_rows:
            yield node


def _refusal(
    graph: Graph, anchor: Node, form: RowForm, product: Node, options: Options
) -> Reason | None:
    """Why no tile computes the rows."""
    if form.x.shape[-1] > MOST_COLUMNS:
        return Reason(
            "KF-SHAPE",
            f"a tile holds rows of up to {MOST_COLUMNS} results, and those of {product.name} that "
            f"{anchor.name} reduces have {form.x.shape[-1]}",
            fix="nothing is wrong: the rows take a launch of their own",
        )
    return products.guard(graph, product, options) or refusal_of(graph, anchor, form)


def _product(match: Match) -> Node:
    """The product of a match."""
    return match.covered[1]


def _parts(graph: Graph, match: Match) -> Parts:
    return parts_of(graph, match, product=_product(match))


def operands_of(graph: Graph, match: Match) -> tuple[list[Operand], list[Operand]] | None:
    """What the kernel reads beside the matrices, and what it writes; None for odd strides.

    Rows lie along one mode.
    """
    parts = _parts(graph, match)
    rows = math.prod(parts.form.height)
    counts = parts.program().counts
    reads, writes = parts.reads()[1:], parts.writes()
    full_reads, full_writes = counts[2] + counts[3] - 1, counts[0]
    seen = [
        [_flat(x, rows, i < full) for i, x in enumerate(group)]
        for group, full in ((reads, full_reads), (writes, full_writes))
    ]
    if any(x is None for group in seen for x in group):
        return None
    read, written = ([x for x in group if x is not None] for group in seen)
    return read, written


def _flat(x: Operand, rows: int, full: bool) -> Operand | None:
    """A view with all modes of the rows as one."""
    sizes = (rows, x.shape[-1]) if full else (rows,)
    layout = x.layout if x.shape == sizes else x.layout.reshaped(sizes)
    return None if layout is None else x.seen_as(layout)


def _preference_us(graph: Graph, match: Match, options: Options) -> float:
    """What tiles of whole rows cost more than the best tiles for the product alone."""
    from kdsl_fuse.kernels.gemm_rows_sm80 import MULTIPROCESSORS, behind_us, plan_gemm_rows
    from kdsl_fuse.kernels.gemm_sm80 import plan_gemm

    product = _product(match)
    a = products.left(graph, product)
    assert a is not None, "the guards let it pass"
    if has_wgmma(a.dtype, options.target):
        return -_plan(a, product.shape[-1], match.stores, options).behind_us
    m, k, n = *a.shape, product.shape[-1]
    given: dict[str, Any] = {"target": options.target, "f32_precision": options.f32_precision}
    rows, _, _ = plan_gemm_rows(m, n, a.dtype, **given)
    other, _, _ = plan_gemm(m, n, k, a.dtype, **given)
    count = options.chip.multiprocessors if options.chip else MULTIPROCESSORS
    return -behind_us(rows, other, (m, n, k), count)


def _plan(a: Operand, columns: int, stores: Sequence[Node], options: Options) -> RowsOfProducts:
    """Hopper's plan for the product of A and a matrix of so many columns."""
    from kdsl_fuse.kernels.gemm_rows_sm90_plan import choose
    from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

    full = [node.dtype for node in stores if node.shape[-1:] == (columns,)]
    count = options.chip.multiprocessors if options.chip else MULTIPROCESSORS
    m, k = a.shape
    return choose(m, columns, k, a.dtype, (full or [a.dtype])[0], multiprocessors=count)


def _on_hopper(a: Operand, match: Match, parts: Parts, options: Options, _: Any) -> dict[str, Any]:
    """The kernel of a persistent grid with its plan."""
    from kdsl_fuse.kernels.gemm_rows_sm90 import gemm_rows_sm90

    columns = _product(match).shape[-1]
    plan = _plan(a, columns, match.stores, options)
    config = plan.plan.config
    return {
        "name": "gemm_rows_sm90",
        "kernel": gemm_rows_sm90,
        "grid": (plan.plan.grid,),
        "block": (config.threads,),
        "cluster": plan.plan.cluster,
        "statics": {"program": parts.program(), "config": config, "columns": columns},
        "summary": str(plan),
        "overlap": True,
        "preparation": Addressable(),
    }


def _elsewhere(
    a: Operand, match: Match, parts: Parts, options: Options, arrays: Sequence[Operand]
) -> dict[str, Any]:
    """The kernel with a block for each tile."""
    from kdsl_fuse.kernels.gemm_rows_sm80 import access_width, gemm_rows_sm80, plan_gemm_rows

    columns = _product(match).shape[-1]
    config, grid, block = plan_gemm_rows(
        a.shape[0], columns, a.dtype, target=options.target, f32_precision=options.f32_precision
    )
    full = [Preparation().spec(x) for x in arrays if len(x.shape) == 2]
    width = access_width(full, columns)
    return {
        "name": "gemm_rows_sm80",
        "kernel": gemm_rows_sm80,
        "grid": grid,
        "block": block,
        "statics": {
            "program": parts.program(), "config": config, "columns": columns, "width": width,
        },
        "summary": f"{config}, {width} columns of a row a lane",
    }  # fmt: skip
