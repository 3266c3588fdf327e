"""Several products of one matrix in one kernel on Hopper, such as queries, keys and values of x.

The main loop is the GEMM's (`gemm_sm90`). A tile's number in the batch says of which weights it is:
small products fill the chip together, and none waits for another one's launch.
"""

from __future__ import annotations

from functools import partial

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles


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
    ring = config.operand_ring(A, partial(kd.collective.TmaChoice, weights))
    work = config.scheduler(
        kd.ceil_div(outputs[0].shape, (tile_m, tile_n)), kd.ceil_div(A.shape[1], tile_k), products
    )
    mma = config.tiled_mma(A, weights[0], kd.f32)
    group = config.warp_group()
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
    compute_tiles(config, mma, ring, work, group, out)
