"""Convolutions of NHWC images with any pointwise epilogue for sm_80 and everything newer.

Implicit GEMM: the loop is that of the matrix product, whose tiles of A are windows of the images.
`cp.async` copies each vector of channels from where it lies, and zeros for what lies outside. Any
stride, dilation, padding and number of channels; f32 exactly, or through tf32.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_sm90_operands import Window
from kdsl_fuse.kernels.gemm_sm80 import multiply

OUTSIDE = -(1 << 28)  # a row of no image, whatever is added to it


@kd.kernel
def conv_sm80(
    X: kd.Tensor["f16|bf16|f32", "n h w c"],
    W: kd.Tensor["=X", "k d"],
    C: kd.Tensor["f16|bf16|f32", "m k"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    window: kd.Static,
):
    """C = epilogue(windows of X · Wᵀ, extras…): accumulated in f32, rounded once to C's type.

    Filters are matrices, (k, rows · columns · channels); C and the extras are pixels × filters.
    """
    mma, (tile_m, tile_n, tile_k), stages = config.tiled_mma, config.tile, config.stages
    tiles = kd.ceil_div(C.shape, (tile_m, tile_n))
    m, n = kd.collective.grouped_raster(kd.block_idx()[0], *tiles, config.group)
    thread = kd.thread_rank()

    load_a = WindowLoader(X, window, (tile_m, tile_k), m, stages, mma.size, thread)
    load_b = kd.collective.TileLoader(W, (tile_n, tile_k), n, stages, mma.size, thread)
    acc = multiply(config, load_a, load_b, W.shape[1])
    out = kd.collective.EpilogueStage(
        mma, (tile_m, tile_n), mma.size, thread, scratch=load_a.shared
    )
    out.store(acc, C, (m * tile_m, n * tile_n), epilogue, extras)


class WindowLoader:
    """Copies tiles of windows (pixels × depth) into a ring of shared-memory stages.

    The depth runs over rows, columns and channels of the filter. Interface, threads and memory as
    `kd.collective.TileLoader`.
    """

    contiguous = 1

    def __init__(
        self,
        images: kd.Tensor,
        window: Window,
        tile: tuple[int, int],
        row_tile: Any,
        stages: int,
        threads: int,
        thread: Any,
    ) -> None:
        self.images, self.window = images, window
        step = images.stride[3]
        neighbours = isinstance(step, int) and step == 1
        widest = kd.collective.access_elements(images, 3) if neighbours else 1
        plan = kd.collective.line_copy(images.dtype, tile, 1, widest, threads)
        self.atom = plan.atom
        self.vector = plan.atom.bytes // images.dtype.bytes
        self.vectors = tile[1] // self.vector  # of a line
        layout = kd.collective.shared_tile(images.dtype, *tile, 1, stages)
        self.shared = kd.smem(images.dtype, layout, name="stages")
        part = plan.get_slice(thread)
        self.destination = part.partition_D(self.shared)
        coordinates = part.partition_S(kd.identity_tensor(tile))
        self.places = []  # of each vector: its pixel's window, and its number in the line
        for index in range(0, kd.size(coordinates.layout), self.vector):
            row, depth = coordinates[index]
            self.places.append((self._start(row_tile * tile[0] + row), depth // self.vector))

    def _start(self, pixel: Any) -> tuple[Any, Any, Any]:
        """Where a pixel's window starts: element, row and column of its image."""
        x = self.images
        (p, q), (down, across) = self.window.output((x.shape[1], x.shape[2])), self.window.stride
        image, rest = pixel // (p * q), pixel % (p * q)
        top, left = self.window.lower
        row, column = rest // q * down + top, rest % q * across + left
        row = kd.where(image < x.shape[0], row, OUTSIDE)
        return image, row, column

    def load(self, k_tile: Any, stage: Any) -> None:
        """Start copying tile `k_tile` into stage `stage`; tiles beyond the last are zeros."""
        destination = self.destination[..., stage]
        for number, (start, along) in enumerate(self.places):
            inside, source = self._source(start, self._tap(k_tile * self.vectors + along))
            first = number * self.vector
            target = destination.with_layout(kd.Layout(self.vector), destination.layout(first))
            if self.atom.kind == "cp.async":
                kd.copy(source, target, atom=self.atom, pred=inside)
            else:
                kd.copy(source, target, pred=inside)

    def _tap(self, vector: Any) -> tuple[Any, Any, Any, Any]:
        """Row and column in the image, vector of channels, and whether the filter has it."""
        per_tap = self.images.shape[3] // self.vector
        tap, block = vector // per_tap, vector % per_tap
        row, column = tap // self.window.kernel[1], tap % self.window.kernel[1]
        down, across = self.window.dilation
        return row * down, column * across, block, tap < self.window.taps

    def _source(self, start: Any, tap: Any) -> tuple[Any, kd.Tensor]:
        """Whether a vector lies in an image, and where."""
        x, (image, top, left) = self.images, start
        down, across, block, exists = tap
        row, column = top + down, left + across
        inside = exists & (row >= 0) & (row < x.shape[1]) & (column >= 0) & (column < x.shape[2])
        image, row, column, block = (
            kd.where(inside, number, 0) for number in (image, row, column, block)
        )
        at = x.layout((image, row, column, block * self.vector))
        return inside, x.with_layout(kd.Layout(self.vector), at)
