"""Attention on Hopper in the simulator, with all checks: masks, heads, layouts, edges, errors."""

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
    Array,
    array,
    assert_close,
    exact,
    gapped_bias,
    operands,
    packed_operands,
    simulated_by,
)
from kdsl_fuse.kernels.attention_problem import LAYOUTS, MASKS, AttentionProblem, problem_of
from kdsl_fuse.kernels.attention_sm90_config import Sm90AttentionConfig
from kdsl_fuse.kernels.attention_sm90_plan import Sm90AttentionPlan, attention, choose

SMALL = Sm90AttentionConfig(64, 64)


def simulated(
    config: Sm90AttentionConfig, problem: AttentionProblem, *, blocks: int = 3, **options: Any
) -> Array:
    """As `simulated_by` does on a few blocks; gives the result."""
    plan = Sm90AttentionPlan(problem, config, multiprocessors=blocks)
    out: Array = simulated_by(plan, **options).outputs[3]
    return out


CONFIGS = {
    "turns": SMALL,
    "no turns": replace(SMALL, turns=False),
    "one group": replace(SMALL, consumers=1, turns=False),
    "three groups": replace(SMALL, consumers=3, turns=False),
    "one stage": replace(SMALL, stages=(1, 1)),
    "setmaxnreg": replace(SMALL, registers=(24, 240)),
    "narrow": replace(SMALL, columns=16),
    "wide": replace(SMALL, columns=144),
}


@pytest.mark.parametrize("name, mask", combined([*CONFIGS], MASKS, together=1))
def test_schedules(name: str, mask: str | None) -> None:
    """Every schedule, with and without a mask, where neither sequence is whole tiles."""
    simulated(replace(CONFIGS[name], mask=mask), PROBLEM)


@pytest.mark.parametrize("queries, keys", ((1, 1), (64, 64), (65, 129), (200, 130), (3, 300)))
@pytest.mark.parametrize("mask", MASKS)
def test_lengths(queries: int, keys: int, mask: str | None) -> None:
    """More queries than keys and fewer; queries that see no key give zeros."""
    out = simulated(replace(SMALL, mask=mask), replace(PROBLEM, queries=queries, keys=keys))
    if mask == "bottom-right" and queries > keys:
        assert (out[:, : queries - keys] == 0).all()


@pytest.mark.parametrize("dim", (8, 40, 64, 80, 96, 128, 192, 256))
def test_dimensions(dim: int) -> None:
    """Heads of every configuration that is chosen, those between filled up with zeros."""
    problem = AttentionProblem(1, 1, 1, 70, 90, dim)
    simulated(choose(problem, "top-left").config, problem)


