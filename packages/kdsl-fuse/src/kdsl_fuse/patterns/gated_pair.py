"""Gated MLP: two products of the same matrix, and any function of both, in one kernel."""

from __future__ import annotations

from functools import partial
from typing import Any

from kdsl_fuse.calls import KernelCall, Operand
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail, side_nodes
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.folds import as_rows
from kdsl_fuse.patterns.gemm_families import Addressable, has_wgmma
from kdsl_fuse.patterns.products import fold_of, guard, left, right
from kdsl_fuse.patterns.tails import admit, build_tail, evaluable, storable
from kdsl_fuse.reasons import Reason
from kdsl_fuse.strided import Strided

Pair = tuple[Node, Node]
MOST_PARTNERS = 8  # products of the same matrix that one is tried with
SUMS = 2


class GatedPair:
    """act(x @ w + …) * (x @ v + …) …: any pointwise function of two products that share x.

    Both may be halves of one product, as many models keep their weights.

    Weights stay as they are: half of each tile's columns are of w, half of v. A thread holds the
    sums of both for the same results, so neither product goes through memory.
    """

    name = "gated_pair"
    anchors: tuple[str, ...] = ("MatMul",)
    examples: tuple[Example, ...] = (
        Example(
            "SwiGLU",
            lambda kf, x, w, v: kf.silu(x @ w.T) * (x @ v.T),
            (("bf16", (17, 24)), ("bf16", (40, 24)), ("bf16", (40, 24))),
        ),
        Example(
            "GeGLU with biases and a residual",
            lambda kf, x, w, b, v, c, r: kf.gelu(x @ w + b) * (x @ v + c) * 0.5 + r,
            (
                ("f16", (2, 5, 16)), ("f16", (16, 24)), ("f16", (24,)),
                ("f16", (16, 24)), ("f16", (24,)), ("f16", (2, 5, 24)),
            ),
        ),
        Example(
            "SwiGLU on Hopper, both weights in one matrix",
            lambda kf, x, w: kf.silu(x @ w[:, :24]) * (x @ w[:, 24:]),
            (("bf16", (3, 10, 40)), ("bf16", (40, 48))),
            target="sm_90a",
        ),
        Example(
            "halves of one product",
            lambda kf, x, w, r: kf.tanh((y := x @ w)[..., :12]) * y[..., 12:] - r,
            (("f16", (2, 5, 16)), ("f16", (16, 24)), ("f16", (12,))),
        ),
        Example(
            "any function of two products",
            lambda kf, x, w, v, b: kf.maximum(x @ w - x @ v, b),
            (("f32", (9, 8)), ("f32", (8, 12)), ("f32", (8, 12)), ("f32", (9, 1))),
        ),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The product with each later one of the same matrix that meets it in a pointwise tail."""
        if options.gemm is not None:  # the caller's kernel computes one product
            return []
        pairs = [(anchor, partner) for partner in _partners(facts, anchor)]
        pairs += _halves(facts.graph, anchor)
        if not pairs:
            return []
        refusal = guard(facts.graph, anchor, options)
        if refusal is not None:
            return refusal
        found = (self._pair(facts, anchor, pair) for pair in pairs)
        return [match for match in found if match is not None]

    def _pair(self, facts: Facts, anchor: Node, pair: Pair) -> Match | None:
        graph = facts.graph
        if not _alike(*_weights(graph, anchor, pair)):
            return None
        growth = grow_tail(facts, pair, admit(graph, pair[0]), storable)
        if not growth.cuts:
            return None
        simple = partial(evaluable, graph, pair[0])
        extra = side_nodes(facts, growth.covered, simple, anchors=SUMS)
        head = () if anchor is pair[0] else (anchor,)
        return Match(
            self,
            (*head, *growth.covered),
            recomputed=tuple(extra),
            refused=growth.reasons,
            role="in one kernel with the gate",
        )

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of a kernel for gated pairs with the tail as its epilogue."""
        pair = _pair_of(match)
        a, (gate, up) = left(graph, match.anchor), _weights(graph, match.anchor, pair)
        assert a and gate and up, f"the guard let {match.anchor} pass"
        tail, extras = build_tail(graph, match, sums=pair)
        launch = _on_hopper if has_wgmma(a.dtype, options.target) else _elsewhere
        sizes = a.shape[0], gate.shape[0], a.shape[1]
        seen = as_rows(Strided.dense(match.root.shape))
        return KernelCall(
            **launch(sizes, a, match.root, bool(extras), options, tail),
            operands=(a, gate, up),
            extras=extras,
            outputs=(match.root,),
            seen=() if match.root.rank == 2 or seen is None else (seen,),
        )


def _pair_of(match: Match) -> Pair:
    """What the tail of a match begins with: two products, or the two halves of one."""
    first, second, third, *_ = match.covered
    return (first, second) if second.op.name == "MatMul" else (second, third)


def _weights(graph: Graph, anchor: Node, pair: Pair) -> tuple[Operand | None, Operand | None]:
    """The weights of two products, or those of the halves of one."""
    if anchor is pair[0]:
        return right(graph, pair[0]), right(graph, pair[1])
    both = right(graph, anchor)
    if both is None:
        return None, None
    n, k = both.shape[0] // 2, both.shape[1]
    gate, up = (both.layout.sliced((start, 0), (1, 1), (n, k)) for start in (0, n))
    return both.seen_as(gate), both.seen_as(up)


def _halves(graph: Graph, anchor: Node) -> list[Pair]:
    """Both halves of the product's columns, where nothing else reads it."""
    parts = graph.consumers(anchor)
    if fold_of(graph, anchor) is not as_rows or [x.op.name for x in parts] != ["Slice"] * 2:
        return []
    half = (*anchor.shape[:-1], anchor.shape[-1] // 2)
    first, second = sorted(parts, key=lambda node: node.op["starts"])
    starts = ((0,) * anchor.rank, (*(0,) * (anchor.rank - 1), half[-1]))
    fits = (first.op["starts"], second.op["starts"]) == starts and anchor.shape[-1] % 2 == 0
    plain = all(x.shape == half and set(x.op["steps"]) == {1} for x in parts)
    return [(first, second)] if fits and plain else []


def _partners(facts: Facts, anchor: Node) -> list[Node]:
    """Later products of the same matrix by weights of the same sizes."""
    graph = facts.graph
    a, b = graph.operands(anchor)
    if fold_of(graph, anchor) is not as_rows:
        return []
    found = []
    for node in graph.consumers(a):
        if node.op.name != "MatMul" or facts.order[node.name] <= facts.order[anchor.name]:
            continue
        other_a, other_b = graph.operands(node)
        if other_a is a and (other_b.shape, other_b.dtype) == (b.shape, b.dtype):
            found.append(node)
    return sorted(found, key=lambda node: facts.order[node.name])[:MOST_PARTNERS]


def _alike(gate: Operand | None, up: Operand | None) -> bool:
    """Whether both weights are contiguous along the same axis, as tiles of one stage are."""
    if gate is None or up is None or 1 not in up.strides:
        return False
    return [step == 1 for step in gate.strides] == [step == 1 for step in up.strides]


Launch = dict[str, Any]
Sizes = tuple[int, int, int]


def _on_hopper(
    sizes: Sizes, a: Operand, output: Node, reads: bool, options: Options, tail: Any
) -> Launch:
    """`kernels/gated_sm90.py`: a persistent grid, by the plan chosen for the sizes."""
    from kdsl_fuse.kernels.gated_sm90 import gated_sm90
    from kdsl_fuse.kernels.gated_sm90_plan import choose
    from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

    count = options.chip.multiprocessors if options.chip else MULTIPROCESSORS
    gated = choose(*sizes, a.dtype, output.dtype, multiprocessors=count, extras=reads)
    plan = gated.both
    return {
        "name": "gated_sm90",
        "kernel": gated_sm90,
        "grid": (plan.grid,),
        "block": (plan.config.threads,),
        "cluster": plan.cluster,
        "statics": {"epilogue": tail, **gated.statics},
        "summary": str(plan),
        "overlap": True,
        "preparation": Addressable(),
    }


def _elsewhere(
    sizes: Sizes, a: Operand, output: Node, reads: bool, options: Options, tail: Any
) -> Launch:
    """`kernels/gated_sm80.py`: a block for each tile; every type and target."""
    from kdsl_fuse.kernels.gated_sm80 import gated_sm80, plan_gated

    config, grid, block = plan_gated(
        *sizes, a.dtype, target=options.target, f32_precision=options.f32_precision
    )
    return {
        "name": "gated_sm80",
        "kernel": gated_sm80,
        "grid": grid,
        "block": block,
        "statics": {"epilogue": tail, "config": config},
        "summary": str(config),
    }
