"""Layer normalisation over the channels of a depthwise convolution's results, in its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import LANE_CHANNELS, STRIP


@dataclass(frozen=True)
class Normalised:
    """The epilogue behind((v − mean) · rstd, other extras…) with v = before(acc, first extras…).

    Mean and variance are those of a pixel's v over all channels; `first` extras go to `before`.
    """

    before: Callable[..., Any]
    first: int
    behind: Callable[..., Any]
    eps: float


class Moments:
    """Means and variances of the pixels of two strips, over all channels of a cluster's blocks.

    Each warp combines its eight channels, each block its warps, and all blocks of the cluster tell
    each other what they found (Chan's formula for means and squared deviations of equal parts).

    Threads: the whole block, and all blocks of the cluster.
    Memory: buffers that blocks write to take turns, so that none is written while it is read.
    """

    def __init__(self, config: Any, channels: Any, eps: float) -> None:
        self.config, self.eps = config, eps
        self.ranks = kd.cluster_dim()[0]
        self.count = kd.as_scalar(channels).to(kd.f32)
        self.pixels = 2 * config.rows * STRIP
        own, all_ = (2, self.pixels, config.groups), (2, self.pixels, self.ranks, 2)
        self.own = kd.smem(kd.f32, own, name="moments")
        self.found = kd.smem(kd.f32, all_, name="moments_of_blocks")

    @kd.func
    def normalise(self, worker, number):
        """Replace the sums of unit `number` by (v − mean) · rstd."""
        c, lane = self.config, worker.lane
        spots = [(half, o) for o in range(c.rows) for half in range(2)]
        for half, o in spots:
            pixel = (half * c.rows + o) * STRIP + lane // 4
            moments = of_warp(worker.sums[2 * half, o], worker.sums[2 * half + 1, o])
            self.own.store_vector((0, pixel, worker.group), moments, lane % 4 == 0)
        worker.barrier.sync()
        self._tell(number % 2)
        if self.ranks > 1:
            kd.cluster_sync()
        else:
            worker.barrier.sync()
        for half, o in spots:
            pixel = (half * c.rows + o) * STRIP + lane // 4
            mean, rstd = self._of_pixel(pixel, number % 2)
            for e in range(2):
                centred = worker.sums[2 * half + e, o] - mean
                worker.sums[2 * half + e, o] = centred * rstd

    @kd.func
    def _tell(self, buffer):
        """One thread for each pixel combines the block's warps, and tells all blocks."""
        pixel = kd.thread_rank()
        if pixel < self.pixels:
            parts = [self.own.load_vector((0, pixel, g), 2) for g in range(self.config.groups)]
            moments = combined(parts, LANE_CHANNELS)
            if self.ranks == 1:
                self.found.store_vector((0, pixel, 0, buffer), moments)
            else:
                for rank in range(self.ranks):
                    there = kd.peer(self.found, rank)
                    there.store_vector((0, pixel, kd.cluster_rank(), buffer), moments)

    def _of_pixel(self, pixel: Any, buffer: Any) -> tuple[Any, Any]:
        """Mean and reciprocal deviation of a pixel."""
        parts = [self.found.load_vector((0, pixel, r, buffer), 2) for r in range(self.ranks)]
        mean, squares = combined(parts, self.config.tile_channels)
        return mean, kd.rsqrt(squares / self.count + self.eps)


def of_warp(first: Any, second: Any) -> list[Any]:
    """Mean and squared deviations of a pixel's eight channels, two in each of four lanes."""
    mean = over_quad(first + second) * (1 / LANE_CHANNELS)
    return [mean, over_quad((first - mean) ** 2 + (second - mean) ** 2)]


def over_quad(value: Any) -> Any:
    """The sum of four neighbouring lanes."""
    value = value + kd.shfl_xor(value, 1)
    return value + kd.shfl_xor(value, 2)


def combined(parts: list[Any], each: int) -> list[Any]:
    """Mean and squared deviations of parts of `each` numbers, from theirs."""
    if len(parts) == 1:
        return list(parts[0])
    mean = total([part[0] for part in parts]) * (1 / len(parts))
    between = total([(part[0] - mean) ** 2 for part in parts])
    return [mean, total([part[1] for part in parts]) + between * float(each)]


def total(values: list[Any]) -> Any:
    """The sum of some numbers."""
    found = values[0]
    for value in values[1:]:
        found = found + value
    return found
