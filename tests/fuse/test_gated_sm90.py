"""Two products and a function of both in one Hopper kernel, in the simulator with all checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gated_sm90_plan import GatedPlan, candidates, choose, gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

Matrix = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
M, N, K = 200, 136, 200  # hang over all edges of all tiles


def operands(m: int = M, n: int = N, k: int = K, dtype: Any = BF16) -> list[Matrix]:
    """A and both weights, whose products are about as large as activations are."""
    rng = np.random.default_rng(0)
    shapes = (m, k), (n, k), (n, k)
    scales = 1.0, k**-0.5, k**-0.5
    return [
        (scale * rng.standard_normal(shape)).astype(dtype)
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def exact(a: Matrix, gate: Matrix, up: Matrix, *biases: Matrix, act: Any = silu) -> Matrix:
    """The result in f64."""
    g, u = (a.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    if biases:
        g, u = (x + bias.astype(np.float64) for x, bias in zip((g, u), biases, strict=True))
    if act is silu:
        return g / (1 + np.exp(-g)) * u
    return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u


def assert_close(c: Matrix, want: Matrix) -> None:
    """Equal up to one rounding of the result's type and the order of sums."""
    epsilon, largest = float(ml_dtypes.finfo(c.dtype).eps), np.abs(want).max()
    error = np.abs(c.astype(np.float64) - want)
    assert (error <= epsilon * np.abs(want) + 2**-19 * largest).all()


def simulated(
    config: Sm90Config,
    a: Matrix,
    gate: Matrix,
    up: Matrix,
    *extras: Matrix,
    epilogue: Any = None,
    result: Any = BF16,
    swap: bool = False,
    **options: Any,
) -> Matrix:
    """C of one launch of three blocks or clusters, from NaN."""
    c = np.full((a.shape[0], gate.shape[0]), np.nan, result)
    problem = model.Problem(c.shape[0], 2 * c.shape[1], a.shape[1])
    plan = Sm90Plan(problem, config, swap, multiprocessors=3 * config.blocks_together)
    kd.simulate(
        gated_sm90,
        grid=plan.grid,
        block=config.threads,
        cluster=plan.cluster,
        args=(a, gate, up, c, *extras),
        kwargs={"epilogue": epilogue or gated(silu), "config": config, "swap": swap},
        checks=("all", "unwritten"),
        overlap=True,  # the launch ahead may still use all arrays
        **options,
    )
    return c


