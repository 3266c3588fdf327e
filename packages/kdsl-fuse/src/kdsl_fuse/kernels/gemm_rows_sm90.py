"""A matrix product whose rows are reduced in its epilogue, on Hopper: a norm, a softmax, a sum.

The main loop is the GEMM's (`gemm_sm90`). Tiles are as wide as the result, up to 256 columns, so
that each row is in the registers of four threads when its last product is done.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles
from kdsl_fuse.kernels.gemm_sm90_config import GROUP
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
    load_a, load_b, sharers = kd.collective.shared_pair(
        A, B, config.tile, config.stages, config.cluster, config.caches, config.fetch
    )
    ring = kd.collective.TmaPipeline(
        config.stages, load_a.bytes + load_b.bytes, config.readers, sharers
    )
    work = kd.collective.TileScheduler(
        (kd.ceil_div(A.shape[0], tile_m), 1),
        kd.ceil_div(A.shape[1], tile_k),
        group=config.group,
        cluster=config.cluster,
    )
    mma = config.tiled_mma(A, B, kd.f32)
    group = kd.collective.WarpGroup(
        kd.warp_uniform(kd.warpgroup_idx()), kd.thread_rank() % GROUP, config.consumers,
        config.readers,
    )  # fmt: skip
    out = RowOutput(program, arrays, (tile_m, tile_n), group, (A.shape[0], columns))
    compute_tiles(config, mma, load_a, load_b, ring, work, group, out)
