"""Depthwise convolution of NHWC images for every target, type, size and stride.

A thread computes a few neighbouring pixels of a few neighbouring filters. It reads a row of the
input at a time, zeros outside of the image, and adds it to all its results that the row reaches;
weights lie in shared memory as f32.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_window import reached
from kdsl_fuse.kernels.vectors import begin, neighbours, put


@kd.kernel
def conv_depthwise(
    X: kd.Tensor["f16|bf16|f32", "n h w c"],
    W: kd.Tensor["=X", "k r s"],
    Y: kd.Tensor["=X", "n p q k"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """Y = epilogue(depthwise convolution of X by W, extras…), accumulated in f32.

    Filter k is of channel k div `config.multiplier`. The grid is (parts of the filters, blocks that
    share the pixels of each part). Extras are like Y, perhaps broadcast by
    strides of 0.
    """
    begin(config)
    c = config
    thread, first = kd.thread_rank(), kd.block_idx()[0] * c.channels
    weights = kd.smem(kd.f32, (c.channels, c.taps), name="weights")
    read_weights(c, W, first, weights)
    kd.sync_threads()
    own = (thread % c.lanes) * c.width
    window = Window(c, X, Y, weights, first + own, own)
    rows, columns = kd.ceil_div(Y.shape[1:3], c.outputs)
    start = kd.block_idx()[1] * c.patches + thread // c.lanes
    step = kd.grid_dim()[1] * c.patches
    if window.channel < Y.shape[3]:
        for patch in kd.range(start, Y.shape[0] * rows * columns, step):
            column, rest = patch % columns, patch // columns
            at = rest // rows, rest % rows * c.outputs[0], column * c.outputs[1]
            window.convolve(at)
            window.write(at, epilogue, extras)


@kd.func
def read_weights(config, W, first, weights):
    """The weights of the block's filters to shared memory."""
    c = config
    for i in kd.range(kd.thread_rank(), c.channels * c.taps, c.threads):
        own, tap = i // c.taps, i % c.taps
        there = kd.as_scalar(first + own < W.shape[0])
        place = first + own, tap // c.kernel[1], tap % c.kernel[1]
        weights[own, tap] = W.load(place, there).to(kd.f32)


class Window:
    """The results that a thread computes at a time."""

    def __init__(self, config: Any, x: Any, y: Any, weights: Any, channel: Any, own: Any) -> None:
        self.config, self.x, self.y, self.weights = config, x, y, weights
        self.channel, self.own = channel, own
        self.sums = kd.rmem(kd.f32, kd.Layout((config.width, *config.outputs)), name="sums")

    def convolve(self, at: Any) -> None:
        """The sums of a patch whose first result is `at` (image, row, column)."""
        c = self.config
        self.sums.fill(0.0)
        for y, uses in reached(c.outputs[0], c.kernel[0], c.stride[0], c.dilation[0]).items():
            row = at[1] * c.stride[0] + (y - c.padding[0])
            above = kd.as_scalar(row >= 0) & (row < self.x.shape[1])
            columns = reached(c.outputs[1], c.kernel[1], c.stride[1], c.dilation[1])
            pixels = {x: self._pixel((at[0], row, at[2]), x, above) for x in columns}
            for o, r in uses:
                for s in range(c.kernel[1]):
                    place = self.own, r * c.kernel[1] + s
                    factors = self.weights.load_vector(place, c.width)
                    for q in range(c.outputs[1]):
                        pixel = pixels[q * c.stride[1] + s * c.dilation[1]]
                        for v in range(c.width):
                            total = self.sums[v, o, q]
                            self.sums[v, o, q] = kd.fma(pixel[v], factors[v], total)

    def _pixel(self, at: Any, x: int, above: Any) -> list[Any]:
        """The thread's channels of a pixel as f32, zeros outside of the image."""
        c = self.config
        column = at[2] * c.stride[1] + (x - c.padding[1])
        inside = above & (column >= 0) & (column < self.x.shape[2])
        place = at[0], at[1], column
        if c.multiplier == 1:
            found = neighbours(self.x, (*place, self.channel), 3, c.width, inside)
        else:
            channels = [(self.channel + v) // c.multiplier for v in range(c.width)]
            found = [self.x.load((*place, channel), inside) for channel in channels]
        return [value.to(kd.f32) for value in found]

    def write(self, at: Any, epilogue: Any, extras: Any) -> None:
        """The epilogue's results of a patch to memory."""
        c, y = self.config, self.y
        for o in range(c.outputs[0]):
            for q in range(c.outputs[1]):
                row, column = at[1] + o, at[2] + q
                inside = kd.as_scalar(row < y.shape[1]) & (column < y.shape[2])
                place = at[0], row, column, self.channel
                parts = [neighbours(extra, place, 3, c.width, inside) for extra in extras]
                found = [
                    kd.as_scalar(epilogue(self.sums[v, o, q], *(part[v] for part in parts)))
                    for v in range(c.width)
                ]
                put(y, place, 3, found, inside)
