"""How blocks of the fused separable convolution compute their tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import STRIP, WARP, DepthwiseConfig
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, PEERS, WIDEST

WARPS = GROUP // WARP  # of a warp group
GROUP_STRIPS = 2 * WARPS  # strips of a tile that a warp group takes: two for each warp
DEPTH = 16  # channels that one matrix instruction multiplies
EIGHT = 8  # channels of one matrix of a fragment; also columns of one of accumulators
BLOCKS_PER_SM = (1, 2)  # that registers are chosen for
MOST_SUMS = 128  # accumulators of a thread
SPAN = 64  # elements of a swizzled line
ZEROS = 3  # channels without weights behind the last one
WORD_RUN = 4  # weights that a lane reads at a time, each a word of shared memory


@dataclass(frozen=True)
class Tails:
    """behind(Σ w · before(depthwise sums, first extras…), other extras…).

    The first extras have a number for each channel of the input.
    """

    before: Callable[..., Any]
    first: int
    behind: Callable[..., Any]


@dataclass(frozen=True)
class WeightOrder:
    """How the weights of a channel's window lie in words: two that are used at once are aligned.

    First those of all columns but an odd last one, by rows; then those of that column from its
    first row on; then again from its second row on. So results of odd rows, too, can take pairs of
    input rows of which the first one is even, as registers are.
    """

    height: int
    width: int

    @property
    def even(self) -> int:
        """Columns that are taken two at a time."""
        return self.width // 2 * 2

    @property
    def starts(self) -> tuple[int, int]:
        """Words where the last column begins, from its first row and from its second one."""
        first = self.height * self.even
        return first, first + self.height + self.height % 2

    @property
    def count(self) -> int:
        """Words of a channel, whole runs."""
        odd = self.width % 2
        used = self.starts[1] + self.height - 1 if odd else self.starts[0]
        return -(-used // WORD_RUN) * WORD_RUN

    def tap(self, word: Any) -> tuple[Any, Any]:
        """The weight, by rows, that belongs to a word, and whether there is one."""
        (first, second), (rows, columns) = self.starts, (self.height, self.width)
        if self.even == columns:
            return word, word < first
        row = kd.where(word < second, word - first, word - second + 1)
        last = row * columns + columns - 1
        if self.even:
            last = kd.where(word < first, word // self.even * columns + word % self.even, last)
        return last, (word < first) | (row < rows)

    def last_column(self, parity: int) -> list[tuple[int, int, int]]:
        """How a result takes the last column of taps, its first input row even or odd: the first
        row of taps, how many, and the word of the first one."""
        first, second = self.starts
        pairs = list(range(parity, self.height - 1, 2))
        singles = [r for r in range(self.height) if r not in pairs and r - 1 not in pairs]
        found = [(r, 2, first + r if parity == 0 else second + r - 1) for r in pairs]
        return found + [(r, 1, first + r) for r in singles]


@dataclass(frozen=True)
class SeparableConfig:
    """How a block computes its tiles.

    `window` says how the depthwise part goes over the input: a stage of the ring has a tile of it
    with `window.channels` channels, and `filters` filters of as many. `groups` warp groups share a
    tile's strips; `parts` such sets of them in a block, and `peers` blocks of a cluster, share its
    `channels`: their sums are added up in the end. `tiles` are those of an image, along height and
    width, and of all filters: divisions by numbers that are known are short.
    """

    window: DepthwiseConfig
    channels: int
    filters: int
    tiles: tuple[int, int, int]
    groups: int = 1
    parts: int = 1
    peers: int = 1

    def __post_init__(self) -> None:
        strips = GROUP_STRIPS * self.groups
        if min(self.groups, self.parts) < 1 or not 1 <= self.window.halves <= strips:
            raise kd.ArgumentError(
                f"{self.groups} warp groups share a tile of up to {strips} strips, got "
                f"{self.window.halves}, and {self.parts} parts of the channels",
                code="K979",
                fix="take what `choose` gives as an example",
            )
        widths = self.filters % (EIGHT * self.shares) == 0 and 0 < self.filters <= WIDEST
        stages, rest = divmod(self.window.stages, self.parts)
        if not widths or self.peers not in PEERS or rest or stages < 2:
            raise kd.ArgumentError(
                f"filters of a tile are a multiple of {EIGHT} up to {WIDEST} for each of the "
                f"{self.shares} shares of the channels, peers one of {PEERS}, stages two or more "
                f"for each part (one is released while the next is read), got {self.filters} "
                f"filters, {self.peers} peers, {self.window.stages} stages and {self.parts} parts",
                code="K979",
                fix="round the filters up, or share channels less",
            )
        if self.sums > MOST_SUMS:
            raise kd.ArgumentError(
                f"a thread has up to {MOST_SUMS} sums, got {self.window.rows} rows of "
                f"{self.filters} filters, which are {self.sums}",
                code="K979",
                fix="take fewer rows or filters",
            )

    @property
    def sums(self) -> int:
        """Accumulators of a thread."""
        return self.window.rows * self.filters // 2

    @property
    def shares(self) -> int:
        """How many warp groups, of all blocks, add up what they have of the same results."""
        return self.parts * self.peers

    @property
    def consumers(self) -> int:
        """Warp groups that compute."""
        return self.groups * self.parts

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * self.consumers

    @property
    def steps(self) -> int:
        """Matrix instructions along the channels of a stage."""
        return self.window.channels // DEPTH

    @property
    def words(self) -> int:
        """Words of shared memory for the weights of a channel, as `WeightOrder` has them."""
        return self.weight_order.count

    @property
    def pitch(self) -> int:
        """Words from channel to channel: an odd number of runs, which lie in different banks."""
        return self.words if self.words // WORD_RUN % 2 else self.words + WORD_RUN

    @property
    def weight_order(self) -> WeightOrder:
        """How the weights of a channel lie."""
        return WeightOrder(*self.window.kernel)

    @property
    def width(self) -> int:
        """Results of a pixel that a warp writes."""
        return self.filters // self.shares

    @property
    def chunk(self) -> int:
        """Results of a pixel that leave together: a swizzled line, or all where that is better.

        Rows of an odd number of 16 bytes fall into different banks by themselves.
        """
        swizzled = math.gcd(self.width, SPAN)
        return swizzled if swizzled > DEPTH or self.width == DEPTH else self.width

    @property
    def swizzle(self) -> kd.Swizzle | None:
        """The swizzle of results, None where rows are not one of its lines."""
        bits = {16: 1, 32: 2, 64: 3}.get(self.chunk)
        return None if bits is None else kd.Swizzle(bits, 3, 3)

    def unit(self, warp: Any) -> Any:
        """A warp's number among those that share the tile's pixels."""
        return warp % (WARPS * self.groups) if self.parts > 1 else warp

    def output_layout(self) -> Any:
        """Results on their way out: (image, row, column, channel, chunk, half, warp)."""
        rows, chunks = self.window.rows, self.width // self.chunk
        half = rows * STRIP * self.chunk
        layout = kd.Layout(
            (1, rows, STRIP, self.chunk, chunks, 2, self.consumers * WARPS),
            (half, STRIP * self.chunk, self.chunk, 1, 2 * half, half, 2 * half * chunks),
        )
        return layout if self.swizzle is None else kd.ComposedLayout(self.swizzle, 0, layout)

    def slab_layout(self) -> kd.Layout:
        """Sums on their way to those who add them up: (unit of four, thread, row, eight, group,
        part)."""
        return kd.Layout(
            (4, GROUP, self.window.rows, self.filters // EIGHT, self.groups, self.parts)
        )

    @property
    def stages(self) -> int:
        """Stages of the ring that a block needs for the channels of a tile."""
        return -(-self.channels // (self.window.channels * self.peers))

    @property
    def own_channels(self) -> int:
        """Channels that a block takes, rounded up to whole stages."""
        return self.stages * self.window.channels

    def shared_bytes(self, extras: int = 0) -> int:
        """Shared memory of a block, with `extras` numbers for each input channel and filter.

        Extras count as f32; barriers and gaps are included.
        """
        w = self.window
        stage = math.prod(w.input_tile) + self.filters * w.channels
        results = w.rows * 2 * STRIP * self.width * WARPS * self.consumers
        slab = 4 * GROUP * self.sums * self.consumers if self.shares > 1 else 0
        numbers = 4 * (self.pitch * (self.own_channels + ZEROS) + extras * self.own_channels)
        numbers += 4 * extras * self.filters * self.tiles[2]
        return 2 * (stage * w.stages + results) + slab + numbers + 4096
