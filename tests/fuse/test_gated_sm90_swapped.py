"""Gated products whose tiles have rows of weights, for few rows of A, in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from fuse.test_gated_sm90 import PLAIN, assert_close, exact, operands, simulated
from kdsl_fuse.kernels.gated_sm90_plan import GatedPlan, candidates, gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, parse, problem_of

BF16 = ml_dtypes.bfloat16
M, N, K = 24, 200, 200  # hang over all edges of all tiles

ONE = Sm90Config((128, 16, 64), 3, consumers=1)
CONFIGS = {
    "one group": ONE,
    "eight columns, long rows": Sm90Config((128, 8, 128), 3, consumers=1),
    "two groups": Sm90Config((256, 16, 64), 3),
    "two blocks of either": Sm90Config((256, 16, 64), 3, consumers=1),
    "two groups, two blocks of either": Sm90Config((512, 16, 32), 3),
    "pingpong": Sm90Config((128, 24, 64), 3, "pingpong"),
    "several chunks": Sm90Config((128, 96, 64), 3, consumers=1),
    "setmaxnreg": replace(ONE, registers=(40, 232)),
    "cluster of two rows": replace(ONE, cluster=(2, 1)),
    "cluster of two columns": replace(ONE, cluster=(1, 2)),
    "streaming": replace(ONE, caches=("evict_first", None), fetch=128),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("result", (BF16, np.float32))
def test_schedules(name: str, result: Any) -> None:
    """Every schedule, results by TMA and by ordinary stores, the bits of plans without `swap`."""
    a, gate, up = operands(M, N, K)
    c = simulated(CONFIGS[name], a, gate, up, result=result, swap=True)
    assert_close(c, exact(a, gate, up))
    np.testing.assert_array_equal(c, simulated(PLAIN, a, gate, up, result=result))


@pytest.mark.parametrize("m", (1, 16, 24, 33))
@pytest.mark.parametrize("n", (64, 72, 67))
@pytest.mark.parametrize("dtype", (BF16, np.float16))
def test_few_rows(m: int, n: int, dtype: Any) -> None:
    """Any number of rows, and of columns, of which TMA cannot write odd numbers."""
    a, gate, up = operands(m, n, 136, dtype)
    c = simulated(ONE, a, gate, up, result=dtype, swap=True)
    assert_close(c, exact(a, gate, up))


def test_whole_numbers() -> None:
    """Sums and products of small whole numbers are NumPy's, bit by bit."""
    rng = np.random.default_rng(1)
    a, gate, up = (rng.integers(-3, 4, shape).astype(BF16) for shape in ((M, K), (N, K), (N, K)))

    def product(gate: Any, up: Any) -> Any:
        return gate * up - gate

    c = simulated(ONE, a, gate, up, epilogue=product, result=np.float32, swap=True)
    g, u = (a.astype(np.float32) @ w.astype(np.float32).T for w in (gate, up))
    np.testing.assert_array_equal(c, g * u - g)


