"""The Hopper GEMM in the simulator: all schedules, major orders, edges and splits, no hazard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan
from kdsl_fuse.kernels.repitch import addressable
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, sum_parts

Matrix = np.ndarray[Any, Any]


def operand(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, contiguous: int = 1
) -> Matrix:
    """A matrix of normal numbers, contiguous along one of its modes."""
    values = rng.standard_normal(shape).astype(dtype)
    return values if contiguous else np.ascontiguousarray(values.T).T


def multiply(
    config: Sm90Config,
    a: Matrix,
    b: Matrix,
    *extras: Matrix,
    epilogue: Any = identity,
    result: Any = None,
    contiguous: int = 1,
    blocks: int = 3,
    outputs: Sequence[Matrix] = (),
    **options: Any,
) -> Matrix:
    """C of one launch in the simulator with all checks on, from NaN."""
    shape = (a.shape[0], b.shape[0], *a.shape[2:])
    c = np.full(shape, np.nan if result is not np.int32 else -1, result or a.dtype)
    if not contiguous:
        c = np.ascontiguousarray(c.T).T
    if c.ndim == 3:
        c = np.ascontiguousarray(c.transpose(2, 0, 1)).transpose(1, 2, 0)
    problem = model.Problem(shape[0], shape[1], a.shape[1], batch=(*shape, 1)[2])
    plan = Sm90Plan(problem, config, multiprocessors=blocks)
    if a.ndim == 2:
        a, b = addressable((a, b))
    launch = {"grid": plan.grid, "block": config.threads, "cluster": plan.cluster, **options}
    count = 1 + len(outputs)
    if config.splits == 1:
        kwargs = {"epilogue": epilogue, "config": config, "outputs": count}
        kd.simulate(gemm_sm90, args=(a, b, c, *outputs, *extras), kwargs=kwargs, **launch)
        return c
    parts = plan.parts(a, c)
    kwargs = {"epilogue": identity, "config": config}
    kd.simulate(gemm_sm90, args=(a, b, parts), kwargs=kwargs, **launch)
    shares = SumShares.of(c.shape, contiguous, config.splits)
    kd.simulate(
        sum_parts,
        grid=shares.grid,
        block=THREADS,
        args=(parts, c, *outputs, *extras),
        kwargs={"epilogue": epilogue, "outputs": count, **shares.statics},
    )
    return c


def assert_close(c: Matrix, exact: Matrix) -> None:
    """Equal up to one rounding of the result's type and the order of sums."""
    epsilon = float(ml_dtypes.finfo(c.dtype).eps)
    error = np.abs(c.astype(np.float64) - exact)
    assert (error <= epsilon * (np.abs(exact) + 1e-3 * np.abs(exact).max())).all()


def product(a: Matrix, b: Matrix) -> Matrix:
    """A · Bᵀ in f64."""
    return a.astype(np.float64) @ b.astype(np.float64).T


