"""Attention on Hopper ready to launch: a configuration for the sizes, and the persistent grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kdsl_fuse.kernels.attention_plan import AttentionPlan, attention_by
from kdsl_fuse.kernels.attention_problem import MOST_DIM, AttentionProblem, joined_heads
from kdsl_fuse.kernels.attention_sm90 import attention_sm90
from kdsl_fuse.kernels.attention_sm90_config import ROWS, Sm90AttentionConfig
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

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
class Sm90AttentionPlan(AttentionPlan):
    """An attention by `wgmma`: no more blocks than `multiprocessors`, which take tiles by turns."""

    config: Sm90AttentionConfig
    multiprocessors: int = MULTIPROCESSORS

    kernel: ClassVar = attention_sm90
    overlap: ClassVar = True

    def __str__(self) -> str:
        c = self.config
        words = [f"{c.rows}x{c.columns}x{c.dim}", "s{}+{}".format(*c.stages), c.mask or "full"]
        words += [f"{self.sharers} heads a tile"] * (self.sharers > 1)
        words += ["turns"] * c.turns + ([f"r{c.registers[1]}"] if c.registers else [])
        return " ".join(words)

    @property
    def grid(self) -> int:
        """Blocks: one for each multiprocessor, or for each tile of queries."""
        return min(super().grid, self.multiprocessors)


def choose(
    problem: AttentionProblem,
    mask: str | None = None,
    layout: str = "bshd",
    *,
    biased: bool = False,
    multiprocessors: int = MULTIPROCESSORS,
) -> Sm90AttentionPlan:
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
    config = Sm90AttentionConfig(
        dim, columns, stages, 1 if one else 2, mask, layout, turns=not one,
        registers=None if one else ROOM,
    )  # fmt: skip
    return Sm90AttentionPlan(problem, config, sharers, multiprocessors)


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
