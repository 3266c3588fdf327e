"""Attention by `mma.sync` in the simulator, with all checks: masks, heads, layouts, edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.attention_runs import (
    BF16,
    PROBLEM,
    array,
    assert_close,
    exact,
    gapped_bias,
    operands,
    packed_operands,
    simulated_by,
)
from kdsl_fuse.kernels.attention_problem import LAYOUTS, MASKS, AttentionProblem
from kdsl_fuse.kernels.attention_sm80 import Sm80AttentionConfig, attention_sm80
from kdsl_fuse.kernels.attention_sm80_plan import Sm80AttentionPlan, attention, choose

SMALL = Sm80AttentionConfig(64, 32)
DIMS = (32, 64, 96, 128, 192, 256)
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_120")


def simulated(config: Sm80AttentionConfig, problem: AttentionProblem, **options: Any) -> Any:
    """As `simulated_by` does."""
    return simulated_by(Sm80AttentionPlan(problem, config), **options)


CONFIGS = {
    "two stages": SMALL,
    "three stages": replace(SMALL, stages=3),
    "four stages": replace(SMALL, stages=4),
    "more stages than blocks": replace(SMALL, columns=128, stages=6),
    "one warp": replace(SMALL, warps=1),
    "eight warps": replace(SMALL, warps=8),
    "two strips": replace(SMALL, strips=2),
    "two strips in shared memory": replace(SMALL, dim=128, columns=16, warps=2, strips=2),
    "narrow": replace(SMALL, columns=16),
    "no power of two": replace(SMALL, columns=48),
    "short panels": replace(SMALL, dim=80, columns=64),
}


@pytest.mark.parametrize("name, mask", combined([*CONFIGS], MASKS, together=1))
def test_configurations(name: str, mask: str | None) -> None:
    """Every ring and tile, with and without a mask, where neither sequence is whole tiles."""
    simulated(replace(CONFIGS[name], mask=mask), PROBLEM)


@pytest.mark.parametrize("queries, keys", ((1, 1), (64, 32), (65, 129), (200, 130), (3, 300)))
@pytest.mark.parametrize("mask", MASKS)
def test_lengths(queries: int, keys: int, mask: str | None) -> None:
    """More queries than keys and fewer; queries that see no key give zeros."""
    problem = replace(PROBLEM, queries=queries, keys=keys)
    (*_, out) = simulated(replace(SMALL, mask=mask), problem).outputs
    if mask == "bottom-right" and queries > keys:
        assert (out[:, : queries - keys] == 0).all()


@pytest.mark.parametrize("dim", (8, 40, 64, 80, 96, 128, 192, 256))
@pytest.mark.parametrize("biased", (False, True))
def test_dimensions(dim: int, biased: bool) -> None:
    """Heads of every configuration that is chosen, those between filled up with zeros."""
    problem = AttentionProblem(1, 1, 1, 70, 90, dim)
    bias = np.linspace(-1, 1, 6300, dtype=np.float32).reshape(1, 1, 70, 90) if biased else None
    simulated(choose(problem, "top-left", biased=biased).config, problem, bias=bias)


@pytest.mark.parametrize("dim", DIMS)
def test_memory(dim: int) -> None:
    """Of what is chosen: shared memory takes no wavefront too many, global memory no sector."""
    problem = AttentionProblem(1, 1, 1, 128, 128, dim)
    profile = simulated(choose(problem).config, problem).profile
    assert (profile.bank_conflicts, profile.sector_efficiency) == (0, 1.0)


@pytest.mark.parametrize("heads, key_heads", ((4, 1), (4, 2), (3, 3)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads(heads: int, key_heads: int, layout: str) -> None:
    """Query heads share key heads, in both layouts and several batches."""
    problem = AttentionProblem(2, heads, key_heads, 70, 66, 64)
    simulated(replace(SMALL, layout=layout, mask="top-left"), problem)


@pytest.mark.parametrize("mask", (None, "top-left"))
@pytest.mark.parametrize("dtype", (np.float32, np.float16, BF16))
def test_bias(mask: str | None, dtype: Any) -> None:
    """An additive bias, broadcast over heads, -infinity for some keys and for all of a row."""
    bias = gapped_bias(dtype)
    (_, _, _, out, _) = simulated(replace(SMALL, mask=mask), PROBLEM, bias=bias).outputs
    assert (out[:, 5] == 0).all()


def test_f16() -> None:
    """Operands and results of f16."""
    simulated(SMALL, PROBLEM, dtype=np.float16)


def test_any_order() -> None:
    """Blocks and warps in any order give the same bits."""
    config = replace(SMALL, mask="top-left")
    first, *others = (
        simulated(config, PROBLEM, **order).outputs[3].tobytes()
        for order in ({}, {"order": "shuffle", "seed": 0}, {"order": "shuffle", "seed": 1})
    )
    assert others == [first, first]


def test_large_scores() -> None:
    """Scores of many thousands neither overflow nor lose the keys that matter."""
    q, k, v = operands(PROBLEM)
    q = (q * 100).astype(BF16)
    out = attention(q, k, v, scale=10.0)
    assert_close(out, exact(q, k, v, None, "bshd", 10.0), v)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_function(layout: str) -> None:
    """The function takes views and a mask of truth values, and makes its result."""
    q, k, v = packed_operands(layout)
    seen = np.random.default_rng(3).random((2, 1, 1, 70)) < 0.5
    seen[..., 0] = True
    out = attention(q, k, v, causal=True, layout=layout, bias=seen)
    hidden = np.where(seen, 0, -np.inf)
    assert_close(out, exact(q, k, v, "top-left", layout, 1 / 8, hidden), v)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("biased", (False, True))
def test_one_query(layout: str, biased: bool) -> None:
    """Heads that share keys are rows of a tile, each with its own bias."""
    problem = AttentionProblem(2, 6, 2, 1, 150, 64)
    q, k, v = operands(problem, layout)
    bias = np.random.default_rng(3).standard_normal((6, 1, 150)).astype(np.float32)
    out = attention(q, k, v, layout=layout, bias=bias if biased else None)
    assert_close(out, exact(q, k, v, None, layout, 1 / 8, bias if biased else 0.0), v)


X = array(1, 8, 2, 64)
BAD: dict[str, tuple[str, Any]] = {
    "no layout": ("K951", lambda: attention(X, X, X, layout="sbhd")),
    "no mask": ("K951", lambda: attention(X, X, X, causal="left")),
    "long heads": ("K953", lambda: attention(*[array(1, 8, 2, 264)] * 3)),
    "odd heads": ("K954", lambda: attention(*[array(1, 8, 2, 60)] * 3)),
    "long tiles": ("K950", lambda: Sm80AttentionConfig(272, 64)),
    "odd heads of tiles": ("K950", lambda: Sm80AttentionConfig(40, 64)),
    "odd tiles": ("K950", lambda: Sm80AttentionConfig(64, 40)),
    "three warps": ("K950", lambda: Sm80AttentionConfig(64, 64, warps=3)),
    "one stage": ("K950", lambda: Sm80AttentionConfig(64, 64, stages=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    """Each mistake has its code before anything runs."""
    code, call = BAD[name]
    with pytest.raises(kd.KdslError) as caught:
        call()
    assert caught.value.code == code


def test_plan() -> None:
    """A block for each tile of queries; heads together are those that L2 holds."""
    plan = choose(AttentionProblem(2, 8, 2, 300, 512, 128), "bottom-right")
    assert (plan.grid, plan.together) == (2 * 8 * 3, 128 * 4)
    assert str(plan) == "128x64x128 s2 4 warps bottom-right"
    assert choose(plan.problem, biased=True).grid == 2 * 8 * 5
    assert choose(replace(plan.problem, queries=64)).config.strips == 1
    one = choose(replace(plan.problem, queries=1))
    assert (one.grid, str(one)) == (2 * 2, "64x64x128 s2 4 warps full 4 heads a tile")


BIASES: dict[str, str | None] = {"plain": None, "f32": "f32", "boolean": "boolean"}


@pytest.mark.parametrize("target, dim, mask, bias", combined(TARGETS, DIMS, MASKS, [*BIASES]))
def test_assembles_without_spills(target: str, dim: int, mask: str | None, bias: str) -> None:
    """What is chosen keeps to registers and to the target's shared memory, also with a bias."""
    from kdsl_runtime.assemble import assemble

    problem = AttentionProblem(2, 16, 16, 4096, 4096, dim)
    config = choose(problem, mask, biased=BIASES[bias] is not None).config
    operand = kd.spec("bf16", (2, 4096, 16, dim))
    extras = [kd.spec(BIASES[bias], (2, 16, 4096, 4096))] if BIASES[bias] else []
    module = attention_sm80.module(
        *[operand] * 4, *extras,
        target=target, block=config.threads, config=config, scale=0.125, together=4,
    )  # fmt: skip
    report = assemble(module, target).report
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)
    assert module.shared_bytes <= kd.target_of(target).shared_bytes
