"""Gated products and attention give on a GPU what they give in the simulator, and that is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from covering import first_of_each
from execution import Executor
from fuse import attention_runs as attentions
from fuse import test_gated_sm90 as gateds
from fuse import test_gated_sm90_swapped as swappeds
from gpu.test_gemm_sm90_gpu import beside
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.attention_plan import AttentionPlan
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.attention_sm90_config import Sm90AttentionConfig
from kdsl_fuse.kernels.attention_sm90_plan import Sm90AttentionPlan, choose
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gated_sm90_plan import gated, silu
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
BLOCKS = 4  # of the persistent grid, so that each computes several tiles


def product(gate: Any, up: Any) -> Any:
    """An epilogue without approximate functions."""
    return gate * up


GATED = {
    **gateds.CONFIGS,
    "128x256": Sm90Config((128, 256, 64), 4, registers=(40, 232)),
    "pingpong 128x128": Sm90Config((128, 128, 64), 6, "pingpong"),
    "pingpong 128x128, cluster": Sm90Config((128, 128, 64), 6, "pingpong", cluster=(2, 1)),
}


def gated_on(
    execute: Executor, config: Sm90Config, arrays: list[Array], epilogue: Any, swap: bool = False
) -> Array:
    """C of a launch of few blocks."""
    a, gate, _ = arrays[:3]
    c = np.full((a.shape[0], gate.shape[0]), 77, BF16)
    both = Sm90Plan(model.Problem(c.shape[0], 2 * c.shape[1], a.shape[1]), config, swap, BLOCKS)
    return execute(
        gated_sm90, both.grid, config.threads, *arrays[:3], c, *arrays[3:],
        cluster=both.cluster, epilogue=epilogue, config=config, swap=swap,
    )[3]  # fmt: skip


@pytest.mark.parametrize("name", beside(GATED, gateds.CONFIGS))
def test_gated(execute: Executor, name: str) -> None:
    """Each schedule, the product of both sums, and SiLU with two biases."""
    arrays = gateds.operands(264, 200, 200)
    c = gated_on(execute, GATED[name], arrays, product)
    gate, up = (arrays[0].astype(np.float64) @ w.astype(np.float64).T for w in arrays[1:])
    gateds.assert_close(c, gate * up)
    if GATED[name].cluster == (1, 1):
        rows = [np.broadcast_to(np.linspace(-1, 1, 200).astype(BF16), c.shape)] * 2
        c = gated_on(execute, GATED[name], [*arrays, *rows], gated(silu))
        gateds.assert_close(c, gateds.exact(*arrays, rows[0][0], rows[1][0]))


@pytest.mark.parametrize("name", beside(swappeds.CONFIGS, swappeds.CONFIGS))
def test_gated_with_weights_as_rows(execute: Executor, name: str) -> None:
    """Each schedule of few rows, the product of both sums, with weights along either mode."""
    a, gate, up = arrays = gateds.operands(24, 264, 200)
    g, u = (a.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    c = gated_on(execute, swappeds.CONFIGS[name], arrays, product, swap=True)
    gateds.assert_close(c, g * u)
    turned = [np.ascontiguousarray(x.T).T for x in arrays]
    c = gated_on(execute, swappeds.CONFIGS[name], turned, product, swap=True)
    gateds.assert_close(c, g * u)


PROBLEM = AttentionProblem(batch=1, heads=2, key_heads=1, queries=140, keys=500, dim=64)
ATTENTION: dict[str, Sm90AttentionConfig] = {
    f"{dim} {mask}": choose(replace(PROBLEM, dim=dim), mask).config
    for dim in (64, 96, 128, 192, 256)
    for mask in (None, "top-left")
} | {
    "bottom-right, heads first": Sm90AttentionConfig(
        64, 128, (3, 3), mask="bottom-right", layout="bhsd", registers=(24, 240)
    ),
    "three groups": Sm90AttentionConfig(64, 128, consumers=3, turns=False, registers=(32, 160)),
    "one group": Sm90AttentionConfig(128, 128, consumers=1, turns=False),
    "no turns": Sm90AttentionConfig(128, 128, turns=False, registers=(24, 240)),
    "wide": Sm90AttentionConfig(128, 160, registers=(24, 240)),
}


BIASED = ("64 None", "128 top-left", "bottom-right, heads first")


@pytest.mark.parametrize("name", first_of_each(ATTENTION, lambda name: ATTENTION[name].dim))
def test_attention(execute: Executor, name: str) -> None:
    """Each head dimension and mask."""
    assert_attention(execute, planned(name))


@pytest.mark.parametrize("name", BIASED)
def test_attention_with_bias(execute: Executor, name: str) -> None:
    """An additive bias, -infinity in a whole row."""
    assert_attention(execute, planned(name), biased=True)


def planned(name: str) -> Sm90AttentionPlan:
    """A configuration for a launch of few blocks."""
    config = ATTENTION[name]
    return Sm90AttentionPlan(replace(PROBLEM, dim=config.dim), config, multiprocessors=BLOCKS)


def assert_attention(execute: Executor, plan: AttentionPlan, *, biased: bool = False) -> None:
    """A plan for `PROBLEM` gives the attention."""
    problem, config = plan.problem, plan.config
    q, k, v = attentions.operands(problem, config.layout)
    bias = np.random.default_rng(3).standard_normal((140, 500)).astype(np.float32)
    bias[7] = -np.inf
    extras = [np.broadcast_to(bias, (1, 2, 140, 500))] if biased else []
    scale = 1 / math.sqrt(config.dim)
    out = np.full(q.shape, 77, BF16)

    def launch(*arrays: Any) -> None:
        plan.run(*arrays, scale=scale)

    got = execute.run(launch, q, k, v, out, *extras)[3]
    want = attentions.exact(q, k, v, config.mask, config.layout, scale, bias if biased else 0.0)
    attentions.assert_close(got, want, v)