PLAIN = Sm90Config((128, 64, 64), 3)
CONFIGS = {
    "cooperative": PLAIN,
    "wide": Sm90Config((128, 256, 64), 3),
    "one group": Sm90Config((64, 48, 64), 4, consumers=1),
    "two blocks of rows": Sm90Config((256, 32, 64), 3),
    "pingpong": Sm90Config((64, 112, 64), 3, "pingpong"),
    "setmaxnreg": replace(PLAIN, registers=(40, 232)),
    "cluster of two rows": replace(PLAIN, cluster=(2, 1)),
    "cluster of two columns": replace(PLAIN, cluster=(1, 2)),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("result", (BF16, np.float32))
def test_schedules(name: str, result: Any) -> None:
    """Every schedule, results by TMA and by ordinary stores."""
    a, gate, up = operands()
    assert_close(simulated(CONFIGS[name], a, gate, up, result=result), exact(a, gate, up))


@pytest.mark.parametrize("act", (silu, gelu))
@pytest.mark.parametrize("result", (BF16, np.float32))
def test_biases(act: Any, result: Any) -> None:
    """A bias for each of the products, in front of the activation and of the factor."""
    a, gate, up = operands()
    rng = np.random.default_rng(1)
    biases = [rng.standard_normal(N).astype(BF16) for _ in range(2)]
    rows = [np.broadcast_to(bias, (M, N)) for bias in biases]
    c = simulated(PLAIN, a, gate, up, *rows, epilogue=gated(act), result=result)
    assert_close(c, exact(a, gate, up, *biases, act=act))


def test_any_function() -> None:
    """The epilogue is any pointwise function of both products, and of matrices."""
    a, gate, up = operands()
    residual = np.random.default_rng(2).standard_normal((M, N)).astype(np.float32)

    def difference(gate: Any, up: Any, residual: Any) -> Any:
        return kd.maximum(gate - up, 0.0) + residual

    c = simulated(CONFIGS["pingpong"], a, gate, up, residual, epilogue=difference)
    g, u = (a.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    assert_close(c, np.maximum(g - u, 0) + residual)


@pytest.mark.parametrize("name", ("cooperative", "two blocks of rows"))
@pytest.mark.parametrize("a_major, w_major", ((0, 1), (1, 0), (0, 0)))
def test_major_orders(name: str, a_major: int, w_major: int) -> None:
    """Operands contiguous along M or N."""
    a, gate, up = operands()
    a = a if a_major else np.ascontiguousarray(a.T).T
    gate, up = (w if w_major else np.ascontiguousarray(w.T).T for w in (gate, up))
    assert_close(simulated(CONFIGS[name], a, gate, up), exact(a, gate, up))


def test_halves_of_one_matrix() -> None:
    """Both weights may be rows of one, as many models keep them."""
    a, gate, up = operands()
    both = np.concatenate([gate, up])
    assert_close(simulated(PLAIN, a, both[:N], both[N:]), exact(a, gate, up))


@pytest.mark.parametrize("name", ("cooperative", "pingpong", "cluster of two rows"))
def test_any_order(name: str) -> None:
    """Blocks and warps in any order give the same bits."""
    a, gate, up = operands()
    first = simulated(CONFIGS[name], a, gate, up)
    for seed in range(2):
        other = simulated(CONFIGS[name], a, gate, up, order="shuffle", seed=seed)
        assert first.tobytes() == other.tobytes()


@pytest.mark.parametrize("m, n, k", ((1, 8, 8), (5, 9, 7), (130, 67, 129), (64, 200, 64)))
def test_plans(m: int, n: int, k: int) -> None:
    """The chosen plan runs as it is, also where TMA cannot take operands or results."""
    a, gate, up = operands(m, n, k, np.float16)
    c = np.full((m, n), np.nan, np.float16)
    choose(m, n, k, kd.f16).run(a, gate, up, c, epilogue=gated(silu))
    assert_close(c, exact(a, gate, up))


@pytest.mark.parametrize("m, n, k", ((4096, 14336, 4096), (16, 14336, 4096), (128, 11008, 4096)))
def test_candidates(m: int, n: int, k: int) -> None:
    """Candidates pair their columns, keep K whole, fit a multiprocessor, and differ."""
    plans = candidates(m, n, k, kd.bf16)
    assert len({str(plan) for plan in plans}) == len(plans) >= 4
    assert {plan.both.swap for plan in plans} == ({False, True} if m <= 64 else {False})
    for plan in plans:
        plan.both.config.check_pairs(0 if plan.both.swap else 1)
        assert model.shared_bytes(plan.both.config, plan.both.problem) <= model.SHARED_BYTES
    chosen = choose(m, n, k, kd.bf16)
    assert str(chosen) in {str(plan) for plan in plans} and not chosen.both.swap
    assert plans[0].both.tiles == -(-m // plans[0].both.config.tile[0]) * -(
        -n // (plans[0].both.config.tile[1] // 2)
    )


def test_few_rows_stream_weights() -> None:
    """Plans of few rows tell L2 so, in either order of operands; all give the same bits."""
    m, n, k = 5, 72, 128
    plain, streamed, swapped = candidates(m, n, k, kd.f16, limit=1)
    assert streamed == choose(m, n, k, kd.f16)
    assert replace(streamed.both.config, caches=(None, None), fetch=256) == plain.both.config
    assert swapped.both.swap and swapped.both.config.caches == ("evict_first", None)
    a, gate, up = operands(m, n, k, np.float16)
    results = [np.full((m, n), np.nan, np.float16) for _ in range(3)]
    for plan, c in zip((plain, streamed, swapped), results, strict=True):
        plan.run(a, gate, up, c, epilogue=gated(silu))
    for c in results[1:]:
        np.testing.assert_array_equal(results[0], c)


def test_many_rows_do_not_stream() -> None:
    """Of more rows each weight is read several times, from L2."""
    many = candidates(128, 72, 128, kd.f16)
    assert {plan.both.config.caches for plan in many} == {(None, None)}
    assert choose(128, 72, 128, kd.f16).both.config.caches == (None, None)


def test_room_for_extras() -> None:
    """Plans of 128 accumulators give threads more registers where extras are read."""
    wide = Sm90Plan(model.Problem(4096, 8192, 4096), Sm90Config((128, 256, 64), 4, cluster=(2, 1)))
    config = GatedPlan(wide).with_room().both.config
    assert (config.registers, config.cluster) == ((40, 232), (1, 1))
    narrow = choose(16, 4096, 64, kd.bf16, extras=True)
    assert narrow.both.config.registers is None


def test_bad_input() -> None:
    """Tiles without halves, parts of K, and weights that do not lie alike are refused."""
    a, gate, up = operands()
    for config in (
        replace(PLAIN, tile=(128, 72, 64)),
        Sm90Config((64, 64, 64), 3, consumers=1, peers=2),
    ):
        with pytest.raises(kd.ArgumentError) as caught:
            simulated(config, a, gate, up)
        assert caught.value.code == "K940"
    with pytest.raises(kd.TypeMismatch) as unlike:
        simulated(PLAIN, a, gate, np.ascontiguousarray(up.T).T)
    assert unlike.value.code == "K476"
    with pytest.raises(kd.KdslError):
        simulated(PLAIN, a, gate, up[:-1])
