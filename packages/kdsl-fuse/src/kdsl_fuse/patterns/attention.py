"""Attention in one kernel: softmax(q · kᵀ · scale + mask) · v, its scores never in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kdsl_core.dtypes import bf16, boolean, f16, f32
from kdsl_fuse import calls
from kdsl_fuse.calls import KernelCall, Operand, stored
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.gemm_families import has_wgmma
from kdsl_fuse.patterns.products import target_refusal
from kdsl_fuse.reasons import Reason
from kdsl_fuse.strided import Strided

AXES = 4  # batch, heads, sequence, dimension: the kernel's modes
MOST_DIM = 256
ALIGNED_BYTES = 16  # what TMA and `cp.async` copy at a time
MASKS = (f16, bf16, f32, boolean)


class FlashAttention:
    """kf.attention, or what was recognised as one: full, masked or causal, heads in groups.

    Where heads are merged behind it, (batch, heads, rows, columns) turned and reshaped to (batch,
    rows, heads · columns), results are stored in that order at once.
    """

    name = "attention"
    anchors: tuple[str, ...] = ("Attention",)
    examples: tuple[Example, ...] = (
        Example(
            "causal heads in groups",
            lambda kf, q, k, v: kf.attention(q, k, v, causal=True),
            (("bf16", (1, 4, 20, 16)), ("bf16", (1, 2, 24, 16)), ("bf16", (1, 2, 24, 16))),
            target="sm_90a",
        ),
        Example(
            "causal heads in groups, without wgmma",
            lambda kf, q, k, v: kf.attention(q, k, v, causal=True),
            (("bf16", (1, 4, 20, 16)), ("bf16", (1, 2, 24, 16)), ("bf16", (1, 2, 24, 16))),
        ),
        Example(
            "a query whose heads share keys",
            lambda kf, q, k, v: kf.attention(q, k, v),
            (("bf16", (2, 8, 1, 16)), ("bf16", (2, 2, 24, 16)), ("bf16", (2, 2, 24, 16))),
            target="sm_90a",
        ),
        Example(
            "scores with a bias",
            lambda kf, q, k, v, m: kf.softmax(q @ k.transpose(0, 2, 1) * 0.3 + m) @ v,
            (("f16", (2, 9, 8)), ("f16", (2, 12, 8)), ("f16", (2, 12, 8)), ("f16", (9, 12))),
            target="sm_90a",
        ),
        Example(
            "scores with a bias, without wgmma",
            lambda kf, q, k, v, m: kf.softmax(q @ k.transpose(0, 2, 1) * 0.3 + m) @ v,
            (("f16", (2, 9, 8)), ("f16", (2, 12, 8)), ("f16", (2, 12, 8)), ("f16", (9, 12))),
        ),
        Example(
            "keys that are seen",
            lambda kf, q, k, v, m: kf.attention(q, k, v, m, scale=0.5),
            (("f16", (9, 8)), ("f16", (12, 8)), ("f16", (12, 8)), ("boolean", (9, 12))),
            target="sm_90a",
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The operator, with heads merged behind it where they are."""
        refusal = guard(facts.graph, anchor, options)
        if refusal is not None:
            return refusal
        chain = _merged_heads(facts.graph, anchor)
        alone = Match(self, (anchor,))
        return (
            [Match(self, (anchor, *chain), role="stored in order by"), alone] if chain else [alone]
        )

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The call of the fastest kernel that takes the operands."""
        from kdsl_fuse.kernels.attention_problem import AttentionProblem

        anchor = match.anchor
        q, k, v, *masks = graph.operands(anchor)
        seen, *shared = (_seen(graph, x) for x in (q, k, v))
        (batch, heads, queries, dim), (_, key_heads, keys, _) = seen.shape, shared[0].shape
        problem = AttentionProblem(batch, heads, key_heads, queries, keys, dim)
        mask = "top-left" if anchor.op["causal"] else None
        choose = chooser((seen, *shared), options)
        plan = choose(problem, mask, "bhsd", biased=bool(masks))
        scores = (_scores(graph, x, (batch, heads, queries, keys)) for x in masks)
        numbers = {"scale": float(anchor.op["scale"]), "together": plan.together}
        return KernelCall(
            name=plan.kernel.__name__,
            kernel=plan.kernel,
            grid=(plan.grid,),
            block=(plan.config.threads,),
            operands=(seen.seen_as(plan.seen(seen.layout)), *shared),
            extras=tuple(x.seen_as(plan.seen(x.layout)) for x in scores),
            outputs=(match.root,),
            seen=(plan.seen(_four(_result(match))),),
            statics={**numbers, "config": plan.config},
            summary=str(plan),
            overlap=plan.overlap,
        )


# -- families -------------------------------------------------------------------------------


def chooser(operands: Sequence[Operand], options: Options) -> Callable[..., Any]:
    """The `choose` of the fastest kernel: on Hopper TMA has to take the operands as they lie."""
    from kdsl_fuse.kernels import attention_sm80_plan, attention_sm90_plan
    from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

    repeated = any(0 in x.strides for x in operands)
    if repeated or not has_wgmma(operands[0].dtype, options.target):
        return attention_sm80_plan.choose
    multiprocessors = options.chip.multiprocessors if options.chip else MULTIPROCESSORS
    return partial(attention_sm90_plan.choose, multiprocessors=multiprocessors)


# -- views ----------------------------------------------------------------------------------


def _four(layout: Strided) -> Strided:
    """The view with axes of size 1 before it; such axes get strides that TMA can take."""
    missing = AXES - len(layout.shape)
    shape = (1,) * missing + layout.shape
    whole = math.prod(shape)
    strides = (whole,) * missing + layout.strides
    kept = [whole if n == 1 else step for n, step in zip(shape[:-1], strides, strict=False)]
    return Strided(shape, (*kept, strides[-1]), layout.offset)


def _seen(graph: Graph, node: Node) -> Operand:
    read = calls.operand(graph, node)
    return read.seen_as(_four(read.layout))


def _scores(graph: Graph, mask: Node, shape: tuple[int, ...]) -> Operand:
    """A mask repeated to the shape of all scores."""
    read = calls.operand(graph, mask)
    return read.seen_as(read.layout.broadcast(shape))


def _merged_heads(graph: Graph, anchor: Node) -> tuple[Node, ...]:
    """The transpose and the reshape behind an attention that would otherwise have to be copied."""
    chain: list[Node] = []
    for op in ("Transpose", "Reshape"):
        readers = graph.consumers(chain[-1] if chain else anchor)
        if len(readers) != 1 or readers[0].op.name != op:
            return ()
        chain += readers
    turned, merged = chain
    keeps_rows = turned.op["perm"][-1] == anchor.rank - 1
    return (turned, merged) if keeps_rows and stored(graph, merged)[0] is merged else ()


def _result(match: Match) -> Strided:
    """How the attention's own axes lie in what is stored."""
    dense = Strided.dense(match.root.shape)
    if match.root is match.anchor:
        return dense
    _, turned, _ = match.covered
    perm = turned.op["perm"]
    layout = dense.reshaped(turned.shape)
    assert layout is not None, "what is dense has strides for every shape"
    return layout.permuted([perm.index(axis) for axis in range(len(perm))])


