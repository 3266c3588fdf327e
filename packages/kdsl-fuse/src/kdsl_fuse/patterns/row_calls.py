"""The launch of a row-wise match: its program, and operands as the kernel reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kdsl_fuse import calls
from kdsl_fuse.calls import KernelCall, Operand, Preparation
from kdsl_fuse.elements import VALUE, ElementFunction
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.patterns.base import Match, Options
from kdsl_fuse.patterns.pointwise import build, operand_of, overlaps
from kdsl_fuse.patterns.row_forms import RowForm, form_of
from kdsl_fuse.strided import Strided


@dataclass(frozen=True)
class Parts:
    """A row-wise match: the operator's form, and functions with the values that they load."""

    graph: Graph
    match: Match
    form: RowForm
    prologue: ElementFunction | None
    inputs: list[Node]
    tail: ElementFunction | None
    loaded: list[Node]

    def program(self, online: bool = False) -> Any:
        """The kernel's program."""
        from kdsl_fuse.kernels.row_tails import FullTail, RowTail

        made = self.form.program(online=online)
        if self.prologue is not None:
            made = replace(made, prologue=self.prologue, inputs=len(self.inputs))
        if self.form.reduces and len(self.match.stores) > 1:
            made = replace(made, epilogue=FullTail(None, 0, VALUE), outputs=1)
        if self.tail is None:
            return made
        count = len(self.loaded)
        if self.form.reduces:
            tail = RowTail(made.row_results, made.row_inputs, self.tail)
            return replace(made, row_results=tail, row_inputs=made.row_inputs + count)
        full = FullTail(made.epilogue, made.extras, self.tail)
        stores = len(self.match.stores)
        return replace(made, epilogue=full, extras=made.extras + count, outputs=stores)

    def reads(self) -> list[Operand]:
        """Inputs, extras and row inputs."""
        form, last = self.form, self.match.root
        by_row = [calls.operand(self.graph, x) for x in form.by_row]
        by_column = list(form.by_column)
        if form.reduces:
            tail = (operand_of(self.graph, x, last.shape) for x in self.loaded)
            by_row += [x.seen_as(form.row_of(x.layout)) for x in tail]
        else:
            by_column += self.loaded
        return [*(self._by_rows(x) for x in (*self.inputs, *by_column)), *by_row]

    def _by_rows(self, node: Node) -> Operand:
        read = operand_of(self.graph, node, self.form.x.shape)
        layout = self.form.rows_of(read.layout)
        assert layout is not None, f"the guard let {node} pass"
        return read.seen_as(layout)

    def writes(self) -> list[Operand]:
        """Outputs and row outputs."""
        found = []
        for node in self.match.stores:
            layout: Strided | None = Strided.dense(self.form.height)
            if node is not self.match.root or not self.form.reduces:
                layout = self.form.rows_of(Strided.dense(node.shape))
            assert layout is not None, f"{node} is dense, its axes follow each other"
            found.append(Operand(node.name, node.dtype, layout))
        return found


def parts_of(graph: Graph, match: Match, product: Node | None = None) -> Parts:
    """The match's nodes, told apart; a `product` among them is the first input of the prologue."""
    anchor = match.anchor
    form = form_of(graph, anchor)
    assert form is not None, f"{anchor} was matched before"
    inner = [x for x in match.covered if x is not product]
    before = _ancestors(graph, (form.x,), inner)
    behind = [x for x in inner[1:] if x not in before]
    prologue: ElementFunction | None = None
    inputs = [form.x]
    if before:
        needed = _ancestors(graph, before, (*match.recomputed, *before))
        first = {} if product is None else {product.name: 0}
        prologue, inputs = build(graph, needed, (form.x,), first, rounded=True)
        inputs = [*([] if product is None else [product]), *inputs]
    given = {anchor.name: 0} if form.reduces else {anchor.name: 0, form.x.name: 1}
    results = match.stores[-1:] if form.reduces else match.stores
    tail: ElementFunction | None = None
    loaded: list[Node] = []
    if behind or len(results) > 1:
        needed = _ancestors(graph, behind, (*match.recomputed, *behind))
        tail, loaded = build(graph, needed, results, given)
    return Parts(graph, match, form, prologue, inputs, tail, loaded)


def _ancestors(graph: Graph, nodes: Sequence[Node], among: Iterable[Node]) -> list[Node]:
    """Those `among` that are, or lead to, one of `nodes`, in the order given."""
    candidates = {node.name: node for node in among}
    found: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.name in candidates and node.name not in found:
            found.add(node.name)
            stack.extend(graph.operands(node))
    return [node for name, node in candidates.items() if name in found]


def call_of(graph: Graph, match: Match, options: Options) -> KernelCall:
    """The launch."""
    from kdsl_fuse.kernels.rows import rows
    from kdsl_fuse.kernels.rows_plan import choose
    from kdsl_fuse.kernels.rows_sharing import MULTIPROCESSORS

    parts = parts_of(graph, match)
    reads, writes = parts.reads(), parts.writes()
    specs = [Preparation().spec(x) for x in (*writes, *reads)]
    modern = overlaps(options)
    plan = choose(
        parts.program(), *specs, in_turns=parts.program(online=True), staging=modern,
        clusters=modern,
        multiprocessors=options.chip.multiprocessors if options.chip else MULTIPROCESSORS,
    )  # fmt: skip
    config = replace(plan.config, overlap=modern)
    layouts = [Strided(*layout) for layout in plan.layouts()]
    pairs = zip(reads, layouts[len(writes) :], strict=True)
    return KernelCall(
        name="rows",
        kernel=rows,
        grid=(plan.grid,),
        block=(config.threads,),
        cluster=None if plan.cluster is None else (plan.cluster,),
        operands=(),
        extras=tuple(x.seen_as(replace(v, offset=x.layout.offset)) for x, v in pairs),
        outputs=match.stores,
        seen=tuple(layouts[: len(writes)]),
        statics={"program": plan.program, "config": config},
        summary=_summary(config),
        overlap=modern,
    )


def _summary(config: Any) -> str:
    """How rows are shared, in words."""
    blocks = f" in each of {config.cluster} blocks" if config.cluster > 1 else ""
    each = f"{config.vectors} × {config.width} elements a thread"
    shared = f"{config.lanes} threads a row{blocks}, {each}"
    if config.ring:
        return f"{shared}, through a ring of {config.ring} stages; {config.clusters} clusters"
    way = "streamed" if config.streamed else "staged" if config.staged else "held"
    return f"{shared}, {way}; {config.rows} rows a block"