@pytest.mark.parametrize("heads, key_heads", ((4, 1), (4, 2), (3, 3)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads(heads: int, key_heads: int, layout: str) -> None:
    """Query heads share key heads, in both layouts and several batches."""
    problem = AttentionProblem(2, heads, key_heads, 70, 66, 64)
    simulated(replace(SMALL, layout=layout, mask="top-left"), problem)


@pytest.mark.parametrize("mask", (None, "top-left"))
@pytest.mark.parametrize("dtype", (np.float32, BF16))
def test_bias(mask: str | None, dtype: Any) -> None:
    """An additive bias, broadcast over heads, -infinity for some keys and for all of a row."""
    out = simulated(replace(SMALL, mask=mask), PROBLEM, bias=gapped_bias(dtype))
    assert (out[:, 5] == 0).all()


def test_f16() -> None:
    """Operands and results of f16."""
    simulated(SMALL, PROBLEM, dtype=np.float16)


def test_any_order() -> None:
    """Blocks and warps in any order give the same bits."""
    config = replace(SMALL, mask="top-left")
    first = simulated(config, PROBLEM)
    for seed in range(2):
        assert first.tobytes() == simulated(config, PROBLEM, order="shuffle", seed=seed).tobytes()


def test_large_scores() -> None:
    """Scores of many thousands neither overflow nor lose the keys that matter."""
    q, k, v = operands(PROBLEM)
    q = (q * 100).astype(BF16)
    out = attention(q, k, v, scale=10.0)
    assert_close(out, exact(q, k, v, None, "bshd", 10.0), v)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_function(layout: str) -> None:
    """The function takes views, makes its result, and knows PyTorch's causal mask."""
    q, k, v = packed_operands(layout)
    out = attention(q, k, v, causal=True, layout=layout, bias=np.zeros((70, 70), np.float32))
    assert_close(out, exact(q, k, v, "top-left", layout, 1 / 8), v)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", (None, "bottom-right", "top-left", "bias"))
def test_one_query(layout: str, mask: str | None) -> None:
    """Heads that share keys are rows of a tile, each with its own bias."""
    problem = AttentionProblem(2, 6, 2, 1, 150, 64)
    q, k, v = operands(problem, layout)
    bias = np.random.default_rng(3).standard_normal((6, 1, 150)).astype(np.float32)
    words: dict[str, Any] = {"bias": bias} if mask == "bias" else {"causal": mask or False}
    out = attention(q, k, v, layout=layout, **words)
    want = exact(q, k, v, words.get("causal"), layout, 1 / 8, words.get("bias", 0.0))
    assert_close(out, want, v)


X = array(1, 8, 2, 64)
BAD: dict[str, tuple[str, Any]] = {
    "no layout": ("K951", lambda: attention(X, X, X, layout="sbhd")),
    "no mask": ("K951", lambda: attention(X, X, X, causal="left")),
    "three modes": ("K953", lambda: attention(X[0], X[0], X[0])),
    "batches": ("K953", lambda: attention(X, array(2, 8, 2, 64), array(2, 8, 2, 64))),
    "values": ("K953", lambda: attention(X, X, array(1, 9, 2, 64))),
    "heads": ("K953", lambda: attention(array(1, 8, 3, 64), X, X)),
    "nothing": ("K953", lambda: attention(X, X[:, :0], X[:, :0])),
    "long heads": ("K953", lambda: attention(*[array(1, 8, 2, 264)] * 3)),
    "out": ("K953", lambda: attention(X, X, X, array(1, 9, 2, 64))),
    "odd heads": ("K954", lambda: attention(*[array(1, 8, 2, 60)] * 3)),
    "no contiguous mode": ("K954", lambda: attention(*[array(1, 8, 64, 2).swapaxes(2, 3)] * 3)),
    "negative scale": ("K955", lambda: attention(X, X, X, scale=-1.0)),
    "types": ("K956", lambda: attention(X, X, X.astype(np.float16))),
    "f32": ("K956", lambda: attention(*[X.astype(np.float32)] * 3)),
    "bias shape": ("K957", lambda: attention(X, X, X, bias=array(8, 9))),
    "bias type": ("K957", lambda: attention(X, X, X, bias=array(8, 8, dtype=np.int32))),
    "long tiles": ("K950", lambda: Sm90AttentionConfig(264, 64)),
    "odd heads of tiles": ("K950", lambda: Sm90AttentionConfig(40, 64)),
    "odd tiles": ("K950", lambda: Sm90AttentionConfig(64, 40)),
    "no stages": ("K950", lambda: Sm90AttentionConfig(64, 64, stages=(1, 0))),
    "turns of three": ("K952", lambda: Sm90AttentionConfig(64, 64, consumers=3)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    """Each mistake has its code before anything runs."""
    code, call = BAD[name]
    with pytest.raises(kd.KdslError) as caught:
        call()
    assert caught.value.code == code


def test_plan() -> None:
    """One block for each multiprocessor or tile; heads together are those that L2 holds."""
    q, k, v = (array(2, n, h, 128) for n, h in ((300, 8), (512, 2), (512, 2)))
    problem = problem_of(q, k, v)
    plan = choose(problem, "bottom-right")
    assert (plan.grid, plan.together) == (2 * 8 * 3, 128 * 4)
    assert choose(replace(problem, queries=3000)).grid == 132
    assert choose(replace(problem, keys=1 << 20)).together == 4
    one = choose(replace(problem, queries=1), "bottom-right")
    assert (one.config.consumers, one.config.mask, one.sharers, one.grid) == (1, None, 4, 2 * 2)
    assert str(one) == "64x128x128 s3+2 full 4 heads a tile"
    assert choose(replace(problem, queries=1), "top-left").sharers == 1
    assert problem.flops == 4 * 2 * 8 * 300 * 512 * 128
    assert str(plan) == "128x128x128 s3+2 bottom-right turns r240"