# -- guards ---------------------------------------------------------------------------------


def guard(graph: Graph, node: Node, options: Options) -> Reason | None:
    """Why no kernel computes this attention."""
    q, k, v, *masks = graph.operands(node)
    refusal = (
        _types((q, k, v), masks)
        or target_refusal(options.target, "attention_sm80")
        or _sizes(node, (q, k, v))
    )
    if refusal is not None:
        return refusal
    layouts = (_layout(graph, x) for x in (q, k, v))
    return next((reason for reason in layouts if reason is not None), None)


def _types(operands: tuple[Node, ...], masks: list[Node]) -> Reason | None:
    dtypes = {x.dtype for x in operands}
    if len(dtypes) == 1 and dtypes <= {f16, bf16} and all(x.dtype in MASKS for x in masks):
        return None
    return Reason(
        "KF-DTYPE",
        "the attention kernel takes q, k and v that are all f16 or all bf16, and masks of truth "
        f"values, f16, bf16 or f32, got {', '.join(map(str, (*operands, *masks)))}",
        fix="cast q, k and v: kf.cast(q, 'bf16')",
    )


def _sizes(node: Node, operands: tuple[Node, ...]) -> Reason | None:
    q, k, v = operands
    if q.rank > AXES:
        return Reason(
            "KF-RANK",
            f"the attention kernel takes [batch, heads, rows, columns], got {q}",
            fix="merge the axes before the heads: q.reshape(…)",
        )
    step = ALIGNED_BYTES // q.dtype.bytes
    fits = k.shape == v.shape and min(*q.shape, *k.shape) > 0
    if fits and q.shape[-1] % step == 0 and q.shape[-1] <= MOST_DIM and node.op["scale"] > 0:
        return None
    return Reason(
        "KF-SHAPE",
        f"the attention kernel takes keys and values alike, without empty axes, of a multiple of "
        f"{step} columns up to {MOST_DIM}, and a scale above 0, got {q}, {k}, {v} and "
        f"{node.op['scale']:g}",
        fix="pad the columns of q, k and v with zeros, and cut them off the result",
    )


def _layout(graph: Graph, node: Node) -> Reason | None:
    """Refuse strides at which no row can be copied by 16 bytes at a time."""
    read = _seen(graph, node)
    steps = [read.align, *(step * node.dtype.bytes for step in read.strides[:-1])]
    if read.strides[-1] == 1 and not any(step % ALIGNED_BYTES for step in steps):
        return None
    return Reason(
        "KF-LAYOUT",
        f"the attention kernel reads rows without gaps whose starts and strides are multiples of "
        f"{ALIGNED_BYTES} bytes, got {read} for {node}",
        fix=f"copy it to a dense array: numpy.ascontiguousarray({node.name})",
    )
