"""Convolutions of any shape, stride, dilation and grouping, one product after the other.

Each thread computes some pixels of some filters; sums are f32, in exact multiply-adds. It is the
kernel for what no faster one takes, and for f32 that is to keep every bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_fuse import arrays
from kdsl_fuse.kernels.vectors import begin, common_width, neighbours, neighbours_at_a_time, put

_WARP = 32
_BUSY_THREADS = 1 << 17  # that keep a chip busy: below it, a thread computes fewer pixels
_MOST = 4  # pixels, and filters, of a thread
_VECTOR_BYTES = 16
_FOUR = (1, 2, 4)


@dataclass(frozen=True)
class DirectConfig:
    """Which windows there are, and how blocks share pixels and filters.

    A window's element (r, s) of pixel (p, q) lies at row p·stride + r·dilation − padding, or, where
    the convolution is `transposed`, at the row that is so often contained in p − r·dilation +
    padding, if that is a whole number. Threads take `pixels` × `filters` results of one group,
    `across` of them neighbouring filters, and read `vector` channels at a time. What a tail reads
    and what is stored goes in vectors of `width`.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1
    transposed: bool = False
    pixels: int = _MOST
    filters: int = _MOST
    across: int = 8
    vector: int = 1
    width: int = 1
    threads: int = 128
    overlap: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """Pixels and filters of a block."""
        return self.threads // self.across * self.pixels, self.across * self.filters


@kd.kernel
def conv_direct(
    x: kd.Tensor["f16|bf16|f32", "n h w c"],
    filters: kd.Tensor["f16|bf16|f32", "k r s d"],
    y: kd.Tensor["f16|bf16|f32", "n p q k"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """y = epilogue(x convolved with the filters, extras…), rounded once to y's type."""
    begin(config)
    c = config
    thread = kd.thread_rank()
    first = kd.block_idx()[0] * c.tile[0] + thread // c.across * c.pixels
    filter = kd.block_idx()[1] * c.tile[1] + thread % c.across * c.filters
    exists = kd.as_scalar(filter < y.shape[3])
    pixels = [pixel_of(y, first + i, exists) for i in range(c.pixels)]
    sums = accumulate(x, filters, pixels, filter, exists, c)
    for i, (place, inside) in enumerate(pixels):
        each = [sums[i, f] for f in range(c.filters)]
        write(y, (*place, filter), each, inside, extras, epilogue, c)


def pixel_of(y, number, exists=True):
    """(image, row, column) of a pixel, counted along all images, and whether it exists as well."""
    n, p, q = y.shape[:3]
    place = number // (p * q), number // q % p, number % q
    return place, kd.as_scalar(number < n * p * q) & exists


@kd.func
def accumulate(x, filters, pixels, first, exists, config):
    """The sums of products of a thread's pixels and filters, as registers (pixels, filters)."""
    c = config
    channels, rows, columns = filters.shape[3], *c.kernel
    sums = kd.rmem(kd.f32, (c.pixels, c.filters)).fill(0.0)
    start = 0 if c.groups == 1 else first // (filters.shape[0] // c.groups) * channels
    for tap in kd.range(rows * columns):
        r, s = (tap, 0) if columns == 1 else (tap // columns, tap % columns)
        seen = [seen_at(x, place, inside, (r, s), c) for place, inside in pixels]
        for channel in kd.range(0, channels, c.vector):
            read = [x.load_vector((*at, start + channel), c.vector, inside) for at, inside in seen]
            held = [
                filters.load_vector((first + f, r, s, channel), c.vector, exists)
                for f in range(c.filters)
            ]
            for i, values in enumerate(read):
                for f, weights in enumerate(held):
                    for value, weight in zip(values, weights, strict=True):
                        sums[i, f] = kd.fma(value.to(kd.f32), weight.to(kd.f32), sums[i, f])
    return sums


def seen_at(x, place, inside, tap, config):
    """(image, row, column) that a pixel's window has at `tap`, and whether the image has it."""
    c = config
    image, *at = place
    found = []
    for axis, (pixel, element) in enumerate(zip(at, tap, strict=True)):
        step, offset = c.stride[axis], element * c.dilation[axis] - c.padding[axis]
        if not c.transposed:
            where = pixel * step + offset
        else:
            whole = pixel - offset
            where = whole // step
            inside = inside & (whole >= 0) & (where * step == whole)
        inside = inside & (where >= 0) & (where < x.shape[1 + axis])
        found.append(where)
    return (image, *found), inside


def write(y, place, sums, inside, extras, epilogue, config):
    """Store neighbouring filters of a pixel, with the tail applied to each."""
    *pixel, first = place
    for f in range(0, config.filters, config.width):
        at = (*pixel, first + f)
        read = [neighbours(extra, at, 3, config.width, inside) for extra in extras]
        values = [
            kd.as_scalar(epilogue(sums[f + i], *(vector[i] for vector in read)))
            for i in range(config.width)
        ]
        put(y, at, 3, values, inside)


@dataclass(frozen=True)
class DirectPlan:
    """A convolution of arrays of certain shapes, ready to launch."""

    config: DirectConfig
    grid: tuple[int, int]

    def run(self, x: Any, filters: Any, y: Any, *extras: Any, epilogue: Any) -> None:
        """y = epilogue(the convolution, extras…), on the arrays' current stream."""
        launch = conv_direct.configure(
            grid=self.grid, block=self.config.threads, overlap=self.config.overlap
        )
        launch(x, filters, y, *extras, epilogue=epilogue, config=self.config)

    def __str__(self) -> str:
        c = self.config
        each = f"{c.pixels} × {c.filters} results a thread, {c.vector} channels at a time"
        return f"{c.tile[0]} pixels × {c.tile[1]} filters a block, {each}"


def choose(
    x: Any, filters: Any, y: Any, *extras: Any, stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1), groups: int = 1,
    transposed: bool = False, overlap: bool = False,
) -> DirectPlan:  # fmt: skip
    """The plan for arrays, or `kd.spec`s: images (n, h, w, c), filters (k, r, s, c / groups).

    `padding` is above and to the left; what is below and to the right follows from y.
    Raises: ArgumentError K973 for filters that do not fit the images or y.
    """
    images, held, result = (arrays.spec_of(a) for a in (x, filters, y))
    assert images is not None and held is not None and result is not None, "operands are arrays"
    k, rows, columns, channels = held.shape
    if (channels * groups, k % groups, result.shape[3]) != (images.shape[3], 0, k):
        raise ArgumentError(
            f"{groups} groups of filters {list(held.shape)} take images with "
            f"{channels * groups} channels to {k}, got {images} and {result}",
            code="K973",
            fix="filters are (k, r, s, channels / groups)",
        )
    config = DirectConfig((rows, columns), stride, padding, dilation, groups, transposed)
    config = replace(config, overlap=overlap)
    each = max(n for n in _FOUR if k // groups % n == 0)
    across = min(_WARP, 1 << math.ceil(math.log2(-(-k // each))))
    pixels = math.prod(result.shape[:3])
    per_thread = max((n for n in _FOUR if pixels * k >= n * each * _BUSY_THREADS), default=1)
    config = replace(
        config, pixels=per_thread, filters=each, across=across,
        vector=_channels_at_a_time(x, filters, channels),
        width=math.gcd(each, neighbours_at_a_time((y, *extras), 3)),
    )  # fmt: skip
    tile = config.tile
    return DirectPlan(config, (-(-pixels // tile[0]), -(-k // tile[1])))


def _channels_at_a_time(x: Any, filters: Any, channels: int) -> int:
    return math.gcd(common_width([x], 3), common_width([filters], 3), channels, 8)
