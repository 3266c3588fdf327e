"""Depthwise results straight into fragments: operand A of the pointwise product, in registers.

A warp has two strips of eight pixels, several rows high. `ldmatrix` brings eight pixels of eight
channels as they lie, for each column of taps from another start. Two of these fragments, of any two
taps, are multiplied with two diagonal matrices of weights by tensor cores. What accumulates lies as
operand A of the next product wants it, once the function between them is applied.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import STRIP
from kdsl_fuse.kernels.conv_depthwise_sm90 import flat
from kdsl_fuse.kernels.conv_separable_config import EIGHT, WORD_RUN, ZEROS

BATCH = 32  # reads of a thread that are under way together


class Numbers:
    """Numbers of the `count` channels from `first` on, in shared memory while the block lives.

    Shapes: each of `given` has four modes, the last one channels, the others of stride 0.
    """

    def __init__(self, given: Any, first: Any, count: int, name: str) -> None:
        self.given, self.first, self.count = list(given), first, count
        self.held = [kd.smem(x.dtype, count, name=name) for x in self.given]

    def fetch(self, threads: int) -> list[list[Any]]:
        """Read them, all at once. Threads: the block."""
        found = []
        for start in range(0, self.count, threads):
            channel = self.first + kd.thread_rank() + start
            place = 0, 0, 0, channel
            found.append([x.load(place, kd.as_scalar(channel < x.shape[3])) for x in self.given])
        return found

    def keep(self, found: list[list[Any]], threads: int) -> None:
        """Store what was fetched. Threads: the block, which meets behind it."""
        for turn, values in enumerate(found):
            own = kd.thread_rank() + turn * threads
            for target, value in zip(self.held, values, strict=True):
                target.store(own, value, kd.as_scalar(own < self.count))

    def at(self, channel: Any) -> list[list[Any]]:
        """Of each the numbers of a channel and the next one."""
        return [x.load_vector(channel - self.first, 2) for x in self.held]


class Weights:
    """Depthwise weights of the block's channels, in shared memory while it lives.

    They lie as half a word each, the one where their channel has its place in a pair: lanes read
    them as they belong into a diagonal matrix. Behind the last channel are some of zeros, for the
    lanes off the diagonal.
    """

    def __init__(self, config: Any, taps: kd.Tensor, first: Any) -> None:
        self.config, self.source, self.first = config, taps, first
        shape = 2 * config.words, config.own_channels + ZEROS
        layout = kd.Layout(shape, (1, 2 * config.pitch))
        self.words = kd.smem(taps.dtype, layout, name="weights")

    @kd.func
    def read(self):
        """Read all of them. Threads: the block, which meets behind it.

        A thread has one word of every few channels, so that little is computed for each.
        """
        c, thread = self.config, kd.thread_rank()
        together = c.threads // c.words  # channels
        word, first = thread % c.words, thread // c.words
        tap, exists = c.weight_order.tap(word)
        busy = kd.as_scalar(exists) & (first < together)
        turns = range(0, c.own_channels + ZEROS, together)
        for start in range(0, len(turns), BATCH):
            channels = [first + turn for turn in turns[start : start + BATCH]]
            found = [self._weight(own, tap, busy) for own in channels]
            for own, weight in zip(channels, found, strict=True):
                there = kd.as_scalar(own < c.own_channels + ZEROS) & (first < together)
                self.words.store_vector((2 * word, own), self._pair(own, weight), there)

    def _weight(self, own: Any, tap: Any, busy: Any) -> Any:
        """A weight of the block's channel `own`, zero where there is none."""
        c, taps = self.config, self.config.window.taps
        channel = self.first + own
        weights = self.source.with_layout(kd.Layout(c.channels * taps), 0)
        there = busy & (own < c.own_channels) & (channel < c.channels)
        return weights.load((channel * taps + tap,), there)

    def _pair(self, own: Any, weight: Any) -> list[Any]:
        """The two halves of a channel's word: it has the one of its place in a pair."""
        zero = kd.as_scalar(0.0).to(weight.dtype)
        return [kd.where(own % 2 == e, weight, zero) for e in range(2)]

    def place(self, own: Any, lane: Any) -> Any:
        """Where a lane's words begin, for the channels `own` … of a matrix.

        On the diagonal they are those of its column's channel; zeros elsewhere, in other banks than
        the two channels that are read at the same time.
        """
        zeros = self.config.own_channels + kd.where(lane // 8 == 0, 2, 0)
        return self.words.layout((0, kd.where(lane // 8 == lane % 4, own + lane // 4, zeros)))


class DepthwiseRows:
    """A warp's depthwise results, of sixteen channels at a time.

    Threads: a converged warp, number `warp` of the block.
    """

    def __init__(
        self, config: Any, images: kd.Tensor, weights: Weights, numbers: Numbers, before: Any,
        warp: Any,
    ) -> None:  # fmt: skip
        c = self.config = config.window
        self.channels, self.steps = config.channels, config.steps
        self.whole = config.own_channels * config.peers == config.channels
        self.weights, self.numbers, self.before = weights, numbers, before
        self.order = config.weight_order
        self.warp = config.unit(warp)
        self.source, self.lane = flat(images), kd.lane_idx()
        dtype = images.dtype
        self.one, self.two = (
            kd.tiled_mma(kd.atoms.find(arch="sm_80", a=dtype.name, acc="f32", k=k)) for k in (8, 16)
        )
        self.rows = (c.rows - 1) * c.stride[0] + c.kernel[0]
        self.pairs = kd.rmem(dtype, kd.Layout((8, c.kernel[1] // 2, self.rows)), name="pairs")
        self.last = kd.rmem(dtype, kd.Layout((4, self.rows)), name="last")
        self.diagonals = kd.rmem(dtype, kd.Layout((2, config.words)), name="diagonals")
        self.sums = kd.rmem(kd.f32, kd.Layout((4, c.rows, 2)), name="sums")
        self.first = self._first()
        columns = range(0, c.kernel[1] - 1, 2)
        self.starts = [self._start(s + self.lane // 16) for s in columns]
        below = self.lane // 16 * (c.input_tile[2] * c.channels)
        self.start_of_last = below + self._start(c.kernel[1] - 1)

    def _first(self) -> Any:
        """Where the window of the lane's strip begins in a stage."""
        c = self.config
        half = kd.minimum(2 * self.warp + self.lane // 8 % 2, c.halves - 1)
        image, row, column = c.strip(half)
        _, rows, columns, _ = c.input_tile
        return ((image * rows + row * c.stride[0]) * columns + column * c.stride[1]) * c.channels

    def _start(self, shift: Any) -> Any:
        """Where the lane's pixel lies in a row, for a column of taps: its first eight channels."""
        c = self.config
        return c.swizzle((self.lane % STRIP * c.stride[1] + shift) * c.channels)

    def begin(self, stage: Any, first: Any) -> None:
        """Bring what the first channels of a stage need; `first` is the first of them."""
        self._bring_eight(stage, first, 0)

    def compute(self, stage: Any, first: Any, step: int) -> None:
        """The results of a stage's channels 16 · step …; `first` is that of the stage.

        What comes next is on its way while these are being finished.
        """
        eights = 2 * self.steps
        for run in range(2):
            self._multiply(run)
            if (following := 2 * step + run + 1) < eights:
                self._bring_eight(stage, first, following)
        for run in range(2):
            self._apply(first + (2 * step + run) * EIGHT, run)

    def _bring_eight(self, stage: Any, first: Any, eight: int) -> None:
        """Weights and pixels of the stage's channels 8 · eight …"""
        self._read_weights(first - self.weights.first + eight * EIGHT)
        self._load(stage, eight)

    def _read_weights(self, own: Any) -> None:
        """Diagonal matrices of the weights of the block's channels `own` …"""
        place = self.weights.place(own, self.lane)
        for word in range(0, self.diagonals.shape[1], WORD_RUN):
            source = self.weights.words.with_layout(kd.Layout(2 * WORD_RUN), place + 2 * word)
            kd.copy(source, self.diagonals.with_layout(kd.Layout(2 * WORD_RUN), 2 * word))

    def _load(self, stage: Any, eight: int) -> None:
        """The pixels of all rows for all columns of taps, of one group of eight channels."""
        c = self.config
        pitch, inner = c.input_tile[2] * c.channels, eight * EIGHT
        first = stage * c.panels[0] + self.first
        for y in range(self.rows):
            for pair, start in enumerate(self.starts):
                at = first + (start ^ inner) + y * pitch
                self._bring(at, self.pairs, 8 * (y * len(self.starts) + pair), 4)
        if c.kernel[1] % 2:
            for y in range(0, self.rows, 2):
                at = first + (self.start_of_last ^ inner) + y * pitch
                self._bring(at, self.last, 4 * y, 4 if y + 1 < self.rows else 2)

    def _bring(self, at: Any, target: kd.Tensor, element: int, matrices: int) -> None:
        """Load so many matrices to a place in registers."""
        source = self.source.with_layout(kd.Layout(8), at)
        held = target.with_layout(kd.Layout(2 * matrices), element)
        kd.copy(source, held, atom=kd.atoms.ldmatrix(matrices))

    def _multiply(self, run: int) -> None:
        """Sum the taps of all results, two at a time."""
        c, pairs = self.config, len(self.starts)
        self.sums[None, None, run].fill(0.0)
        for r in range(c.kernel[0]):
            for pair in range(pairs):
                for o in range(c.rows):
                    at = 8 * ((o * c.stride[0] + r) * pairs + pair)
                    self._add(self.pairs, at, 2, r * 2 * pairs + 2 * pair, (o, run))
        if c.kernel[1] % 2:
            for o in range(c.rows):
                first = o * c.stride[0]
                for r, taps, word in self.order.last_column(first % 2):
                    self._add(self.last, 4 * (first + r), taps, word, (o, run))

    def _add(self, held: kd.Tensor, at: int, taps: int, word: int, result: tuple[int, int]) -> None:
        """Add one tap or two neighbouring ones to a row of results."""
        o, run = result
        a = held.with_layout(kd.Layout((4 * taps, 1)), at)
        b = self.diagonals.with_layout(kd.Layout((2 * taps, 1)), 2 * word)
        acc = self.sums.with_layout(kd.Layout((4, 1, 1)), 4 * (o + run * self.config.rows))
        kd.gemm(self.two if taps == 2 else self.one, a, b, acc)

    def _apply(self, channel: Any, run: int) -> None:
        """The function between the convolutions, on results of eight channels."""
        channel = channel + 2 * (self.lane % 4)
        own = self.numbers.at(channel)
        for o in range(self.config.rows):
            for i in range(4):
                value = self.before(self.sums[i, o, run], *(x[i % 2] for x in own))
                if not self.whole:  # a weight of zero does not undo what is no number
                    value = kd.where(channel + i % 2 < self.channels, value, 0.0)
                self.sums[i, o, run] = kd.as_scalar(value)

    def put(self, fragments: list[kd.Tensor]) -> None:
        """Round what was computed to operand A of each row. Nothing may read that at the time."""
        for o, fragment in enumerate(fragments):
            for run in range(2):
                kd.convert_fragment(
                    self.sums[None, o, run], fragment.with_layout(kd.Layout(4), 4 * run)
                )
