"""A gated pair of matrix products in one kernel on Hopper: silu(A · Wgᵀ) * (A · Wuᵀ) and its kin.

The main loop is the GEMM's (`gemm_sm90`). Half of each tile's columns are of Wg and half of Wu, as
two TMA copies bring them side by side into a stage, so that the weights stay as they are and each
thread holds the gate and the value of the same results. With `swap` half of the tile's rows are:
A's few rows are then the columns, of which the matrix instruction takes as few as eight.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles
from kdsl_fuse.kernels.turned import turned


@kd.kernel(min_blocks_per_sm=1)
def gated_sm90(
    A: kd.Tensor["f16|bf16", "m k"],
    Wg: kd.Tensor["=A", "n k"],
    Wu: kd.Tensor["=A", "n k"],
    C: kd.Tensor["f16|bf16|f32", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    swap: kd.Static = False,
):
    """C = epilogue(A · Wgᵀ, A · Wuᵀ, extras…); extras (m, n), broadcast by strides of 0.

    `config.tile` is (M, N, K) of both products together: N / 2 columns of C or, with `swap`, M / 2
    rows of Cᵀ. Neither `splits` nor `peers`, since the parts of two sums cannot be added behind the
    epilogue.
    """
    along = 0 if swap else 1  # the mode of tiles that is half of Wg, half of Wu
    config.check_pairs(along)
    tile_m, tile_n, tile_k = config.tile
    tile = (tile_m // 2, tile_n) if swap else (tile_m, tile_n // 2)
    results, *operands = map(turned, (C, *extras)) if swap else (C, *extras)
    sides = ((Wg, Wu), A) if swap else (A, (Wg, Wu))
    ring = config.operand_ring(*sides)
    work = config.scheduler(kd.ceil_div(results.shape, tile), kd.ceil_div(A.shape[1], tile_k))
    mma = config.tiled_mma(*((Wg, A) if swap else (A, Wg)), kd.f32)
    group = config.warp_group()
    out = kd.collective.PairedOutput(
        results, tile, group, epilogue, operands, along=along, accumulator=kd.f32
    )
    compute_tiles(config, mma, ring, work, group, out)
