"""Images and filters of few or odd channels, laid out anew so that TMA can walk over them.

TMA takes strides of whole 16 bytes. Channels are padded for that; and where pixels are small, a row
of a window, which is one run of memory, becomes one element of the filter with many channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import kdsl_core as kd
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_views import filter_view
from kdsl_fuse.strided import Strided

THREADS = 128
VECTOR = 8  # elements of 16 bits in what TMA wants strides to be multiples of
LINES = 4  # of a block: enough loads are under way then
SMALL = 4  # channels of a pixel up to which rows of windows are joined


@kd.kernel
def pack_pixels(*tensors: kd.Tensor, places: kd.Static):
    """Copy each source to its target: `tensors` are source, target, source, target, …

    All are (a, b, pixels, channels) of 16-bit elements, targets contiguous. `places[i]` are the
    number of a source's first pixel in its target's lines, the channels of both, and whether a
    source lies in planes, neighbours being pixels; other pixels, and channels that a source has
    not, become zero. Block (x, y) copies 128 vectors of 8 elements in each of four lines (a, b).
    """
    kd.wait_for_dependencies()
    across, block = kd.block_idx()[0], kd.block_idx()[1]
    vector = across * THREADS + kd.thread_idx()[0]
    line = block * LINES
    for source, target, place in zip(tensors[::2], tensors[1::2], places, strict=True):
        pack_lines(source, target, place, line, vector)
        line = line - kd.ceil_div(target.shape[0] * target.shape[1], LINES) * LINES


@kd.func
def pack_lines(source, target, place, line, vector):
    """One thread's vector of four lines, if the target has them."""
    lines, outer, pitch = target.shape[0] * target.shape[1], target.shape[1], place[2]
    if (line >= 0) & (line < lines) & (vector * VECTOR < target.shape[2] * pitch):
        at = [kd.minimum(line + i, lines - 1) for i in range(LINES)]
        start = start_of(vector, place, target.shape[2])
        found = [vector_of(source, place, (x // outer, x % outer), start) for x in at]
        for x, values in zip(at, found, strict=True):
            target.store_vector((x // outer, x % outer, *start), values)


def start_of(vector, place, pixels):
    """Pixel and channel of a vector's first element; threads go along what lies side by side."""
    _, _, pitch, planes = place
    if pitch <= VECTOR:
        return vector * (VECTOR // pitch), 0
    if planes:
        return vector % pixels, vector // pixels * VECTOR
    return vector // (pitch // VECTOR), vector % (pitch // VECTOR) * VECTOR


def vector_of(source, place, line, start):
    """Eight neighbours of a line of the target."""
    before, channels, pitch, _ = place
    pixel, first = start
    values = []
    for i in range(VECTOR):
        at, channel = pixel - before + i // pitch, first + i % pitch
        inside = (at >= 0) & (at < source.shape[2])
        if pitch > channels:
            inside = inside & (channel < channels)
        values.append(source.load((*line, at, channel), pred=inside))
    return values


@dataclass(frozen=True)
class Packing:
    """How a problem is laid out anew: pixels of `pitch` channels, and `joined` rows of windows."""

    problem: ConvProblem
    pitch: int
    joined: bool

    @classmethod
    def of(cls, problem: ConvProblem) -> Packing:
        """The packing of a problem whose channels TMA cannot take."""
        step, small = problem.stride[1], problem.channels <= SMALL
        pitch = next((n for n in (1, 2, 4) if n >= problem.channels), 0) if small else 0
        while pitch and step * pitch % VECTOR:
            pitch *= 2
        joined = 0 < pitch <= VECTOR and problem.dilation[1] == 1
        if not joined:
            pitch = -(-problem.channels // VECTOR) * VECTOR
        return cls(problem, pitch, joined)

    @classmethod
    def unchanged(cls, problem: ConvProblem) -> Packing:
        """A copy for images and filters that lie otherwise than TMA wants."""
        return cls(problem, -(-problem.channels // VECTOR) * VECTOR, False)

    @property
    def packed(self) -> ConvProblem:
        """The problem that is left: with joined rows, of one column of filters."""
        p = self.problem
        if not self.joined:
            return replace(p, channels=self.pitch)
        return replace(
            p, width=p.output[1], channels=p.kernel[1] * self.pitch, kernel=(p.kernel[0], 1),
            stride=(p.stride[0], 1), padding=(p.padding[0], 0), dilation=(p.dilation[0], 1),
        )  # fmt: skip

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the images' and the filters' copies; joined rows are whole multiples of 16 bytes."""
        p = self.problem
        (rows, columns), wide, tall = p.kernel, p.width, p.height
        if self.joined:
            wide = max(p.width + 2 * p.padding[1], (p.output[1] - 1) * p.stride[1] + columns)
            wide, columns = (self._whole(n) for n in (wide, columns))
        return (p.batch, tall, wide, self.pitch), (p.filters, rows, columns, self.pitch)

    def _whole(self, pixels: int) -> int:
        """As many pixels, or some more, that fill whole vectors."""
        per_vector = max(VECTOR // self.pitch, 1)
        return -(-pixels // per_vector) * per_vector

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of `pack_pixels`."""
        shapes = self.shapes
        vectors = max(-(-n * c // VECTOR) for _, _, n, c in shapes)
        return -(-vectors // THREADS), sum(-(-a * b // LINES) for a, b, _, _ in shapes)

    def places(self, x: Any, w: Any) -> tuple[tuple[int, int, int, bool], ...]:
        """What `pack_pixels` has to know of images and filters."""
        planes = [facts_of(y, "operand").strides[3] != 1 for y in (x, w)]
        starts = (self.problem.padding[1] if self.joined else 0, 0)
        channels = self.problem.channels, self.pitch
        return tuple((start, *channels, flag) for start, flag in zip(starts, planes, strict=True))

    def views(self, images: Any, filters: Any) -> tuple[Any, Any]:
        """Images (n, h, w, c) and filters (k, c, taps) of the packed problem, of its copies."""
        shape = self.shapes[1]
        if not self.joined:
            return images, filter_view(filters)
        (_, _, wide, pitch), p = self.shapes[0], self.packed
        strides = (p.height * wide * pitch, wide * pitch, self.problem.stride[1] * pitch, 1)
        seen = Strided((p.batch, p.height, p.width, p.channels), strides)
        line = shape[2] * pitch
        held = Strided((shape[0], line, shape[1]), (shape[1] * line, 1, line))
        return arrays.view(images, seen), arrays.view(filters, held)

    def copies(self, x: Any, w: Any) -> tuple[Any, Any]:
        """Launch: copies of images and filters, on the arrays' current stream."""
        targets = [
            arrays.empty(shape, facts_of(like, "operand").dtype, like)
            for shape, like in zip(self.shapes, (x, w), strict=True)
        ]
        launch = pack_pixels.configure(grid=self.grid, block=THREADS, overlap=True)
        launch(x, targets[0], w, targets[1], places=self.places(x, w))
        return self.views(*targets)
