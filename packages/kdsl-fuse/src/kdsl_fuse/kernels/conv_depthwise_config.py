"""How blocks of the Hopper depthwise convolution compute their tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd

WARP = 32
LANE_CHANNELS = 8  # of a warp: the columns of one matrix, 16 bytes of a pixel
STRIP = 8  # pixels of a row that the lanes of a warp hold: the rows of one matrix
MOST_TEAMS = 15  # each has one of the block's barriers, besides the one of all threads
MOST_THREADS = 1024
BLOCKS_PER_SM = (1, 2, 3, 4, 5, 6, 8)  # that registers are chosen for
MOST_TAPS = 121  # of a window: as many weights as registers hold
# blocks that share the channels of a pixel ↦ how many such clusters run at a time on an H200, with
# one block on each multiprocessor
CLUSTERS = {1: 132, 2: 64, 3: 42, 4: 28, 6: 19, 8: 13}
WIDTHS = (16, 32, 64)  # channels of a tile: pixels of 32, 64 or 128 bytes, which TMA swizzles


@dataclass(frozen=True)
class DepthwiseConfig:
    """How a block computes its tiles.

    `kernel`, `stride`, `padding` and `dilation` are the convolution's, along height and width. A
    warp computes `rows` rows of two strips of eight pixels at a time, for eight channels. A tile is
    (images, blocks of `rows` rows, strips) of `slabs` times `channels` channels; each of `teams`
    teams has a warp for eight of them. Tiles come through `stages` of shared memory, results leave
    through `buffers` of it. The taps of the first `products` columns are multiplied by tensor
    cores, two at a time, the others by ordinary instructions. Rows of the input are taken one at a
    time, or two `together` that reach different results. Registers are few enough for
    `blocks_per_sm` blocks.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    channels: int = 32
    rows: int = 8
    tile: tuple[int, int, int] = (1, 1, 2)
    teams: int = 1
    stages: int = 2
    buffers: int = 1
    products: int = 0
    together: int = 1
    slabs: int = 1
    blocks_per_sm: int = 1

    def __post_init__(self) -> None:
        counts = (self.rows, self.teams, self.stages, self.buffers, *self.tile, *self.kernel)
        shape = self.channels in WIDTHS and min(counts) >= 1
        if not shape or self.teams > MOST_TEAMS or self.threads > MOST_THREADS:
            raise kd.ArgumentError(
                f"a tile has one of {WIDTHS} channels and no size below 1, for up to {MOST_TEAMS} "
                f"teams and {MOST_THREADS} threads, got {self}",
                code="K979",
                fix="take what `choose` gives as an example",
            )
        if self.products % 2 or not 0 <= self.products <= self.kernel[1] + self.kernel[1] % 2:
            raise kd.ArgumentError(
                f"tensor cores take an even number of the {self.kernel[1]} columns of taps, one "
                f"more where all are taken and that is odd, got {self.products}",
                code="K979",
                fix="pass products=0 for none",
            )
        if self.blocks_per_sm not in BLOCKS_PER_SM:
            raise kd.ArgumentError(
                f"registers are chosen for one of {BLOCKS_PER_SM} blocks, got {self.blocks_per_sm}",
                code="K979",
                fix="take the next lower one",
            )

    @property
    def tile_channels(self) -> int:
        """Channels of a tile."""
        return self.channels * self.slabs

    @property
    def groups(self) -> int:
        """Warps of a team."""
        return self.tile_channels // LANE_CHANNELS

    @property
    def warps(self) -> int:
        """Warps that compute."""
        return self.groups * self.teams

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def taps(self) -> int:
        """Weights of a channel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def halves(self) -> int:
        """Strips of `rows` rows in a tile; a warp takes two at a time."""
        images, blocks, strips = self.tile
        return images * blocks * strips

    @property
    def units(self) -> int:
        """Pairs of strips in a tile."""
        return -(-self.halves // 2)

    @property
    def input_tile(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels that a tile reads.

        Columns are whole patterns of the swizzle, so that it is the same in all rows.
        """
        images, blocks, strips = self.tile
        rows = _reach(blocks * self.rows, self.kernel[0], self.stride[0], self.dilation[0])
        columns = _reach(strips * STRIP, self.kernel[1], self.stride[1], self.dilation[1])
        return images, rows, -(-columns // STRIP) * STRIP, self.tile_channels

    @property
    def output_tile(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels that a tile writes."""
        images, blocks, strips = self.tile
        return images, blocks * self.rows, strips * STRIP, self.tile_channels

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block of 16-bit elements, barriers and gaps included."""
        results = 2 * self.rows * STRIP * self.tile_channels * self.buffers * self.teams
        elements = math.prod(self.input_tile) * self.stages + results
        return 2 * (elements + self.tile_channels * self.taps) + 2048

    @property
    def swizzle(self) -> kd.Swizzle:
        """The swizzle of pixels, which keeps 8 neighbours of one matrix in different banks."""
        return kd.Swizzle(WIDTHS.index(self.channels) + 1, 3, 3)

    @property
    def panels(self) -> tuple[int, int]:
        """Elements of a slab of the input tile, and of one of the results of a strip."""
        images, rows, columns, _ = self.input_tile
        return images * rows * columns * self.channels, self.rows * STRIP * self.channels

    def input_layout(self) -> kd.ComposedLayout:
        """The stages of the input, (image, row, column, channel, stage)."""
        images, rows, columns, _ = self.input_tile
        panel, row = self.panels[0], columns * self.channels
        shape = (images, rows, columns, (self.channels, self.slabs), self.stages)
        strides = (rows * row, row, self.channels, (1, panel), panel * self.slabs)
        return kd.ComposedLayout(self.swizzle, 0, kd.Layout(shape, strides))

    def output_layout(self) -> kd.ComposedLayout:
        """Results on their way out, (image, row, column, channel, half, buffer, team)."""
        panel, row = self.panels[1], STRIP * self.channels
        half = panel * self.slabs
        shape = (
            1, self.rows, STRIP, (self.channels, self.slabs), 2, self.buffers, self.teams
        )  # fmt: skip
        strides = (half, row, self.channels, (1, panel), half, 2 * half, 2 * half * self.buffers)
        return kd.ComposedLayout(self.swizzle, 0, kd.Layout(shape, strides))

    def strip(self, half: Any) -> tuple[Any, Any, Any]:
        """Image, row and column of a strip's first result in the tile."""
        _, blocks, strips = self.tile
        rows = half // strips % blocks * self.rows
        return half // (blocks * strips), rows, half % strips * STRIP

    def place(self, group: Any, panel: int) -> tuple[Any, Any]:
        """Where the channels of a warp begin: in a pixel of its slab, and where that begins."""
        if self.slabs == 1:
            return group * LANE_CHANNELS, 0
        warps = self.channels // LANE_CHANNELS
        return group % warps * LANE_CHANNELS, group // warps * panel


def _reach(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Inputs that neighbouring outputs depend on."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1


@dataclass(frozen=True)
class DirectConfig:
    """How threads of the portable depthwise convolution share its results.

    `kernel`, `stride`, `padding` and `dilation` are the convolution's, along height and width;
    each input channel has `multiplier` filters. A thread computes `outputs` (rows, columns) of
    `width` neighbouring filters at a time; `lanes` threads of a block's `threads` take
    neighbouring filters. `overlap` says that the kernel itself waits for the launch before, which
    takes sm_90.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    multiplier: int = 1
    width: int = 1
    outputs: tuple[int, int] = (1, 4)
    lanes: int = 32
    threads: int = 128
    overlap: bool = True

    @property
    def taps(self) -> int:
        """Weights of a filter."""
        return self.kernel[0] * self.kernel[1]

    @property
    def channels(self) -> int:
        """Filters of a block."""
        return self.lanes * self.width

    @property
    def patches(self) -> int:
        """Patches of `outputs` that a block computes at a time."""
        return self.threads // self.lanes
