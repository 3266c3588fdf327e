"""Attention ready to launch, by any kernel: operands checked, and as the kernel sees them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import kdsl_core as kd
from kdsl_core.lang.arguments import ArrayFacts, facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels.attention_problem import LAYOUTS, AttentionProblem, problem_of, unfit
from kdsl_fuse.strided import Strided

L2_BYTES = 32 << 20  # of an H200's 50 MiB, for keys and values of heads that run together
ADDRESSABLE = 16  # bytes that TMA and `cp.async` want starts and strides to be multiples of
BIASES = (kd.f32, kd.f16, kd.bf16, kd.boolean)


@dataclass(frozen=True)
class AttentionPlan:
    """One way to compute softmax(Q · Kᵀ · scale + bias) · V: a subclass for each kernel.

    With a single query so many `sharers`, heads that share keys, are rows of one tile: the plan's
    `problem` has them as queries of one head. A subclass names its `kernel`, and whether that may
    `overlap` with the launch before.
    """

    problem: AttentionProblem
    config: Any
    sharers: int = 1

    kernel: ClassVar[Any]
    overlap: ClassVar[bool]

    @property
    def grid(self) -> int:
        """Blocks: one for each tile of queries."""
        p = self.problem
        return -(-p.queries // self.config.rows) * p.heads * p.batch

    @property
    def together(self) -> int:
        """Heads whose keys and values fit L2 together."""
        p = self.problem
        fitting = L2_BYTES // (4 * p.keys * p.dim)
        return max(fitting, 1) * p.sharers

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        return self.kernel.configure(
            grid=self.grid, block=self.config.threads, overlap=self.overlap
        )

    def run(self, q: Any, k: Any, v: Any, out: Any, *bias: Any, scale: float) -> None:
        """Write `out`, on the arrays' current stream; a bias has all scores' shape."""
        numbers = {"scale": float(scale), "together": self.together}
        if self.sharers > 1:
            q, out = (arrays.view(x, self.seen(arrays.strided(x))) for x in (q, out))
            bias = tuple(arrays.view(x, self.seen(arrays.strided(x), "bhsd")) for x in bias)
        self.launch(q, k, v, out, *bias, **numbers, config=self.config)

    def seen(self, layout: Strided, order: str | None = None) -> Strided:
        """How the kernel sees queries, results, or a bias (whose `order` is "bhsd"), of four modes.

        Each `sharers` neighbouring heads are rows of one.
        """
        if self.sharers == 1:
            return layout
        row, _, head, _ = LAYOUTS[order or self.config.layout]
        shape, strides = list(layout.shape), list(layout.strides)
        shape[row], strides[row] = self.sharers, strides[head]
        shape[head], strides[head] = shape[head] // self.sharers, strides[head] * self.sharers
        return Strided(tuple(shape), tuple(strides), layout.offset)


def attention_by(
    choose: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    *,
    causal: bool | str,
    scale: float | None,
    bias: Any,
    layout: str,
) -> Any:
    """`attention` by the plan that `choose(problem, mask, layout, biased=…)` gives."""
    mask = "top-left" if causal is True else (causal or None)
    problem = problem_of(q, k, v, layout)
    if out is None:
        out = arrays.empty(tuple(facts_of(q, "q").shape), facts_of(q, "q").dtype, q)
    elif facts_of(out, "out").shape != facts_of(q, "q").shape:
        raise unfit(f"out {facts_of(out, 'out').shape} is to be like q {facts_of(q, 'q').shape}")
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        _check_addressable(facts_of(x, name), name)
    scale = 1 / math.sqrt(problem.dim) if scale is None else scale
    if not (scale > 0 and math.isfinite(scale)):
        raise kd.ArgumentError(
            f"scores are scaled by a positive number, got {scale}",
            code="K955",
            fix="negate the queries instead",
        )
    extras = () if bias is None else (_broadcast_bias(bias, problem),)
    plan = choose(problem, mask, layout, biased=bias is not None)
    plan.run(q, k, v, out, *extras, scale=scale)
    return out


def _check_addressable(facts: ArrayFacts, name: str) -> None:
    size = facts.dtype.bytes
    pitches = [
        step * size for step, n in zip(facts.strides[:3], facts.shape, strict=False) if n > 1
    ]
    row = facts.shape[3] * size
    if facts.strides[3] == 1 and not any(x % ADDRESSABLE for x in (facts.pointer, row, *pitches)):
        return
    raise kd.ArgumentError(
        f"{name} starts at a multiple of {ADDRESSABLE} bytes, has heads and strides of such a "
        f"multiple, and its dimension is contiguous; got address {facts.pointer:#x}, shape "
        f"{tuple(facts.shape)}, strides {tuple(facts.strides)} of {size} bytes",
        code="K954",
        fix="pad heads to a multiple of 8 elements, or copy the array",
    )


def _broadcast_bias(bias: Any, problem: AttentionProblem) -> Any:
    """The bias with the shape of all scores."""
    scores = (problem.batch, problem.heads, problem.queries, problem.keys)
    facts = facts_of(bias, "bias")
    shape = (1,) * (4 - len(facts.shape)) + tuple(facts.shape)
    fits = len(shape) == 4 and all(n in (1, m) for n, m in zip(shape, scores, strict=False))
    if not fits or facts.dtype not in BIASES:
        raise kd.ArgumentError(
            f"a bias is f32, f16, bf16 or boolean, broadcast to {scores} (batch, heads, queries, "
            f"keys), got {facts.dtype} {tuple(facts.shape)}",
            code="K957",
            fix="of a mask of integers make truth values: mask != 0",
        )
    return arrays.view(bias, arrays.strided(bias).broadcast(scores))
