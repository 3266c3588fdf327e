"""Attention on Hopper ready to launch: sizes checked, a configuration, and the grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import kdsl_core as kd
from kdsl_core.lang.arguments import ArrayFacts, facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels.attention_sm90 import attention_sm90
from kdsl_fuse.kernels.attention_sm90_config import (
    LAYOUTS,
    MOST_DIM,
    ROWS,
    AttentionConfig,
    check_names,
)
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS
from kdsl_fuse.strided import Strided

L2_BYTES = 32 << 20  # of an H200's 50 MiB, for keys and values of heads that run together
ADDRESSABLE = 16  # bytes that TMA wants starts and strides to be multiples of
BIASES = (kd.f32, kd.f16, kd.bf16, kd.boolean)
ROOM = (24, 240)  # registers of a producing and of a consuming thread
# Elements of a head ↦ keys of a tile, stages: what fits shared memory beside queries and results.
_TILES = {
    64: (128, (3, 3)),
    96: (128, (3, 2)),
    128: (128, (3, 2)),
    192: (80, (2, 2)),
    MOST_DIM: (64, (2, 2)),
}


@dataclass(frozen=True)
class AttentionProblem:
    """Sizes of an attention: `heads` of queries share `key_heads` of keys and values evenly."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, without a mask."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.dim

    @property
    def sharers(self) -> int:
        """Heads of queries that share keys and values."""
        return self.heads // self.key_heads


@dataclass(frozen=True)
class AttentionPlan:
    """One way to compute softmax(Q · Kᵀ · scale + bias) · V.

    With a single query so many `sharers`, heads that share keys, are rows of one tile: the plan's
    `problem` has them as queries of one head.
    """

    problem: AttentionProblem
    config: AttentionConfig
    multiprocessors: int = MULTIPROCESSORS
    sharers: int = 1

    kernel: ClassVar = attention_sm90
    overlap: ClassVar = True  # with the launch before

    def __str__(self) -> str:
        c = self.config
        words = [f"{c.rows}x{c.columns}x{c.dim}", "s{}+{}".format(*c.stages), c.mask or "full"]
        words += [f"{self.sharers} heads a tile"] * (self.sharers > 1)
        words += ["turns"] * c.turns + ([f"r{c.registers[1]}"] if c.registers else [])
        return " ".join(words)

    @property
    def grid(self) -> int:
        """Blocks: one for each multiprocessor, or for each tile of queries."""
        p = self.problem
        tiles = -(-p.queries // self.config.rows) * p.heads * p.batch
        return min(tiles, self.multiprocessors)

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
            q, out = (arrays.view(x, self.seen(_strided(x))) for x in (q, out))
            bias = tuple(arrays.view(x, self.seen(_strided(x), "bhsd")) for x in bias)
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


def choose(
    problem: AttentionProblem,
    mask: str | None = None,
    layout: str = "bshd",
    *,
    biased: bool = False,
    multiprocessors: int = MULTIPROCESSORS,
) -> AttentionPlan:
    """The plan for the sizes: two warp groups that multiply by turns, one for up to 64 queries.

    Heads that share keys, of a query each, are rows of one tile, unless the query sees one key
    only. `biased` says whether a bias is added to the scores. Beside the sums of the longest heads
    that takes more registers than a thread of two warp groups can have.
    """
    problem, mask, sharers = joined_heads(problem, mask)
    dim = next(width for width in _TILES if width >= problem.dim)
    columns, stages = _TILES[dim]
    one = problem.queries <= ROWS
    if biased and dim == MOST_DIM:
        columns, one = 48, True
    config = AttentionConfig(
        dim, columns, stages, 1 if one else 2, mask, layout, turns=not one,
        registers=None if one else ROOM,
    )  # fmt: skip
    return AttentionPlan(problem, config, multiprocessors, sharers)


def joined_heads(
    problem: AttentionProblem, mask: str | None
) -> tuple[AttentionProblem, str | None, int]:
    """The problem and mask with heads that share keys as queries of one, and how many they are.

    Where there is one query, unless it sees one key only.
    """
    if problem.queries > 1 or mask == "top-left":
        return problem, mask, 1
    sharers = problem.sharers
    return replace(problem, heads=problem.key_heads, queries=sharers), None, sharers


def attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    bias: Any = None,
    layout: str = "bshd",
) -> Any:
    """softmax(Q · Kᵀ · scale + bias) · V for each head, accumulated in f32; returns `out`.

    Scores never go through memory. Weights are rounded to the operands' type between the products,
    as every fused attention on tensor cores does.

    Shapes: with `layout` "bshd", Q and out are (batch, queries, heads, dim), K and V (batch, keys,
    key_heads, dim); with "bhsd", heads come before the sequence. Query heads share key heads
    evenly. A bias is broadcast to (batch, heads, queries, keys); it may be -infinity, or hold the
    truth values of keys that are seen. f16 or bf16.
    Units: `scale` is 1 / √dim where it is left out. `causal` is True or "top-left" (query i sees
    key j where j <= i, as in PyTorch), or "bottom-right" (the last query sees all keys).
    Memory: `out` is new where none is given. Starts and strides, but that of the dimension, are
    multiples of 16 bytes.
    Raises: ArgumentError K951 and K953 … K957.
    """
    return attention_by(choose, q, k, v, out, causal=causal, scale=scale, bias=bias, layout=layout)


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
        raise _unfit(f"out {facts_of(out, 'out').shape} is to be like q {facts_of(q, 'q').shape}")
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


def problem_of(q: Any, k: Any, v: Any, layout: str = "bshd") -> AttentionProblem:
    """The sizes of operands, once they fit together."""
    check_names(None, layout)
    facts = [facts_of(x, name) for name, x in (("q", q), ("k", k), ("v", v))]
    shapes = [tuple(f.shape) for f in facts]
    if any(len(shape) != 4 for shape in shapes):
        raise _unfit(f"q, k and v have four modes, got {shapes}")
    if any(f.dtype is not facts[0].dtype for f in facts) or facts[0].dtype not in (kd.bf16, kd.f16):
        raise kd.ArgumentError(
            f"q, k and v are all f16 or all bf16, got {', '.join(str(f.dtype) for f in facts)}",
            code="K956",
            fix="convert them first",
        )
    seen = [tuple(shape[i] for i in LAYOUTS[layout]) for shape in shapes]
    (queries, dim, heads, batch), (keys, _, key_heads, _), _ = seen
    if seen[1] != seen[2] or seen[1][1::2] != (dim, batch) or heads % max(key_heads, 1):
        raise _unfit(
            f"k and v are alike, with the batch and dimension of q, and heads that divide its, in "
            f'layout "{layout}": got {shapes}'
        )
    if min(queries, keys, batch, heads, key_heads) < 1 or not 1 <= dim <= MOST_DIM:
        raise _unfit(f"no size may be 0, and heads have up to {MOST_DIM} elements: got {shapes}")
    return AttentionProblem(batch, heads, key_heads, queries, keys, dim)


def _strided(x: Any) -> Strided:
    facts = facts_of(x, "operand")
    return Strided(tuple(facts.shape), tuple(facts.strides))


def _unfit(what: str) -> kd.ArgumentError:
    return kd.ArgumentError(
        f"operands of an attention do not fit: {what}",
        code="K953",
        fix='see `layout`: "bshd" is (batch, sequence, heads, dimension)',
    )


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
    return arrays.view(bias, _strided(bias).broadcast(scores))
