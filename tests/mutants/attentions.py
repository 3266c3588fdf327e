"""Attention of the campaign: every schedule and mask on a few short heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_fuse.kernels.attention_plan import AttentionPlan
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.attention_sm80 import Sm80AttentionConfig
from kdsl_fuse.kernels.attention_sm80_plan import Sm80AttentionPlan
from kdsl_fuse.kernels.attention_sm90_config import Sm90AttentionConfig
from kdsl_fuse.kernels.attention_sm90_plan import Sm90AttentionPlan
from mutants.launch import BF16, F32, Launch, matrix, nothing


def attention(
    config: Sm90AttentionConfig,
    problem: AttentionProblem,
    *,
    biased: bool = False,
    blocks: int = 2,
    dtype: Any = BF16,
) -> Launch:
    """An attention by `attention_sm90`; few `blocks`, so that each has several tiles."""
    return launched(Sm90AttentionPlan(problem, config, multiprocessors=blocks), biased, dtype)


def attention80(
    config: Sm80AttentionConfig,
    problem: AttentionProblem,
    *,
    biased: bool = False,
    dtype: Any = BF16,
) -> Launch:
    """An attention by `attention_sm80`."""
    return launched(Sm80AttentionPlan(problem, config), biased, dtype)


def launched(plan: AttentionPlan, biased: bool, dtype: Any) -> Launch:
    """A plan's launch; a bias hides the first query from all keys, and some keys from all."""
    config, p = plan.config, plan.problem

    def args() -> tuple[Any, ...]:
        sizes = (p.queries, p.heads), (p.keys, p.key_heads), (p.keys, p.key_heads)
        order = (0, 1, 2) if config.layout == "bshd" else (0, 2, 1)
        shapes = [(*((p.batch, *size)[i] for i in order), p.dim) for size in sizes]
        q, k, v = (matrix(i, shape, dtype) for i, shape in enumerate(shapes))
        bias = matrix(9, (p.queries, p.keys), F32)
        bias[0], bias[:, 3::7] = -np.inf, -np.inf
        whole = np.broadcast_to(bias, (p.batch, p.heads, *bias.shape))
        return q, k, v, nothing(q.shape, dtype), *((whole,) if biased else ())

    statics = {"config": config, "scale": p.dim**-0.5, "together": 2}
    return Launch(plan.kernel, plan.grid, config.threads, args, statics, overlap=plan.overlap)


def attentions() -> dict[str, Launch]:
    """The kernels of this file.

    A tile has five blocks of keys or nine: it fills rings again and leaves none as it was, and one
    that ends with a ring's last stage is not the last one.
    The bias has 76 columns and 42 rows, so that the last block of keys is seen in all its parts. Of
    the other kernel's tiles the last ones end within the first rows that a thread copies.
    """
    one = {"consumers": 1, "turns": False}
    return {
        "attention/turns": attention(
            Sm90AttentionConfig(16, 16), AttentionProblem(1, 2, 1, 140, 72, 16), blocks=1
        ),
        "attention/one group, one stage": attention(
            Sm90AttentionConfig(16, 32, (1, 1), **one), AttentionProblem(1, 1, 1, 130, 72, 8)
        ),
        "attention/causal, setmaxnreg": attention(
            Sm90AttentionConfig(16, 16, (3, 2), mask="top-left", registers=(24, 240)),
            AttentionProblem(1, 1, 1, 130, 120, 16),
            blocks=1,
        ),
        "attention/bias, bottom-right": attention(
            Sm90AttentionConfig(16, 16, (2, 2), mask="bottom-right", layout="bhsd", **one),
            AttentionProblem(1, 3, 1, 42, 76, 16),
            biased=True,
            blocks=1,
        ),
        "attention/three groups, full swizzle": attention(
            Sm90AttentionConfig(64, 16, (2, 3), consumers=3, turns=False),
            AttentionProblem(1, 2, 1, 150, 136, 64),
            blocks=1,
        ),
        "attention80/two stages": attention80(
            Sm80AttentionConfig(32, 16, warps=2), AttentionProblem(1, 2, 1, 42, 72, 24)
        ),
        "attention80/four stages, causal": attention80(
            Sm80AttentionConfig(32, 16, warps=2, strips=2, stages=4, mask="top-left"),
            AttentionProblem(1, 1, 1, 70, 90, 32),
        ),
        "attention80/bias, bottom-right": attention80(
            Sm80AttentionConfig(32, 16, warps=1, stages=3, mask="bottom-right", layout="bhsd"),
            AttentionProblem(2, 3, 1, 37, 70, 32),
            biased=True,
        ),
        "attention80/panels": attention80(
            Sm80AttentionConfig(48, 32, warps=2, stages=3), AttentionProblem(1, 2, 2, 30, 90, 48)
        ),
        "attention80/queries in shared memory": attention80(
            Sm80AttentionConfig(192, 16, warps=1), AttentionProblem(1, 1, 1, 18, 35, 192)
        ),
        "attention80/few keys": replace(
            attention80(
                Sm80AttentionConfig(32, 16, warps=1, stages=4), AttentionProblem(1, 1, 1, 5, 5, 32)
            ),
            operators=("predicate",),
        ),
    }