@pytest.mark.parametrize("name", ("one group", "two groups, two blocks of either"))
@pytest.mark.parametrize("result", (BF16, np.float32))
def test_extras(name: str, result: Any) -> None:
    """A bias along either mode and a residual, which the kernel sees transposed as it does C."""
    a, gate, up = operands(M, N, K)
    rng = np.random.default_rng(2)
    bias, scale = (rng.standard_normal(size).astype(BF16) for size in (N, M))
    residual = rng.standard_normal((M, N)).astype(np.float32)

    def tail(gate: Any, up: Any, bias: Any, scale: Any, residual: Any) -> Any:
        return kd.maximum(gate + bias.to(kd.f32), 0.0) * up * scale.to(kd.f32) + residual

    rows = np.broadcast_to(bias, (M, N)), np.broadcast_to(scale[:, None], (M, N)), residual
    c = simulated(CONFIGS[name], a, gate, up, *rows, epilogue=tail, result=result, swap=True)
    g, u = (a.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    want = np.maximum(g + bias.astype(np.float64), 0) * u * scale[:, None].astype(np.float64)
    assert_close(c, want + residual)


def test_biases() -> None:
    """A bias for each of the products, in front of the activation and of the factor."""
    a, gate, up = operands(M, N, K)
    biases = [np.linspace(first, 1, N).astype(BF16) for first in (-1, 0.5)]
    rows = [np.broadcast_to(bias, (M, N)) for bias in biases]
    c = simulated(ONE, a, gate, up, *rows, epilogue=gated(gelu), swap=True)
    assert_close(c, exact(a, gate, up, *biases, act=gelu))


@pytest.mark.parametrize("name", ("one group", "cluster of two rows", "cluster of two columns"))
@pytest.mark.parametrize("a_major, w_major", ((0, 1), (1, 0), (0, 0)))
def test_major_orders(name: str, a_major: int, w_major: int) -> None:
    """Operands contiguous along M or N, also where a cluster loads them in slices."""
    a, gate, up = operands(M, N, K)
    a = a if a_major else np.ascontiguousarray(a.T).T
    gate, up = (w if w_major else np.ascontiguousarray(w.T).T for w in (gate, up))
    c = simulated(CONFIGS[name], a, gate, up, swap=True)
    assert_close(c, exact(a, gate, up))


@pytest.mark.parametrize("name", ("two groups", "pingpong", "cluster of two rows"))
def test_any_order(name: str) -> None:
    """Blocks and warps in any order give the same bits."""
    a, gate, up = operands(M, N, K)
    first = simulated(CONFIGS[name], a, gate, up, swap=True)
    for seed in range(2):
        other = simulated(CONFIGS[name], a, gate, up, swap=True, order="shuffle", seed=seed)
        assert first.tobytes() == other.tobytes()


@pytest.mark.parametrize("m, n, k", ((1, 8, 8), (5, 9, 7), (33, 67, 129), (64, 200, 64)))
def test_plans(m: int, n: int, k: int) -> None:
    """Every candidate runs as it is, also where TMA cannot take operands or results."""
    a, gate, up = operands(m, n, k, np.float16)
    swapped = [plan for plan in candidates(m, n, k, kd.f16, limit=4) if plan.both.swap]
    assert len({str(plan) for plan in swapped}) == 4
    for plan in swapped:
        c = np.full((m, n), np.nan, np.float16)
        plan.run(a, gate, up, c, epilogue=gated(silu))
        assert_close(c, exact(a, gate, up))


def test_plan_of_a_text() -> None:
    """A plan's text says that operands change places."""
    text = "128x16x128 s6 coop1 c2x1 a:evict_first f128 g8 swap"
    config, swap = parse(text)
    plan = GatedPlan(Sm90Plan(problem_of(16, 2 * 14336, 4096, kd.bf16), config, swap))
    assert str(plan) == text and plan.statics == {"config": config, "swap": True}
    assert plan.both.tiles == 14336 // 64 and plan.both.grid == 132


@pytest.mark.parametrize(
    "config, told",
    (
        (replace(ONE, tile=(64, 16, 64)), r"M is a multiple of 128 for each warp group .*\(128\)"),
        (replace(ONE, tile=(192, 16, 64)), r"\(128\).* got the tile \(192, 16, 64\)"),
        (Sm90Config((128, 16, 64), 3), r"\(256\).* got the tile \(128, 16, 64\)"),
        (replace(ONE, peers=2), "neither splits nor peers, .* and 2 peers"),
    ),
)
def test_refused_tiles(config: Sm90Config, told: str) -> None:
    """Warp groups without whole blocks of rows of both weights, and parts of K."""
    with pytest.raises(kd.ArgumentError, match=told) as caught:
        simulated(config, *operands(M, N, K), swap=True)
    assert caught.value.code == "K940"
