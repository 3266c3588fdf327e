"""Attention by `mma.sync` gives on a GPU what it gives in the simulator, and that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from execution import Executor
from gpu.test_sm90_kernels_gpu import PROBLEM, assert_attention
from kdsl_fuse.kernels.attention_sm80 import Sm80AttentionConfig
from kdsl_fuse.kernels.attention_sm80_plan import Sm80AttentionPlan, choose

CHOSEN = [(dim, mask) for dim in (32, 64, 96, 128, 192, 256) for mask in (None, "top-left")]
OTHERS = {
    "eight warps": Sm80AttentionConfig(128, 64, warps=8),
    "three stages, bottom-right": Sm80AttentionConfig(64, 32, stages=3, mask="bottom-right"),
    "heads first, panels": Sm80AttentionConfig(80, 64, mask="bottom-right", layout="bhsd"),
}


@pytest.mark.parametrize("dim, mask", CHOSEN)
def test_what_is_chosen(execute: Executor, dim: int, mask: str | None) -> None:
    """Each head dimension and mask."""
    assert_attention(execute, choose(replace(PROBLEM, dim=dim), mask))


@pytest.mark.parametrize("dim", (64, 128, 256))
def test_bias(execute: Executor, dim: int) -> None:
    """An additive bias, -infinity in a whole row."""
    plan = choose(replace(PROBLEM, dim=dim), "top-left", biased=True)
    assert_attention(execute, plan, biased=True)


@pytest.mark.parametrize("name", OTHERS)
def test_others(execute: Executor, name: str) -> None:
    """Configurations that are not chosen, with a bias and without."""
    config = OTHERS[name]
    plan = Sm80AttentionPlan(replace(PROBLEM, dim=config.dim), config)
    assert_attention(execute, plan)
    assert_attention(execute, plan, biased=True)
