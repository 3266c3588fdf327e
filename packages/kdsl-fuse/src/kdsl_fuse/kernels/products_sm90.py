"""Several products of one matrix in one kernel on Hopper, such as queries, keys and values of x.

The main loop is the GEMM's (`gemm_sm90`). A tile's number in the batch says of which weights it is:
small products fill the chip together, and none waits for another one's launch.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles
from kdsl_fuse.kernels.gemm_sm90_config import GROUP


@kd.kernel(min_blocks_per_sm=1)
def products_sm90(
    A: kd.Tensor["f16|bf16", "m k"],
    *matrices: kd.Tensor,
    products: kd.Static,
    epilogue: kd.Static,
    config: kd.Static,
):
    """Ci = epilogue(A · Wiᵀ, extras of i …) for each of so many `products`.

    `matrices` are the weights Wi (n, k), then the outputs Ci (m, n), 16 bits wide, that TMA can
    address, then the extras of each in turn. Weights are alike in type and major order, outputs in
    type. `config` has neither a cluster nor splits.
    """
    config.check_alone()
    tile_m, tile_n, tile_k = config.tile
    weights, outputs = matrices[:products], matrices[products : 2 * products]
    extras = matrices[2 * products :]
    each = len(extras) // products
    load_a = kd.collective.TmaOperand(
        A, (tile_m, tile_k), config.stages,
        name="a_stages", cache=config.caches[0], fetch=config.fetch,
    )  # fmt: skip
    load_b = kd.collective.TmaChoice(
        weights, (tile_n, tile_k), config.stages,
        name="b_stages", cache=config.caches[1], fetch=config.fetch,
    )  # fmt: skip
    ring = kd.collective.TmaPipeline(
        config.stages, load_a.bytes + load_b.bytes, config.readers, (None,)
    )
    work = kd.collective.TileScheduler(
        (kd.ceil_div(outputs[0].shape[0], tile_m), kd.ceil_div(outputs[0].shape[1], tile_n)),
        kd.ceil_div(A.shape[1], tile_k),
        batches=products,
        group=config.group,
    )
    mma = config.tiled_mma(A, weights[0], kd.f32)
    group = kd.collective.WarpGroup(
        kd.warp_uniform(kd.warpgroup_idx()), kd.thread_rank() % GROUP, config.consumers,
        config.readers,
    )  # fmt: skip
    ways = []
    for i, output in enumerate(outputs):
        own = extras[i * each : (i + 1) * each]
        ways.append(
            kd.collective.TileOutput(
                output, (tile_m, tile_n), group, epilogue, own,
                accumulator=kd.f32, beside=ways[0] if ways else None,
            )
        )  # fmt: skip
    out = kd.collective.OutputChoice(ways)
    compute_tiles(config, mma, load_a, load_b, ring, work, group, out)
