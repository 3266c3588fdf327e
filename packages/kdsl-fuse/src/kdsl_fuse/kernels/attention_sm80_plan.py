"""Attention for sm_80 and everything newer, ready to launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kdsl_fuse.kernels.attention_sm80 import Sm80AttentionConfig, attention_sm80
from kdsl_fuse.kernels.attention_sm90_config import MOST_DIM
from kdsl_fuse.kernels.attention_sm90_plan import AttentionPlan, AttentionProblem, attention_by

# Elements of a head ↦ keys of a tile, stages: what leaves registers and shared memory for two
# blocks on a multiprocessor of an A100.
_TILES = {
    32: (64, 4),
    64: (64, 4),
    96: (64, 3),
    128: (64, 2),
    192: (64, 2),
    MOST_DIM: (32, 2),
}


@dataclass(frozen=True)
class Sm80AttentionPlan(AttentionPlan):
    """One way to compute softmax(Q · Kᵀ · scale + bias) · V: a block for each tile of queries."""

    config: Sm80AttentionConfig

    kernel: ClassVar = attention_sm80
    overlap: ClassVar = False

    def __str__(self) -> str:
        c = self.config
        return f"{c.rows}x{c.columns}x{c.dim} s{c.stages} {c.mask or 'full'}"

    @property
    def grid(self) -> int:
        """Blocks: one for each tile of queries."""
        p = self.problem
        return -(-p.queries // self.config.rows) * p.heads * p.batch


def choose(
    problem: AttentionProblem,
    mask: str | None = None,
    layout: str = "bshd",
    *,
    biased: bool = False,
) -> Sm80AttentionPlan:
    """The plan for the sizes, which is the same with a bias (`biased`) and without."""
    dim = next(width for width in _TILES if width >= problem.dim)
    columns, stages = _TILES[dim]
    config = Sm80AttentionConfig(dim, columns, stages=stages, mask=mask, layout=layout)
    return Sm80AttentionPlan(problem, config)


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
