"""A matrix product whose rows are reduced in its epilogue, on Hopper: a norm, a softmax, a sum.

The main loop is the GEMM's (`gemm_sm90`). Tiles are as wide as the result, up to 256 columns, so
that each row is in the registers of four threads when its last product is done.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles
from kdsl_fuse.kernels.row_fragments import RowOutput


@kd.kernel(min_blocks_per_sm=1)
def gemm_rows_sm90(
    A: kd.Tensor["f16|bf16", "m k"],
    B: kd.Tensor["=A", "n k"],
    *arrays: kd.Tensor,
    program: kd.Static,
    config: kd.Static,
    columns: kd.Static,
):
    """Outputs, row outputs = program(A · Bᵀ, further inputs, extras, row inputs).

    `arrays` are these in this order, all but A · Bᵀ; `columns` is n, no more than the tile has.
    """
    config.check_rows(columns)
    tile_m, tile_n, tile_k = config.tile
    ring = config.operand_ring(A, B)
    row_tiles, k_tiles = kd.ceil_div(A.shape, (tile_m, tile_k))
    work = config.scheduler((row_tiles, 1), k_tiles)
    mma = config.tiled_mma(A, B, kd.f32)
    group = config.warp_group()
    out = RowOutput(program, arrays, (tile_m, tile_n), group, (A.shape[0], columns))
    compute_tiles(config, mma, ring, work, group, out)
