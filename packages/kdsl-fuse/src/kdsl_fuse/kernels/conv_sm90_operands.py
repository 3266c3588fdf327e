"""Windows of images and filters on their way to the tiles of a matrix product, by TMA.

The product's K runs over the elements of a filter (taps) and, in each, over panels of channels: as
many as one swizzled line of shared memory holds. A stage takes one panel or several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_problem import ConvProblem

NOWHERE = 1 << 20  # a channel behind the last one of every image: read as zero


@dataclass(frozen=True)
class Window:
    """How filters step over images, pairs along (height, width); `panel` channels go at a time."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    panel: int

    @classmethod
    def of(cls, problem: ConvProblem, panel: int) -> Window:
        """The window of a problem."""
        return cls(problem.kernel, problem.stride, problem.padding, problem.dilation, panel)

    @property
    def taps(self) -> int:
        """Elements of a filter."""
        return self.kernel[0] * self.kernel[1]

    @property
    def lower(self) -> tuple[int, ...]:
        """The first starting pixel, relative to the image's first one."""
        return tuple(-pad for pad in self.padding)

    @property
    def upper(self) -> tuple[int, ...]:
        """The last starting pixel, relative to the image's last one."""
        sides = zip(self.padding, self.kernel, self.dilation, strict=True)
        return tuple(pad - (taps - 1) * step for pad, taps, step in sides)

    def output(self, sizes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Rows and columns of the result of an image of these sizes."""
        sides = zip(sizes, self.lower, self.upper, self.stride, strict=True)
        p, q = ((n + last - first + step - 1) // step for n, first, last, step in sides)
        return p, q

    def steps(self, channels: Any, depth: int) -> Any:
        """How many stages `depth` deep a window has."""
        panels = kd.ceil_div(channels, self.panel) * self.taps
        return kd.ceil_div(panels, depth // self.panel)


@kd.struct
class FilterPlace:
    """Where in a filter the next panel starts: tap, its offset in the image, and channel.

    Behind the last tap, `channel` is that of no image.
    """

    window: Window
    channels: Any
    tap: kd.i32  # type: ignore[valid-type] # a register of the kernel
    row: kd.i32  # type: ignore[valid-type] # as above
    column: kd.i32  # type: ignore[valid-type] # as above
    channel: kd.i32  # type: ignore[valid-type] # as above

    @classmethod
    def at(cls, window: Window, channels: Any, panel: Any) -> FilterPlace:
        """The place of a panel, by its number in the filter."""
        blocks = kd.ceil_div(channels, window.panel)
        tap, block = panel // blocks, panel % blocks
        row, column = tap // window.kernel[1], tap % window.kernel[1]
        steps = window.dilation
        return cls(window, channels, tap, row * steps[0], column * steps[1], block * window.panel)

    @property
    def depth(self) -> Any:
        """The first channel to read of an image."""
        return kd.where(self.tap < self.window.taps, self.channel, NOWHERE)

    def advance(self) -> None:
        """Go on to the next panel: channels first, then columns and rows."""
        window = self.window
        self.channel = self.channel + window.panel
        done = self.channel >= self.channels
        self.channel = kd.where(done, 0, self.channel)
        self.tap = kd.where(done, self.tap + 1, self.tap)
        if window.kernel[1] > 1:
            self.column = kd.where(done, self.column + window.dilation[1], self.column)
            done = self.column >= window.kernel[1] * window.dilation[1]
            self.column = kd.where(done, 0, self.column)
        if window.kernel[0] > 1:
            self.row = kd.where(done, self.row + window.dilation[0], self.row)


class _Operand:
    """Panels of an operand (rows × depth) in a ring of stages; options as of `TmaOperand`."""

    def __init__(
        self,
        tensor: kd.Tensor,
        window: Window,
        tile: tuple[int, int],
        stages: int,
        *,
        name: str,
        share: kd.collective.TileShare,
        cache: str | None,
        fetch: int,
    ) -> None:
        self.rows, depth = tile
        self.fetch = fetch
        self.window, self.part = window, self.rows // share.count
        self.panels = depth // window.panel
        self.options: dict[str, Any] = {"multicast": share.mask, "cache": cache}
        self.bytes = self.rows * depth * tensor.dtype.bytes
        span = window.panel * tensor.dtype.bytes
        layout = kd.atoms.shared_operand(tensor.dtype, tile, stages=stages, swizzle=span)
        self.shared = kd.smem(tensor.dtype, layout, name=name)
        self.share = share.number
        self.targets = [
            self.shared.tile((self.part, window.panel), (share.number, panel))
            for panel in range(self.panels)
        ]
        self.box: Any = None

    def prefetch(self) -> None:
        """Bring the tensor map to the TMA unit's cache. Threads: one."""
        self.box.prefetch()

    def first(self, tile: Any) -> Any:
        """The first row of the block's share of a tile."""
        return tile * self.rows + self.share * self.part


class ImageOperand(_Operand):
    """Images (n, h, w, c): rows are pixels of the result, by images, their rows and columns."""

    def __init__(self, x: kd.Tensor, window: Window, *args: Any, **options: Any) -> None:
        super().__init__(x, window, *args, **options)
        self.output = window.output((x.shape[1], x.shape[2]))
        self.box = kd.tma_im2col(
            x, self.targets[0][..., 0],
            lower=window.lower, upper=window.upper, strides=window.stride, promotion=self.fetch,
        )  # fmt: skip

    def first(self, tile: Any) -> tuple[Any, ...]:
        """Image, row and column where the window of a tile's first pixel starts."""
        pixel = super().first(tile)
        (p, q), (down, across) = self.output, self.window.stride
        image, rest = pixel // (p * q), pixel % (p * q)
        top, left = self.window.lower
        return image, rest // q * down + top, rest % q * across + left

    def load(self, stage: Any, panel: int, first: Any, at: FilterPlace, full: Any) -> None:
        """Start copying the pixels under one element of the filter, a panel of channels."""
        target = self.targets[panel][..., stage]
        self.box(target, (*first, at.depth), (at.row, at.column), full, **self.options)


class FilterOperand(_Operand):
    """Filters (k, c, taps): rows are filters."""

    def __init__(self, w: kd.Tensor, window: Window, *args: Any, **options: Any) -> None:
        super().__init__(w, window, *args, **options)
        box = self.part, self.window.panel, 1
        self.box = kd.tma_load(w, self.targets[0][..., 0], box, promotion=self.fetch)

    def load(self, stage: Any, panel: int, first: Any, at: FilterPlace, full: Any) -> None:
        """Start copying one element of the filters, a panel of channels."""
        target = self.targets[panel][..., stage]
        self.box(target, (first, at.channel, at.tap), full, **self.options)
