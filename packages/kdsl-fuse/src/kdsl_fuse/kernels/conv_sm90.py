"""Convolutions of NHWC images with any pointwise epilogue at full speed on Hopper (sm_90a).

The result is a matrix, pixels × filters, and the kernel that of the matrix product: only what fills
the ring of stages differs. TMA walks over the images' windows (im2col), one element of the filter
after another, and reads as zero what lies outside of them.
"""

from __future__ import annotations

from functools import partial

import kdsl_core as kd
from kdsl_fuse.kernels.conv_sm90_operands import FilterOperand, FilterPlace, ImageOperand
from kdsl_fuse.kernels.gemm_sm90 import compute_tiles


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
    sides = partial(ImageOperand, X, window), partial(FilterOperand, W, window)
    ring = config.operand_ring(*sides[::-1] if swap else sides)
    work = config.scheduler(
        kd.ceil_div(C.shape[:2], (tile_m, tile_n)), window.steps(X.shape[3], tile_k)
    )
    mma = config.tiled_mma(W, W, kd.f32)
    results, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    group = config.warp_group()
    out = kd.collective.TileOutput(
        results, (tile_m, tile_n), group, epilogue, extras,
        accumulator=mma.atom.d, peers=config.peers,
    )  # fmt: skip

    @kd.func
    def copy_windows(ring, write, tile):
        """Copy the windows and filters of a tile to the ring, panel by panel. Threads: one."""
        first_a, first_b = ring.a.first(tile.m), ring.b.first(tile.n)
        at = FilterPlace.at(window, X.shape[3], tile.k_begin * ring.a.panels)
        for _ in kd.range(tile.k_begin, tile.k_end):
            stage, full = write.acquire()
            for panel in range(ring.a.panels):
                ring.a.load(stage, panel, first_a, at, full)
                ring.b.load(stage, panel, first_b, at, full)
                at.advance()
            write.advance()

    compute_tiles(config, mma, ring, work, group, out, copy_windows)
