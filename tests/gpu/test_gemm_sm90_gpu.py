"""The Hopper GEMM gives the same bits in the simulator and on a GPU, and those are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from execution import Executor
from fuse import test_gemm_sm90 as products
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, sum_parts

Matrix = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
BLOCKS = 4  # of the persistent grid, so that each computes several tiles


def ordered(matrix: Matrix, contiguous: int) -> Matrix:
    """The same matrix, contiguous along one of its modes."""
    return matrix if contiguous else np.ascontiguousarray(matrix.T).T


def numbers(shape: tuple[int, ...], dtype: Any, seed: int, contiguous: int = 1) -> Matrix:
    """Normal numbers, or all that 8 bits can hold."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return ordered(rng.integers(info.min, info.max, shape, dtype, endpoint=True), contiguous)
    return ordered(rng.standard_normal(shape).astype(dtype), contiguous)


def multiply(
    execute: Executor,
    config: Sm90Config,
    a: Matrix,
    b: Matrix,
    *extras: Matrix,
    result: Any = None,
    contiguous: int = 1,
    epilogue: Any = identity,
) -> Matrix:
    """C of a product on four blocks, and of the sum of its parts where K is split."""
    shape = (a.shape[0], b.shape[0], *a.shape[2:])
    c = ordered(np.full(shape[:2], 77, result or a.dtype), contiguous)
    if len(shape) == 3:
        c = np.stack([c] * shape[2]).transpose(1, 2, 0)
    problem = model.Problem(shape[0], shape[1], a.shape[1], batch=(*shape, 1)[2])
    plan = Sm90Plan(problem, config, multiprocessors=BLOCKS)
    launch = gemm_sm90.configure(grid=plan.grid, block=config.threads, cluster=plan.cluster)
    if config.splits == 1:

        def whole(*arrays: Any) -> None:
            launch(*arrays, epilogue=epilogue, config=config)

        return execute.run(whole, a, b, c, *extras)[2]
    parts = np.full(
        (config.splits, *c.shape[::-1][:: 1 if contiguous == 0 else -1]), 77, np.float32
    )
    parts = parts.transpose((2, 1, 0) if contiguous == 0 else (1, 2, 0))
    shares = SumShares.of(c.shape, contiguous, config.splits)
    total = sum_parts[shares.grid, THREADS]

    def split(a: Any, b: Any, parts: Any, c: Any, *extras: Any) -> None:
        launch(a, b, parts, epilogue=identity, config=config)
        total(parts, c, *extras, epilogue=epilogue, **shares.statics)

    return execute.run(split, a, b, parts, c, *extras)[3]


def assert_close(c: Matrix, exact: Matrix, ulps: float = 1.0) -> None:
    """Within one rounding of the result's type, and the order of sums."""
    epsilon = ulps * float(ml_dtypes.finfo(c.dtype).eps)
    error = np.abs(c.astype(np.float64) - exact)
    assert (error <= epsilon * (np.abs(exact) + 1e-3 * np.abs(exact).max())).all()


def product(a: Matrix, b: Matrix) -> Matrix:
    """A · Bᵀ in f64."""
    return a.astype(np.float64) @ b.astype(np.float64).T


CONFIGS = {
    "cooperative": Sm90Config((128, 64, 64), 3),
    "one group": Sm90Config((64, 32, 64), 4, consumers=1),
    "four blocks of rows": Sm90Config((256, 24, 64), 3, group=2),
    "pingpong": Sm90Config((64, 64, 64), 3, "pingpong"),
    "setmaxnreg": Sm90Config((128, 128, 64), 3, registers=(40, 232)),
    "pingpong, setmaxnreg": Sm90Config((64, 128, 64), 3, "pingpong", registers=(40, 232)),
    "cluster of two rows": Sm90Config((128, 64, 64), 3, cluster=(2, 1)),
    "cluster of two columns": Sm90Config((128, 64, 64), 3, "pingpong", cluster=(1, 2)),
    "cluster of four": Sm90Config((64, 64, 64), 3, "pingpong", cluster=(2, 2)),
    "k shared by two": Sm90Config((64, 16, 64), 3, consumers=1, peers=2),
    "k shared by four": Sm90Config((128, 32, 64), 3, peers=4),
    "k split in memory": Sm90Config((128, 32, 64), 3, splits=3),
    "k split both ways": Sm90Config((64, 32, 64), 3, consumers=1, peers=2, splits=2),
    "policies of L2": Sm90Config((128, 64, 64), 3, caches=("evict_last", "evict_first")),
}
FOUR_WAYS = ("cooperative", "pingpong", "k shared by two", "k split in memory")


def beside(configs: dict[str, Any], known: dict[str, Any]) -> list[Any]:
    """Names of configurations, slow where the simulator runs the same elsewhere: in `known`."""
    same = [name for name, config in configs.items() if config in known.values()]
    return [pytest.param(n, marks=pytest.mark.slow) if n in same else n for n in configs]


@pytest.mark.parametrize("name", beside(CONFIGS, products.CONFIGS))
def test_schedules(execute: Executor, name: str) -> None:
    """Each way to share the work, with tiles that hang over every edge."""
    a, b = numbers((200, 264), BF16, 0), numbers((136, 264), BF16, 1)
    assert_close(multiply(execute, CONFIGS[name], a, b), product(a, b))


@pytest.mark.parametrize("majors", ["111", "011", "101", "110", "000"])
def test_major_orders(execute: Executor, majors: str) -> None:
    """Each of A, B and C contiguous along either mode."""
    a_major, b_major, c_major = map(int, majors)
    a, b = numbers((136, 136), np.float16, 2, a_major), numbers((72, 136), np.float16, 3, b_major)
    c = multiply(execute, CONFIGS["cooperative"], a, b, contiguous=c_major)
    assert_close(c, product(a, b))


