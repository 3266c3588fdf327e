"""The kernels of the campaign with the launches that they are tried in: small, with every edge."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.repitch import repitch, repitch_grid
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, sum_parts

Matrix = np.ndarray[Any, Any]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with everything that a launch needs; `args` makes the same arguments each time.

    With `overlap` the launch ahead may still use all arrays.
    """

    kernel: Any
    grid: Any
    block: Any
    args: Callable[[], tuple[Any, ...]]
    statics: Mapping[str, Any] = field(default_factory=dict)
    cluster: Any = None
    overlap: bool = False
    checks: tuple[str, ...] = ("all", "unwritten")


def matrix(seed: int, shape: tuple[int, ...], dtype: Any = BF16, contiguous: int = 1) -> Matrix:
    """A matrix of normal numbers, contiguous along one of its modes."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values if contiguous else np.ascontiguousarray(values.T).T


def nothing(shape: tuple[int, ...], dtype: Any = BF16, contiguous: int = 1) -> Matrix:
    """A result before it is written: no number."""
    values = np.full(shape, np.nan, dtype)
    return values if contiguous else np.ascontiguousarray(values.T).T


def biased(acc: Any, bias: Any, residual: Any) -> Any:
    """ReLU of a biased product, and a residual."""
    return kd.maximum(acc + bias, 0.0) + residual.to(kd.f32)


def both(acc: Any) -> Any:
    """Two outputs."""
    return kd.maximum(acc, 0.0), acc


def _tail_of(m: int, n: int, dtype: Any) -> tuple[Matrix, Matrix]:
    bias = np.random.default_rng(7).standard_normal(n).astype(F32)
    return np.broadcast_to(bias, (m, n)), matrix(8, (m, n), dtype)


# -- sm_80 -----------------------------------------------------------------------------------------
def sm80(
    atom: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    sizes: tuple[int, int, int],
    *,
    stages: int = 3,
    dtype: Any = BF16,
    majors: tuple[int, int] = (1, 1),
    tail: bool = False,
) -> Launch:
    """A product by `gemm_sm80`."""
    (m, n, k), config = sizes, GemmConfig(atom, tile, warps, stages)

    def args() -> tuple[Any, ...]:
        a, b = matrix(0, (m, k), dtype, majors[0]), matrix(1, (n, k), dtype, majors[1])
        return a, b, nothing((m, n), dtype), *(_tail_of(m, n, dtype) if tail else ())

    grid = -(-m // tile[0]) * -(-n // tile[1])
    statics = {"epilogue": biased if tail else identity, "config": config}
    return Launch(gemm_sm80, grid, config.threads, args, statics)


# -- sm_90 -----------------------------------------------------------------------------------------
def sm90(
    config: Sm90Config,
    sizes: tuple[int, int, int],
    *,
    clusters: int = 1,
    dtype: Any = BF16,
    result: Any = None,
    majors: tuple[int, int, int] = (1, 1, 1),
    tail: bool = False,
    outputs: int = 1,
    batch: int = 1,
) -> Launch:
    """A product by `gemm_sm90`; few `clusters`, so that each has several tiles."""
    m, n, k = sizes
    together = config.blocks_together
    if config.splits > 1:  # the tail is for `sum_parts`
        tail, outputs = False, 1

    def args() -> tuple[Any, ...]:
        if batch > 1:
            shapes = ((batch, m, k), (batch, n, k), (batch, m, n))
            a, b, c = (matrix(i, shape, dtype) for i, shape in enumerate(shapes))
            return tuple(x.transpose(1, 2, 0) for x in (a, b, np.full_like(c, np.nan)))
        a, b = matrix(0, (m, k), dtype, majors[0]), matrix(1, (n, k), dtype, majors[1])
        if config.splits > 1:
            parts = np.full((config.splits, m, n), np.nan, F32)
            return a, b, parts.transpose(1, 2, 0)
        made = [nothing((m, n), result or dtype, majors[2]) for _ in range(outputs)]
        return a, b, *made, *(_tail_of(m, n, dtype) if tail else ())

    epilogue = both if outputs == 2 else biased if tail else identity
    statics = {"epilogue": epilogue, "config": config, "outputs": outputs}
    cluster = (together, 1, 1) if together > 1 else None
    return Launch(gemm_sm90, clusters * together, config.threads, args, statics, cluster, True)


ONE = Sm90Config((64, 32, 32), 2, consumers=1)
TWO = Sm90Config((128, 16, 32), 3)
PINGPONG = Sm90Config((64, 16, 32), 2, "pingpong")


def _hopper() -> dict[str, Launch]:
    wide = Sm90Config((64, 64, 64), 3, consumers=1)
    multicast = {"consumers": 1, "cluster": (2, 1)}
    return {
        "sm90/one group": sm90(ONE, (72, 24, 136)),
        "sm90/full swizzle": sm90(wide, (72, 64, 264)),
        "sm90/cooperative, tail": sm90(TWO, (136, 24, 136), tail=True),
        "sm90/two blocks of rows": sm90(Sm90Config((256, 16, 32), 2), (200, 24, 136)),
        "sm90/pingpong": sm90(PINGPONG, (200, 24, 136), clusters=2),
        "sm90/pingpong, tail": sm90(PINGPONG, (200, 16, 136), tail=True),
        "sm90/setmaxnreg": sm90(Sm90Config((128, 16, 32), 2, registers=(40, 232)), (136, 16, 136)),
        "sm90/cluster of rows": sm90(Sm90Config((64, 16, 32), 2, **multicast), (136, 24, 136)),
        "sm90/cluster of columns": sm90(
            Sm90Config((64, 16, 32), 3, consumers=1, cluster=(1, 2)), (72, 40, 136)
        ),
        "sm90/pingpong, cluster of four": sm90(
            Sm90Config((64, 16, 32), 2, "pingpong", cluster=(2, 2)), (200, 56, 136)
        ),
        "sm90/peers": sm90(
            Sm90Config((64, 16, 32), 2, consumers=1, peers=2), (72, 24, 328), tail=True
        ),
        "sm90/four peers, two groups": sm90(Sm90Config((128, 16, 32), 2, peers=4), (136, 16, 520)),
        "sm90/splits": sm90(Sm90Config((64, 32, 32), 2, consumers=1, splits=2), (72, 28, 264)),
        "sm90/splits and peers": sm90(
            Sm90Config((64, 16, 32), 2, consumers=1, peers=2, splits=2), (60, 16, 680)
        ),
        "sm90/slab, odd pitch": sm90(ONE, (70, 29, 136)),
        "sm90/f32 along M": sm90(ONE, (68, 32, 136), dtype=F16, result=F32, majors=(1, 1, 0)),
        "sm90/all along M and N": sm90(wide, (72, 56, 264), dtype=F16, majors=(0, 0, 0)),
        "sm90/two outputs": sm90(ONE, (72, 24, 136), outputs=2),
        "sm90/two outputs, two kinds": sm90(ONE, (72, 30, 136), outputs=2),
        "sm90/batch": sm90(ONE, (64, 32, 136), batch=2),
    }


def _ampere() -> dict[str, Launch]:
    atom = "SM80_16x8x16_F32BF16BF16F32_TN"
    halves = "SM80_16x8x16_F32F16F16F32_TN"
    tf32 = "SM80_16x8x8_F32TF32TF32F32_TN"
    return {
        "sm80/whole tiles": sm80(atom, (32, 32, 32), (1, 2), (32, 32, 192)),
        "sm80/edges, tail": sm80(atom, (32, 32, 32), (2, 2), (40, 24, 152), tail=True),
        "sm80/odd sizes": sm80(atom, (32, 32, 32), (2, 2), (33, 63, 77), stages=2),
        "sm80/along M and N": sm80(
            halves, (32, 32, 32), (2, 2), (40, 24, 136), dtype=F16, majors=(0, 0)
        ),
        "sm80/tf32": sm80(tf32, (32, 32, 16), (2, 2), (40, 24, 72), dtype=F32, majors=(1, 0)),
        "sm80/f32": sm80("UNIVERSAL_FMA_F32", (16, 16, 16), (8, 8), (20, 12, 72), dtype=F32),
    }


# -- copies and sums -------------------------------------------------------------------------------
def _repitch() -> Launch:
    def args() -> tuple[Any, ...]:
        a, b = matrix(0, (5, 73)), matrix(1, (3, 1025))
        into = [np.full((len(x), -(-x.shape[1] // 64) * 64), np.nan, BF16) for x in (a, b)]
        return a, into[0], b, into[1]

    grid = repitch_grid([(5, 73), (3, 1025)], 2)
    return Launch(repitch, grid, 128, args, overlap=True, checks=("all",))  # pads stay as they are


def sums(
    m: int, n: int, contiguous: int, *, parts: int = 3, tail: bool = False, outputs: int = 1
) -> Launch:
    """The sum of parts by `sum_parts`."""

    def args() -> tuple[Any, ...]:
        given = matrix(2, (parts, m, n) if contiguous else (parts, n, m), F32)
        made = [nothing((m, n), BF16, contiguous) for _ in range(outputs)]
        order = (1, 2, 0) if contiguous else (2, 1, 0)
        return given.transpose(order), *made, *(_tail_of(m, n, BF16) if tail else ())

    epilogue = both if outputs == 2 else biased if tail else identity
    shares = SumShares.of((m, n), contiguous, parts)
    statics = {"epilogue": epilogue, "outputs": outputs, **shares.statics}
    return Launch(sum_parts, shares.grid, THREADS, args, statics, overlap=True)


def _helpers() -> dict[str, Launch]:
    return {
        "repitch": _repitch(),
        "sum_parts/rows, tail": sums(3, 520, 1, tail=True),
        "sum_parts/columns, two outputs": sums(135, 3, 0, outputs=2),
        "sum_parts/groups of threads": sums(5, 136, 1, parts=9),
    }


# -- examples --------------------------------------------------------------------------------------
@cache
def example(name: str) -> dict[str, Any]:
    """What an example's file defines."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def _examples() -> dict[str, Launch]:
    gemm, turned = example("hopper_gemm"), example("tma_transpose")

    def product(m: int, n: int, k: int) -> Callable[[], tuple[Any, ...]]:
        return lambda: (matrix(0, (m, k)), matrix(1, (n, k)), nothing((m, n)))

    def square(rows: int, columns: int, dtype: Any) -> Callable[[], tuple[Any, ...]]:
        return lambda: (matrix(0, (rows, columns), dtype), nothing((columns, rows), dtype))

    return {
        "examples/vector_add": Launch(
            example("vector_add")["scaled_add"], 3, 128,
            lambda: (*(matrix(i, (300,), F32) for i in range(2)), nothing((300,), F32), 0.5),
        ),
        "examples/transpose": Launch(
            example("transpose")["transpose"], (2, 2), 256, square(40, 50, F32)
        ),
        "examples/softmax": Launch(
            example("softmax")["softmax"], 2, 128,
            lambda: (matrix(0, (6, 77), F32), nothing((6, 77), F32)),
        ),
        "examples/matmul": Launch(example("matmul")["matmul"], (1, 1), 128, product(64, 64, 96)),
        "examples/tma_transpose": Launch(
            turned["transpose"], (2, 2), turned["WARPS"] * 32, square(72, 72, BF16)
        ),
        "examples/hopper by hand": Launch(
            gemm["by_hand"], (1, 1), gemm["THREADS"], product(100, 56, 456)
        ),
        "examples/hopper with collectives": Launch(
            gemm["with_collectives"], (1, 1), gemm["THREADS"], product(100, 56, 456)
        ),
    }  # fmt: skip


@cache
def cases() -> dict[str, Launch]:
    """Every kernel that is mutated, by name."""
    return {**_ampere(), **_hopper(), **_helpers(), **_examples()}
