"""A gated pair of matrix products in one kernel for tensor cores of sm_80 and everything newer.

The main loop is the GEMM's (`gemm_sm80`); each stage holds a tile of either weight, one below the
other.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import Target
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, multiply, plan_gemm


@kd.kernel
def gated_sm80(
    A: kd.Tensor["f16|bf16|f32", "m k"],
    Wg: kd.Tensor["=A", "n k"],
    Wu: kd.Tensor["=A", "n k"],
    C: kd.Tensor["f16|bf16|f32", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """C = epilogue(A · Wgᵀ, A · Wuᵀ, extras…): accumulated in f32, rounded once to C's type.

    `config.tile` is (M, N, K) of both products together: N / 2 columns of C. Extras are (m, n),
    broadcast by strides of 0.
    """
    mma, (tile_m, both, tile_k), stages = config.tiled_mma, config.tile, config.stages
    columns = both // 2
    tiles = kd.ceil_div(C.shape, (tile_m, columns))
    m, n = kd.collective.grouped_raster(kd.block_idx()[0], *tiles, config.group)
    thread = kd.thread_rank()
    load_a = kd.collective.TileLoader(A, (tile_m, tile_k), m, stages, mma.size, thread)
    load_b = kd.collective.PairLoader((Wg, Wu), (both, tile_k), n, stages, mma.size, thread)
    acc = multiply(config, load_a, load_b, A.shape[1])
    out = kd.collective.EpilogueStage(
        mma, (tile_m, both), mma.size, thread, scratch=load_a.shared, paired=True
    )
    out.store(acc, C, (m * tile_m, n * columns), epilogue, extras)


def plan_gated(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    *,
    target: str | Target = "sm_80",
    f32_precision: str = "ieee",
) -> tuple[GemmConfig, tuple[int, int, int], tuple[int, int, int]]:
    """A configuration, grid and block for C (m, n): those of one product of 2 n columns."""
    config, _, block = plan_gemm(m, 2 * n, k, dtype, target=target, f32_precision=f32_precision)
    tile_m, both, _ = config.tile
    return config, (-(-m // tile_m) * -(-2 * n // both), 1, 1), block
