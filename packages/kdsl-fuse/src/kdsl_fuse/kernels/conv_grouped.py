"""Grouped 2-D convolution of NHWC images on tensor cores, with any pointwise tail.

A direct convolution: a slab of input rows lies in shared memory as it is in global memory, and a
row of a matrix that `ldmatrix` loads is eight channels of any of its pixels, so that the matrix of
all windows is nothing but addresses. Each warp has the weights of a few filters in registers, reads
each input row once for all result rows of a step, and stays with its channels from image to image,
while copies bring the slabs of the next ones.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped_halo import AsyncHalo, TmaHalo, Work, fill_ring
from kdsl_fuse.kernels.conv_grouped_results import Results, claim, fill_buffers, finish, send
from kdsl_fuse.kernels.conv_grouped_weights import Weights
from kdsl_fuse.kernels.conv_grouped_window import Window


def conv_grouped(
    x: kd.Tensor["f16|bf16", "n height width channels"],
    w: kd.Tensor["=x", "filters r s depth"],
    y: kd.Tensor["=x", "n p q filters"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """y[n, p, q, k] = epilogue(Σ x[n, p·stride + r·dilation − padding, …] · w[k, r, s, …], …).

    Products are added in f32. Extras have the result's shape, perhaps by strides of 0.
    """
    work = Work(config, x, y)
    warp = kd.warp_uniform(kd.warp_idx())
    part = warp % config.parts
    halo = (TmaHalo if config.copies == "tma" else AsyncHalo)(config, x, work)
    results = Results(config, y, work.chunk, part, epilogue, extras)
    weights = Weights(config, w, work.chunk, part)
    if config.copies == "tma":
        if kd.thread_rank() == 0:
            halo.init()
            results.init()
            kd.fence_mbarrier_init()
        kd.sync_threads()
        kd.wait_for_dependencies()
        kd.launch_dependents()
        if warp < config.warps:
            compute(halo, weights, results, warp // config.parts)
        elif warp == config.warps:
            fill_ring(halo)
        elif config.staged is not None:
            fill_buffers(results, work)
    else:
        compute(halo, weights, results, warp // config.parts)


ENTRIES = {
    blocks: kd.kernel(name=f"conv_grouped_{blocks}", min_blocks_per_sm=blocks)(conv_grouped)
    for blocks in range(1, 5)
}
"""Blocks that fit on a multiprocessor ↦ the kernel with as many registers."""


@kd.func
def compute(halo, weights, results, team):
    """Compute and send the results of all slabs, as they come."""
    config, work = halo.config, halo.work
    halo.begin()
    weights.load(team, results.barrier)
    window = Window(config, halo.raw, weights)
    fixed = results.fixed()
    turn = 0
    for number in kd.range(work.total):
        halo.wait(number)
        tile = work.at(number)
        if tile.slab >= config.window - 1:
            step_row = work.step_row(tile)
            buffer = turn % config.buffers
            claim(results)
            starts = halo.starts()
            for strip in kd.range(team, config.strips, config.teams):
                parts = results.fetch(tile, step_row, strip, buffer, fixed)
                acc = window.multiply(starts, strip)
                results.keep(acc, parts, strip, buffer)
            send(results, tile, step_row, turn)
            turn = turn + 1
        halo.release(number)
    kd.cp_async_wait(0) if config.copies == "cp.async" else finish(results)


def identity(acc: Any) -> Any:
    """The tail that changes nothing."""
    return acc