@pytest.mark.parametrize(
    "cluster, schedule, registers, majors, residual",
    combined(
        {"rows": (2, 1), "columns": (1, 2)}, ["cooperative", "pingpong"],
        {"fixed": None, "moved": (40, 232)}, ["11", "01", "10"], {"plain": False, "residual": True},
    ),
)  # fmt: skip
def test_clusters(
    execute: Executor,
    cluster: tuple[int, int],
    schedule: Any,
    registers: Any,
    majors: str,
    residual: bool,
) -> None:
    """Multicast with every schedule, major order and tail, also of tiles that lie outside."""
    config = Sm90Config((128, 128, 64), 3, schedule, cluster=cluster, registers=registers)
    a_major, b_major = map(int, majors)
    a, b = numbers((264, 200), BF16, 19, a_major), numbers((136, 200), BF16, 20, b_major)
    extras = (numbers((264, 136), BF16, 21),) if residual else ()
    tail = (lambda acc, r: kd.maximum(acc, 0.0) + r.to(kd.f32)) if residual else identity
    c = multiply(execute, config, a, b, *extras, epilogue=tail)
    exact = product(a, b)
    if residual:
        exact = np.maximum(exact, 0) + extras[0].astype(np.float64)
    assert_close(c, exact)


@pytest.mark.parametrize("name", ["cooperative", "k split in memory", "k shared by two"])
@pytest.mark.parametrize("columns", [45, 66])
def test_unaligned_results(execute: Executor, columns: int, name: str) -> None:
    """Pitches of C that TMA cannot take."""
    a, b = numbers((130, 200), BF16, 4), numbers((columns, 200), BF16, 5)
    assert_close(multiply(execute, CONFIGS[name], a, b), product(a, b))


@pytest.mark.parametrize("name", FOUR_WAYS)
@pytest.mark.parametrize("c_major", [0, 1])
def test_epilogues(execute: Executor, name: str, c_major: int) -> None:
    """A scale for each row, a bias for each column, a residual, and the larger of it and zero."""
    m, n = 136, 72
    a, b = numbers((m, 200), BF16, 6), numbers((n, 200), BF16, 7)
    bias, scale = numbers((n,), np.float32, 8), numbers((m,), np.float32, 9)
    residual = numbers((m, n), BF16, 10, c_major)

    def tail(acc: Any, bias: Any, scale: Any, residual: Any) -> Any:
        return kd.maximum(acc * scale + bias, 0.0) + residual.to(kd.f32)

    extras = (np.broadcast_to(bias, (m, n)), np.broadcast_to(scale[:, None], (m, n)), residual)
    config = CONFIGS[name]
    c = multiply(execute, config, a, b, *extras, epilogue=tail, contiguous=c_major)
    exact = np.maximum(product(a, b) * scale[:, None] + bias, 0) + residual.astype(np.float64)
    assert_close(c, exact, ulps=1.01)


@pytest.mark.parametrize("name", FOUR_WAYS[:-1])
@pytest.mark.parametrize(
    ("columns", "result"), [(40, np.float16), (37, np.float16), (40, np.float32)]
)
def test_batches(execute: Executor, columns: int, result: Any, name: str) -> None:
    """A batch along mode 2, whatever way results leave."""
    a, b = numbers((2, 72, 200), np.float16, 11), numbers((2, columns, 200), np.float16, 12)
    sides = a.transpose(1, 2, 0), b.transpose(1, 2, 0)
    c = multiply(execute, CONFIGS[name], *sides, result=result)
    for i in range(2):
        assert_close(c[:, :, i].astype(np.float16), product(a[i], b[i]))


WITHOUT_SPLIT = ["one group", "pingpong", "k shared by two", "cluster of two rows"]


def deep(name: str) -> Sm90Config:
    """The configuration with tiles as deep as 8-bit elements want them."""
    return replace(CONFIGS[name], tile=(*CONFIGS[name].tile[:2], 128))


@pytest.mark.parametrize("name", [*WITHOUT_SPLIT, "k split in memory"])
@pytest.mark.parametrize("types", [(E4M3, E4M3, BF16), (E5M2, E4M3, np.float16)], ids=("4", "5"))
def test_fp8(execute: Executor, types: tuple[Any, Any, Any], name: str) -> None:
    """e4m3 and e5m2 with the tensor core's short accumulator."""
    a, b = numbers((136, 400), types[0], 13), numbers((40, 400), types[1], 14)
    c, exact = multiply(execute, deep(name), a, b, result=types[2]), product(a, b)
    assert np.abs(c.astype(np.float64) - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("name", WITHOUT_SPLIT)
@pytest.mark.parametrize("types", [(np.int8, np.int8), (np.uint8, np.int8)], ids=("i8", "u8"))
def test_integers(execute: Executor, types: tuple[Any, Any], name: str) -> None:
    """Products of 8-bit integers are exact."""
    a, b = numbers((136, 400), types[0], 15), numbers((40, 400), types[1], 16)
    c = multiply(execute, deep(name), a, b, result=np.int32)
    np.testing.assert_array_equal(c, product(a, b))


@pytest.mark.parametrize("name", ["cooperative", "k split both ways"])
def test_results_of_32_bits(execute: Executor, name: str) -> None:
    """f32 results leave by ordinary stores."""
    a, b = numbers((136, 264), np.float16, 17), numbers((40, 264), np.float16, 18)
    c = multiply(execute, CONFIGS[name], a, b, result=np.float32)
    np.testing.assert_allclose(c, product(a, b), rtol=1e-5, atol=1e-4)
