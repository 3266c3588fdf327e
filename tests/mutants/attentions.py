"""Attention of the campaign: every schedule and mask on a few short heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_fuse.kernels.attention_sm90 import attention_sm90
from kdsl_fuse.kernels.attention_sm90_config import AttentionConfig
from kdsl_fuse.kernels.attention_sm90_plan import AttentionPlan, AttentionProblem
from mutants.launch import BF16, F32, Launch, matrix, nothing


def attention(
    config: AttentionConfig,
    problem: AttentionProblem,
    *,
    biased: bool = False,
    blocks: int = 2,
    dtype: Any = BF16,
) -> Launch:
    """An attention by `attention_sm90`; few `blocks`, so that each has several tiles."""
    p = problem

    def args() -> tuple[Any, ...]:
        sizes = (p.queries, p.heads), (p.keys, p.key_heads), (p.keys, p.key_heads)
        order = (0, 1, 2) if config.layout == "bshd" else (0, 2, 1)
        shapes = [(*((p.batch, *size)[i] for i in order), p.dim) for size in sizes]
        q, k, v = (matrix(i, shape, dtype) for i, shape in enumerate(shapes))
        bias = matrix(9, (p.queries, p.keys), F32)
        bias[0], bias[:, 3::7] = -np.inf, -np.inf
        whole = np.broadcast_to(bias, (p.batch, p.heads, *bias.shape))
        return q, k, v, nothing(q.shape, dtype), *((whole,) if biased else ())

    grid = AttentionPlan(p, config, blocks).grid
    statics = {"config": config, "scale": p.dim**-0.5, "together": 2}
    return Launch(attention_sm90, grid, config.threads, args, statics, overlap=True)


def attentions() -> dict[str, Launch]:
    """The kernels of this file.

    A tile has five blocks of keys or nine: it fills rings again and leaves none as it was, and one
    that ends with a ring's last stage is not the last one.
    The bias has 76 columns and 42 rows, so that the last block of keys is seen in all its parts.
    """
    one = {"consumers": 1, "turns": False}
    return {
        "attention/turns": attention(
            AttentionConfig(16, 16), AttentionProblem(1, 2, 1, 140, 72, 16), blocks=1
        ),
        "attention/one group, one stage": attention(
            AttentionConfig(16, 32, (1, 1), **one), AttentionProblem(1, 1, 1, 130, 72, 8)
        ),
        "attention/causal, setmaxnreg": attention(
            AttentionConfig(16, 16, (3, 2), mask="top-left", registers=(24, 240)),
            AttentionProblem(1, 1, 1, 130, 120, 16),
            blocks=1,
        ),
        "attention/bias, bottom-right": attention(
            AttentionConfig(16, 16, (2, 2), mask="bottom-right", layout="bhsd", **one),
            AttentionProblem(1, 3, 1, 42, 76, 16),
            biased=True,
            blocks=1,
        ),
        "attention/three groups, full swizzle": attention(
            AttentionConfig(64, 16, (2, 3), consumers=3, turns=False),
            AttentionProblem(1, 2, 1, 150, 136, 64),
            blocks=1,
        ),
    }
