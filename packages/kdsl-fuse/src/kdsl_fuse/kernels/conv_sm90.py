"""Convolutions of NHWC images with any pointwise epilogue at full speed on Hopper (sm_90a).

The result is a matrix, pixels × filters, and the kernel that of the matrix product: only what fills
the ring of stages differs. TMA walks over the images' windows (im2col), one element of the filter
after another, and reads as zero what lies outside of them.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.conv_sm90_operands import FilterPlace, Filters, Images
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles
from kdsl_fuse.kernels.gemm_sm90_config import GROUP


@kd.kernel(min_blocks_per_sm=1)
def conv_sm90(
    X: kd.Tensor["f16|bf16", "n h w c"],
    W: kd.Tensor["=X", "k d t"],
    C: kd.Tensor,
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    window: kd.Static,
    swap: kd.Static = False,
    outputs: kd.Static = 1,
):
    """C = epilogue(windows of X · Wᵀ, extras…): pixels × filters, or with `swap` transposed.

    Filters are (k, c, taps), taps in the order of rows and columns; they may have more channels
    than the images, which count as zero. C and all extras are matrices, extras broadcast by strides
    of 0. With several `outputs` the epilogue gives a tuple, and the extras begin with those after
    C. With `config.splits`, C is (pixels, filters, splits) and gets parts of the sums.
    """
    tile_m, tile_n, tile_k = config.tile
    pixels, filters = Images(X, window), Filters(W, window)
    sides = (filters, pixels) if swap else (pixels, filters)
    load_a, load_b, sharers = kd.collective.shared_pair(
        *sides, config.tile, config.stages, config.cluster, config.caches, config.fetch
    )
    ring = kd.collective.TmaPipeline(
        config.stages, load_a.bytes + load_b.bytes, config.readers, sharers
    )
    work = kd.collective.TileScheduler(
        (kd.ceil_div(C.shape[0], tile_m), kd.ceil_div(C.shape[1], tile_n)),
        window.steps(X.shape[3], tile_k),
        group=config.group,
        cluster=config.cluster,
        splits=config.splits,
        peers=config.peers,
    )
    mma = config.tiled_mma(W, W, kd.f32)
    results, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    group = kd.collective.WarpGroup(
        kd.warp_uniform(kd.warpgroup_idx()), kd.thread_rank() % GROUP, config.consumers,
        config.readers,
    )  # fmt: skip
    out = kd.collective.TileOutput(
        results, (tile_m, tile_n), group, epilogue, extras,
        accumulator=mma.atom.d, peers=config.peers,
    )  # fmt: skip

    @kd.func
    def copy_windows(load_a, load_b, ring, tile):
        """Copy the windows and filters of a tile to the ring, panel by panel. Threads: one."""
        first_a, first_b = load_a.first(tile.m), load_b.first(tile.n)
        at = FilterPlace.at(window, X.shape[3], tile.k_begin * load_a.panels)
        for _ in kd.range(tile.k_begin, tile.k_end):
            stage, full = ring.acquire()
            for panel in range(load_a.panels):
                load_a.load(stage, panel, first_a, at, full)
                load_b.load(stage, panel, first_b, at, full)
                at.advance()
            ring.advance()

    compute_tiles(config, mma, load_a, load_b, ring, work, group, out, copy_windows)
