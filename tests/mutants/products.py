"""Products of the campaign, plain and gated: every schedule on small matrices with edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_fuse.kernels.gated_sm80 import gated_sm80
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gated_sm90_plan import gated, silu
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, batch_gemm_sm80, gemm_sm80
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.products_sm90 import products_sm90
from mutants.launch import (
    BF16,
    F16,
    F32,
    Launch,
    Matrix,
    biased,
    both,
    matrix,
    nothing,
    tail_of,
    with_infinity,
)


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
    batch: int = 1,
) -> Launch:
    """A product by `gemm_sm80`, or a batch of them."""
    (m, n, k), config = sizes, GemmConfig(atom, tile, warps, stages)

    def args() -> tuple[Any, ...]:
        if batch > 1:
            return _batch(batch, sizes, dtype)
        a = with_infinity(matrix(0, (m, k), dtype, majors[0]))
        b = with_infinity(matrix(1, (n, k), dtype, majors[1]))
        return a, b, nothing((m, n), dtype), *(tail_of(m, n, dtype) if tail else ())

    grid = -(-m // tile[0]) * -(-n // tile[1])
    statics = {"epilogue": biased if tail else identity, "config": config}
    if batch > 1:
        return Launch(batch_gemm_sm80, (grid, 1, batch), config.threads, args, statics)
    return Launch(gemm_sm80, grid, config.threads, args, statics)


def _batch(batch: int, sizes: tuple[int, int, int], dtype: Any) -> tuple[Any, ...]:
    """A, B and C of a batch of products along mode 2."""
    m, n, k = sizes
    shapes = ((batch, m, k), (batch, n, k), (batch, m, n))
    a, b, c = (matrix(i, shape, dtype) for i, shape in enumerate(shapes))
    return tuple(x.transpose(1, 2, 0) for x in (a, b, np.full_like(c, np.nan)))


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
            return _batch(batch, sizes, dtype)
        a, b = matrix(0, (m, k), dtype, majors[0]), matrix(1, (n, k), dtype, majors[1])
        if config.splits > 1:
            parts = np.full((config.splits, m, n), np.nan, F32)
            return a, b, parts.transpose(1, 2, 0)
        made = [nothing((m, n), result or dtype, majors[2]) for _ in range(outputs)]
        return a, b, *made, *(tail_of(m, n, dtype) if tail else ())

    epilogue = both if outputs == 2 else biased if tail else identity
    statics = {"epilogue": epilogue, "config": config, "outputs": outputs}
    cluster = (together, 1, 1) if together > 1 else None
    return Launch(gemm_sm90, clusters * together, config.threads, args, statics, cluster, True)


def joined90(
    config: Sm90Config,
    sizes: tuple[int, int, int],
    products: int = 2,
    *,
    clusters: int = 1,
    tail: bool = False,
) -> Launch:
    """Products of one matrix by `products_sm90`."""
    m, n, k = sizes

    def args() -> tuple[Any, ...]:
        weights = [matrix(1 + i, (n, k)) for i in range(products)]
        outputs = [nothing((m, n)) for _ in range(products)]
        biases = [np.broadcast_to(matrix(9 + i, (n,), F32), (m, n)) for i in range(products)]
        return matrix(0, (m, k)), *weights, *outputs, *(biases if tail else ())

    statics = {"products": products, "epilogue": plus if tail else identity, "config": config}
    return Launch(products_sm90, clusters, config.threads, args, statics, overlap=True)


def plus(acc: Any, bias: Any) -> Any:
    """A biased product."""
    return acc + bias


ONE = Sm90Config((64, 32, 32), 2, consumers=1)
TWO = Sm90Config((128, 16, 32), 3)
PINGPONG = Sm90Config((64, 16, 32), 2, "pingpong")


def hopper() -> dict[str, Launch]:
    """Plain products on Hopper."""
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
        "products90/tail": joined90(ONE, (72, 24, 72), 2, tail=True),
        "products90/three clusters": replace(  # one of which begins with the second product
            joined90(ONE, (72, 24, 72), 2, clusters=3), operators=("predicate", "stage")
        ),
        "products90/pingpong": joined90(PINGPONG, (200, 16, 72)),
        "sm90/more clusters than tiles": replace(  # "one group" has the code of a second tile
            sm90(ONE, (72, 24, 72), clusters=3), operators=("predicate",)
        ),
    }


def ampere() -> dict[str, Launch]:
    """Plain products on sm_80."""
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
        "sm80/batch": sm80(atom, (32, 32, 32), (2, 2), (24, 40, 72), batch=2),
        "sm80/f32": sm80("UNIVERSAL_FMA_F32", (16, 16, 16), (8, 8), (20, 12, 72), dtype=F32),
    }


# -- gated pairs -----------------------------------------------------------------------------------
def pair90(
    config: Sm90Config,
    sizes: tuple[int, int, int],
    *,
    clusters: int = 1,
    result: Any = BF16,
    majors: tuple[int, int] = (1, 1),
    tail: bool = False,
    swap: bool = False,
) -> Launch:
    """A gated pair of products by `gated_sm90`."""
    together = config.blocks_together
    statics = {"epilogue": gated(silu), "config": config, "swap": swap}
    return Launch(
        gated_sm90, clusters * together, config.threads, _pair(sizes, result, majors, tail),
        statics, (together, 1, 1) if together > 1 else None, overlap=True,
    )  # fmt: skip


def pair80(
    config: GemmConfig,
    sizes: tuple[int, int, int],
    *,
    result: Any = BF16,
    majors: tuple[int, int] = (1, 1),
    tail: bool = False,
) -> Launch:
    """A gated pair of products by `gated_sm80`."""
    m, n, _ = sizes
    grid = -(-m // config.tile[0]) * -(-2 * n // config.tile[1])
    statics = {"epilogue": gated(silu), "config": config}
    args = _pair(sizes, result, majors, tail, with_infinity)
    return Launch(gated_sm80, grid, config.threads, args, statics)


def _pair(
    sizes: tuple[int, int, int],
    result: Any,
    majors: tuple[int, int],
    tail: bool,
    seen: Callable[[Matrix], Matrix] = lambda x: x,
) -> Callable[[], tuple[Any, ...]]:
    m, n, k = sizes

    def args() -> tuple[Any, ...]:
        a = seen(matrix(0, (m, k), BF16, majors[0]))
        weights = [seen(matrix(seed, (n, k), BF16, majors[1])) for seed in (1, 2)]
        biases = [np.broadcast_to(matrix(seed, (n,), F32), (m, n)) for seed in (3, 4)]
        return a, *weights, nothing((m, n), result), *(biases if tail else ())

    return args


def gated_pairs() -> dict[str, Launch]:
    """Gated pairs of products on either machine."""
    atom = "SM80_16x8x16_F32BF16BF16F32_TN"
    return {
        "gated80/edges, tail": pair80(
            GemmConfig(atom, (32, 32, 32), (2, 2), 3), (40, 24, 136), tail=True
        ),
        "gated80/odd sizes, along M": pair80(
            GemmConfig(atom, (32, 32, 32), (2, 1), 2), (40, 23, 77), result=F32, majors=(0, 1)
        ),
        "gated90/one group": pair90(Sm90Config((64, 32, 32), 2, consumers=1), (72, 24, 136)),
        "gated90/two groups, tail": pair90(Sm90Config((128, 32, 32), 3), (136, 24, 136), tail=True),
        "gated90/pingpong, f32": pair90(PINGPONG, (136, 12, 136), result=F32),
        "gated90/cluster of rows": pair90(
            Sm90Config((64, 32, 32), 2, consumers=1, cluster=(2, 1)), (136, 24, 136)
        ),
        "gated90/cluster of columns, setmaxnreg": pair90(
            Sm90Config((64, 32, 32), 2, consumers=1, cluster=(1, 2), registers=(40, 232)),
            (72, 24, 136),
        ),
        "gated90/all along M and N": pair90(
            Sm90Config((64, 128, 64), 2, consumers=1), (72, 64, 200), majors=(0, 0)
        ),
        "gated90/cluster of rows, swapped, tail": pair90(
            Sm90Config((128, 16, 32), 2, consumers=1, cluster=(2, 1)), (16, 136, 136),
            tail=True, swap=True,
        ),
        "gated90/two groups, swapped, f32": pair90(
            Sm90Config((256, 16, 32), 2), (24, 130, 136), result=F32, swap=True
        ),
    }  # fmt: skip
