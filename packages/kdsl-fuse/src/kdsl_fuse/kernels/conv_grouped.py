"""Grouped 2-D convolution of NHWC images on tensor cores, with any pointwise tail.

A direct convolution: a slab of input rows lies in shared memory as it is in global memory, and a
row of a matrix that `ldmatrix` loads is eight channels of any of its pixels, so that the matrix of
all windows is nothing but addresses. Each warp has the weights of a few filters in registers, reads
each input row once for all result rows of a step, and stays with its channels from image to image,
while copies bring the slabs of the next ones.
"""

from __future__ import annotations

import kdsl_core as kd
from kdsl_core.collective.pipeline import RingPosition
from kdsl_fuse.kernels.conv_grouped_halo import AsyncHalo, TmaHalo, fill_ring
from kdsl_fuse.kernels.conv_grouped_results import (
    Results,
    claim,
    fill_buffers,
    hand_over,
    send_buffers,
)
from kdsl_fuse.kernels.conv_grouped_weights import Weights
from kdsl_fuse.kernels.conv_grouped_window import Window
from kdsl_fuse.kernels.conv_grouped_work import Work


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
    team = warp // config.parts
    if config.copies == "tma":
        kd.collective.init_together(halo, results)
        kd.wait_for_dependencies()
        kd.launch_dependents()
        if warp < config.warps:
            compute(halo, weights, results, team)
        elif warp == config.warps:
            fill_ring(halo)
        elif warp == config.warps + 1:
            send_buffers(results, work)
        elif config.staged is not None:
            fill_buffers(results, work)
    else:
        compute(halo, weights, results, team)


ENTRIES = {
    blocks: kd.kernel(name=f"conv_grouped_{blocks}", min_blocks_per_sm=blocks)(conv_grouped)
    for blocks in range(1, 5)
}
"""Blocks that fit on a multiprocessor ↦ the kernel with as many registers."""
globals().update({entry.signature.name: entry for entry in ENTRIES.values()})  # for manifests


@kd.func
def compute(halo, weights, results, team):
    """Compute the steps of the block's items as their slabs come.

    Where TMA copies, teams take steps by turns and nobody waits for another team; else all share
    the strips of each step.
    """
    config, work = halo.config, halo.work
    halo.begin()
    weights.load(team, results.barrier)
    window = Window(config, halo.raw, weights)
    fixed, tile = results.fixed(), work.walk()
    by_turns = config.teams > 1 and config.copies == "tma"
    turn = RingPosition(config.teams, 0, 0)
    for number in kd.range(work.total):
        halo.wait(number)
        if tile.ends_step:
            if not by_turns or turn.index == team:
                claim(results)
                compute_step(window, results, tile, halo.starts(), fixed, team)
                hand_over(results, tile)
            results.at.advance()
            turn.advance()
        halo.release(number)
        tile.advance()
    if config.copies == "cp.async":
        kd.cp_async_wait(0)


@kd.func
def compute_step(window, results, tile, starts, fixed, team):
    """Compute the warp's strips of a step, `together` at a time."""
    config = window.config
    first, sharers = (0, 1) if config.copies == "tma" else (team, config.teams)
    whole = config.strips // (sharers * config.together) * config.together
    for i in kd.range(0, whole, config.together):
        some = [first + (i + j) * sharers for j in range(config.together)]
        compute_strips(window, results, tile, starts, some, fixed)
    for strip in kd.range(first + whole * sharers, config.strips, sharers):
        compute_strips(window, results, tile, starts, [strip], fixed)


def compute_strips(window, results, tile, starts, strips, fixed):
    """Compute some strips whose instructions the assembler may mix."""
    parts = [results.fetch(tile, strip, fixed) for strip in strips]
    sums = [window.multiply(starts, strip) for strip in strips]
    for acc, operands, strip in zip(sums, parts, strips, strict=True):
        results.keep(acc, operands, strip)
