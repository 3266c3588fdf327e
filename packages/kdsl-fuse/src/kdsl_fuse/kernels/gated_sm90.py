"""A gated pair of matrix products in one kernel on Hopper: silu(A · Wgᵀ) * (A · Wuᵀ) and its kin.

The main loop is the GEMM's (`gemm_sm90`). Half of each tile's columns are of Wg and half of Wu, as
two TMA copies bring them side by side into a stage, so that the weights stay as they are and each
thread holds the gate and the value of the same results.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles


@kd.kernel(min_blocks_per_sm=1)
def gated_sm90(
    A: kd.Tensor["f16|bf16", "m k"],
    Wg: kd.Tensor["=A", "n k"],
    Wu: kd.Tensor["=A", "n k"],
    C: kd.Tensor["f16|bf16|f32", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """C = epilogue(A · Wgᵀ, A · Wuᵀ, extras…); extras (m, n), broadcast by strides of 0.

    `config.tile` is (M, N, K) of both products together: N / 2 columns of C. Neither `splits` nor
    `peers`, since the parts of two sums cannot be added behind the epilogue.
    """
    config.check_pairs()
    tile_m, both, tile_k = config.tile
    columns = both // 2
    ring = config.operand_ring(A, (Wg, Wu))
    work = config.scheduler(
        kd.ceil_div(C.shape, (tile_m, columns)), kd.ceil_div(A.shape[1], tile_k)
    )
    mma = config.tiled_mma(A, Wg, kd.f32)
    group = config.warp_group()
    out = kd.collective.PairedOutput(
        C, (tile_m, columns), group, epilogue, extras, accumulator=kd.f32
    )
    compute_tiles(config, mma, ring, work, group, out)
