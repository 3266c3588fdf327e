"""Pooling and upsampling: each result from one window of an image, with any pointwise tail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse import arrays
from kdsl_fuse.kernels.conv_direct import pixel_of
from kdsl_fuse.kernels.vectors import begin, neighbours, neighbours_at_a_time, put

THREADS = 128


@dataclass(frozen=True)
class WindowConfig:
    """Which windows there are, and what is made of one.

    The window of pixel (p, q) begins at row p·stride // scale − padding. `take` is "max", "mean"
    (what lies outside of the image counts as zero), "mean of inside", or "only" for windows of one
    pixel. Threads take `width` neighbouring channels.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    scale: tuple[int, int] = (1, 1)
    take: str = "max"
    width: int = 1
    overlap: bool = False
    threads: int = THREADS


@kd.kernel
def windows(
    x: kd.Tensor["f16|bf16|f32", "n h w c"],
    y: kd.Tensor["f16|bf16|f32", "n p q c"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """y = epilogue(what is taken of each window of x, extras…), computed in f32."""
    begin(config)
    c = config
    vectors = y.shape[3] // c.width
    number = kd.block_idx()[0] * c.threads + kd.thread_rank()
    (image, *pixel), inside = pixel_of(y, number // vectors)
    channel = number % vectors * c.width
    taken = taken_of(x, image, pixel, channel, inside, c)
    place = (image, *pixel, channel)
    read = [neighbours(extra, place, 3, c.width, inside) for extra in extras]
    values = [
        kd.as_scalar(epilogue(value, *(vector[i] for vector in read)))
        for i, value in enumerate(taken)
    ]
    put(y, place, 3, values, inside)


@kd.func
def taken_of(x, image, pixel, channel, exists, config):
    """What is taken of a window, for `width` neighbouring channels."""
    c = config
    begins = [
        p * step // scale - before
        for p, step, scale, before in zip(pixel, c.stride, c.scale, c.padding, strict=True)
    ]
    held = kd.rmem(kd.f32, c.width).fill(-math.inf if c.take == "max" else 0.0)
    count = kd.as_scalar(0.0, kd.f32)
    for tap in kd.range(c.kernel[0] * c.kernel[1]):
        element = tap // c.kernel[1], tap % c.kernel[1]
        at = [begins[axis] + element[axis] * c.dilation[axis] for axis in range(2)]
        inside = exists
        for axis, where in enumerate(at):
            inside = inside & (where >= 0) & (where < x.shape[1 + axis])
        read = neighbours(x, (image, *at, channel), 3, c.width, inside)
        for i, value in enumerate(read):
            wide = value.to(kd.f32)
            if c.take == "max":
                held[i] = kd.where(inside, kd.maximum(held[i], wide, nan=True), held[i])
            else:
                held[i] = held[i] + wide
        count = count + kd.where(inside, 1.0, 0.0)
    if c.take == "mean":
        return [held[i] / (c.kernel[0] * c.kernel[1]) for i in range(c.width)]
    if c.take == "mean of inside":
        return [held[i] / count for i in range(c.width)]
    return [held[i] for i in range(c.width)]


@dataclass(frozen=True)
class WindowPlan:
    """Windows of arrays of certain shapes, ready to launch."""

    config: WindowConfig
    grid: int

    def run(self, x: Any, y: Any, *extras: Any, epilogue: Any) -> None:
        """y = epilogue(what is taken of each window, extras…), on the arrays' current stream."""
        launch = windows.configure(
            grid=self.grid, block=self.config.threads, overlap=self.config.overlap
        )
        launch(x, y, *extras, epilogue=epilogue, config=self.config)


def choose(x: Any, y: Any, *extras: Any, **config: Any) -> WindowPlan:
    """The plan for arrays, or `kd.spec`s, and fields of `WindowConfig`."""
    result = arrays.spec_of(y)
    assert result is not None, "operands are arrays"
    width = neighbours_at_a_time((x, y, *extras), 3)
    total = math.prod(result.shape) // width
    return WindowPlan(WindowConfig(width=width, **config), -(-total // THREADS))