COOPERATIVE = Sm90Config((128, 64, 64), 3)
CONFIGS = {
    "cooperative": COOPERATIVE,
    "one group": Sm90Config((64, 32, 64), 4, consumers=1),
    "two blocks of rows": Sm90Config((256, 32, 64), 3),
    "pingpong": Sm90Config((64, 64, 64), 3, "pingpong"),
    "setmaxnreg": Sm90Config((128, 64, 64), 3, registers=(40, 232)),
    "cluster of two rows": Sm90Config((128, 64, 64), 3, cluster=(2, 1)),
    "cluster of two columns": Sm90Config((128, 64, 64), 3, cluster=(1, 2)),
    "cluster of four": Sm90Config((64, 64, 64), 3, "pingpong", cluster=(2, 2)),
    "k shared by a cluster": Sm90Config((64, 16, 64), 3, consumers=1, peers=2),
    "k split in memory": Sm90Config((128, 32, 64), 3, splits=3),
    "k split both ways": Sm90Config((64, 32, 64), 3, consumers=1, peers=2, splits=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_schedules(name: str) -> None:
    """Every schedule computes several tiles a block, some hanging over all edges."""
    rng = np.random.default_rng(0)
    a = operand(rng, (200, 328), ml_dtypes.bfloat16)
    b = operand(rng, (136, 328), ml_dtypes.bfloat16)
    assert_close(multiply(CONFIGS[name], a, b), product(a, b))


@pytest.mark.parametrize("name", ("pingpong", "cluster of four", "k split both ways"))
def test_bits_without_checks(name: str) -> None:
    """A run that looks for nothing schedules warps and transfers as one that checks everything."""
    rng = np.random.default_rng(0)
    a, b = (operand(rng, (rows, 200), ml_dtypes.bfloat16) for rows in (136, 72))
    checked, unchecked = (multiply(CONFIGS[name], a, b, checks=checks) for checks in ("all", ()))
    np.testing.assert_array_equal(checked.view(np.uint16), unchecked.view(np.uint16))


@pytest.mark.parametrize("a_major", (0, 1))
@pytest.mark.parametrize("b_major", (0, 1))
@pytest.mark.parametrize("c_major", (0, 1))
def test_major_orders(a_major: int, b_major: int, c_major: int) -> None:
    """Each matrix may be contiguous along either mode."""
    rng = np.random.default_rng(1)
    a = operand(rng, (136, 136), np.float16, a_major)
    b = operand(rng, (72, 136), np.float16, b_major)
    c = multiply(COOPERATIVE, a, b, contiguous=c_major)
    assert_close(c, product(a, b))


@pytest.mark.parametrize(
    "tile, cluster",
    (
        ((64, 16, 64), (2, 1)),
        ((64, 48, 64), (2, 1)),
        ((64, 16, 64), (1, 4)),
        ((64, 32, 64), (2, 2)),
    ),
)
def test_slices_narrower_than_a_swizzle(
    tile: tuple[int, int, int], cluster: tuple[int, int]
) -> None:
    """Blocks of a cluster load slices of eight rows and more of operands along M and N."""
    rng = np.random.default_rng(2)
    a, b = (operand(rng, (rows, 136), np.float16, 0) for rows in (136, 72))
    config = Sm90Config(tile, 3, consumers=1, cluster=cluster)
    assert_close(multiply(config, a, b, blocks=8), product(a, b))


@pytest.mark.parametrize("m, n, k", ((61, 45, 77), (64, 64, 63), (130, 67, 129), (5, 9, 1)))
@pytest.mark.parametrize("name", ("one group wide", "cooperative", "k split in memory"))
def test_unaligned_pitches(name: str, m: int, n: int, k: int) -> None:
    """Matrices whose pitch TMA cannot take are copied first, and nothing behind a row is summed."""
    config = {
        "one group wide": Sm90Config((64, 64, 64), 3, consumers=1),
        "cooperative": COOPERATIVE,
        "k split in memory": Sm90Config((64, 64, 64), 3, consumers=1, splits=2),
    }[name]
    if config.splits > -(-k // 64):
        pytest.skip("nothing to split")
    rng = np.random.default_rng(m)
    a, b = (operand(rng, (rows, k), ml_dtypes.bfloat16) for rows in (m, n))
    assert_close(multiply(config, a, b), product(a, b))


@pytest.mark.parametrize("name", ("cooperative", "k shared by a cluster", "pingpong"))
def test_epilogue(name: str) -> None:
    """A pointwise function with a bias along each mode and a residual."""
    rng = np.random.default_rng(3)
    a, b = (operand(rng, (rows, 192), ml_dtypes.bfloat16) for rows in (136, 72))
    bias, scale = (rng.standard_normal(n).astype(np.float32) for n in (72, 136))
    residual = operand(rng, (136, 72), ml_dtypes.bfloat16)

    def tail(acc: Any, bias: Any, scale: Any, residual: Any) -> Any:
        return kd.maximum(acc * scale + bias, 0.0) + residual.to(kd.f32)

    extras = (
        np.broadcast_to(bias, (136, 72)),
        np.broadcast_to(scale[:, None], (136, 72)),
        residual,
    )
    c = multiply(CONFIGS[name], a, b, *extras, epilogue=tail)
    exact = np.maximum(product(a, b) * scale[:, None] + bias, 0) + residual.astype(np.float64)
    assert_close(c, exact)


def test_batches() -> None:
    """A batch lies along mode 2."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((3, 72, 72)).astype(np.float16)
    b = rng.standard_normal((3, 40, 72)).astype(np.float16)
    c = multiply(COOPERATIVE, a.transpose(1, 2, 0), b.transpose(1, 2, 0))
    for i in range(3):
        assert_close(c[:, :, i], product(a[i], b[i]))


def test_results_of_32_bits() -> None:
    """f32 results leave by ordinary stores; int8 products are exact."""
    rng = np.random.default_rng(5)
    a, b = (operand(rng, (rows, 128), np.float16) for rows in (72, 40))
    c = multiply(COOPERATIVE, a, b, result=np.float32)
    np.testing.assert_allclose(c, product(a, b), rtol=1e-5, atol=1e-4)
    ints = [rng.integers(-128, 128, (rows, 256), dtype=np.int8) for rows in (72, 40)]
    config = Sm90Config((128, 64, 128), 3)
    exact = ints[0].astype(np.int32) @ ints[1].astype(np.int32).T
    assert (multiply(config, *ints, result=np.int32) == exact).all()


def test_fp8() -> None:
    """e4m3 and e5m2 operands, results in bf16, with the short accumulator of the tensor core."""
    rng = np.random.default_rng(6)
    a = rng.standard_normal((72, 256)).astype(ml_dtypes.float8_e4m3fn)
    b = rng.standard_normal((40, 256)).astype(ml_dtypes.float8_e5m2)
    c = multiply(Sm90Config((128, 64, 128), 3), a, b, result=ml_dtypes.bfloat16)
    exact = product(a, b)
    assert np.abs(c.astype(np.float64) - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("name", ("cooperative", "pingpong", "k split both ways"))
def test_any_order(name: str) -> None:
    """Blocks and warps in any order give the same bits."""
    rng = np.random.default_rng(7)
    a, b = (operand(rng, (rows, 200), ml_dtypes.bfloat16) for rows in (136, 72))
    first = multiply(CONFIGS[name], a, b)
    for seed in range(3):
        other = multiply(CONFIGS[name], a, b, order="shuffle", seed=seed)
        assert first.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ("cooperative", "k shared by a cluster", "k split in memory"))
@pytest.mark.parametrize("second", (ml_dtypes.bfloat16, np.float32))
def test_two_outputs(name: str, second: Any) -> None:
    """An epilogue that gives a tuple writes one matrix for each part of it."""
    rng = np.random.default_rng(8)
    a, b = (operand(rng, (rows, 192), ml_dtypes.bfloat16) for rows in (136, 72))
    before = np.full((136, 72), np.nan, second)

    def tail(acc: Any) -> Any:
        return kd.maximum(acc, 0.0), acc

    c = multiply(CONFIGS[name], a, b, outputs=[before], epilogue=tail)
    assert_close(c, np.maximum(product(a, b), 0))
    np.testing.assert_allclose(before.astype(np.float64), product(a, b), rtol=2**-8, atol=2**-8)
