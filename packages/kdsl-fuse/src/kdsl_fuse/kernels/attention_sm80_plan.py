"""Attention for sm_80 and everything newer, ready to launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kdsl_fuse.kernels.attention_plan import AttentionPlan, attention_by
from kdsl_fuse.kernels.attention_problem import MOST_DIM, AttentionProblem, joined_heads
from kdsl_fuse.kernels.attention_sm80 import ROWS, Sm80AttentionConfig, attention_sm80

WARPS = 4  # of a block
# Elements of a head ↦ keys of a tile, stages, strips of a warp: what has registers enough, and
# leaves shared memory for two blocks on a multiprocessor of an A100.
_TILES = {
    32: (64, 4, 2),
    64: (64, 4, 2),
    96: (64, 3, 2),
    128: (64, 2, 2),
    192: (64, 2, 1),
    MOST_DIM: (32, 2, 1),
}


@dataclass(frozen=True)
class Sm80AttentionPlan(AttentionPlan):
    """An attention by `mma.sync`: a block for each tile of queries."""

    config: Sm80AttentionConfig

    kernel: ClassVar = attention_sm80
    overlap: ClassVar = False

    def __str__(self) -> str:
        c = self.config
        tile = f"{c.rows}x{c.columns}x{c.dim}"
        words = [tile, f"s{c.stages}", f"{c.warps} warps", c.mask or "full"]
        words += [f"{self.sharers} heads a tile"] * (self.sharers > 1)
        return " ".join(words)


def choose(
    problem: AttentionProblem,
    mask: str | None = None,
    layout: str = "bshd",
    *,
    biased: bool = False,
) -> Sm80AttentionPlan:
    """The plan for the sizes: of two strips a warp reads keys and values half as often as of one.

    A bias that is added to the scores (`biased`) takes the registers of the second one. Heads that
    share keys, of a query each, are rows of one tile as on Hopper.
    """
    problem, mask, sharers = joined_heads(problem, mask)
    dim = next(width for width in _TILES if width >= problem.dim)
    columns, stages, strips = _TILES[dim]
    if biased or problem.queries <= ROWS * WARPS:
        strips = 1
    config = Sm80AttentionConfig(dim, columns, WARPS, strips, stages, mask, layout)
    return Sm80AttentionPlan(problem, config, sharers)


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
    """`attention_sm90_plan.attention`, word for word, on every GPU since sm_80; returns `out`."""
    return attention_by(choose, q, k, v, out, causal=causal, scale=scale, bias=bias, layout=layout)
