"""Depthwise convolution on Hopper (sm_90a) for 16-bit NHWC images.

A persistent grid: in each block one thread copies tiles of the input with their halo into stages of
shared memory (TMA, which reads zeros outside of the image). A warp keeps the weights of eight
channels in registers and computes two strips of eight pixels, several rows high: `ldmatrix` brings
eight pixels of eight channels as they lie, for each column of taps. These fragments are multiplied
with diagonal matrices of weights by tensor cores, two taps at a time, or unpacked and multiplied by
ordinary instructions: both add to the same accumulators, so that both pipes can work. Results leave
through shared memory (`stmatrix`, TMA).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import (
    BLOCKS_PER_SM,
    LANE_CHANNELS,
    STRIP,
    WARP,
)
from kdsl_fuse.kernels.conv_depthwise_norm import Moments, Normalised
from kdsl_fuse.kernels.conv_depthwise_window import steps
from kdsl_fuse.kernels.refilled_ring import RefilledRing, release
from kdsl_fuse.kernels.vectors import neighbours


def conv_depthwise_sm90(
    X: kd.Tensor["f16|bf16", "n h w c"],
    W: kd.Tensor["=X", "c t"],
    Y: kd.Tensor["=X", "n p q c"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """Y = epilogue(depthwise convolution of X, extras…); W has the taps of each channel, by rows.

    The grid is (parts of the channels, blocks that share the tiles of each part). Extras are like
    Y, perhaps broadcast by strides of 0.
    """
    block = Block(config, X, W, Y)
    kd.collective.init_together(block)
    kd.wait_for_dependencies()
    kd.launch_dependents()
    warp = kd.warp_uniform(kd.warp_idx())
    if warp == 0:
        begin(block)
    compute(Worker(block, warp, epilogue, extras))


KERNELS = {
    n: kd.kernel(name=f"conv_depthwise_sm90_{n}", min_blocks_per_sm=n)(conv_depthwise_sm90)
    for n in BLOCKS_PER_SM
}
"""How many blocks of the kernel are to fit a multiprocessor ↦ the kernel."""
globals().update({kernel.signature.name: kernel for kernel in KERNELS.values()})  # for manifests


class Block:
    """Shared memory of a block, its copies, and which tiles it computes."""

    def __init__(self, config: Any, X: Any, W: Any, Y: Any) -> None:
        self.config, self.weights, self.y = config, W, Y
        self.input = kd.smem(X.dtype, config.input_layout(), name="input")
        self.output = kd.smem(X.dtype, config.output_layout(), name="output")
        self.taps = kd.smem(X.dtype, config.tile_channels * config.taps, name="weights")
        self.load = kd.tma_load(X, self.input[..., 0], config.input_tile)
        out = self.output[..., 0, 0, 0]
        self.store = kd.tma_store(Y, out, (1, config.rows, STRIP, config.tile_channels))
        self.ring = RefilledRing(config.stages, config.warps)
        self.weighed = kd.mbarrier(name="weighed")
        self.channel = kd.block_idx()[0] * config.tile_channels
        self.first, self.step = kd.block_idx()[1], kd.grid_dim()[1]
        self.counts = kd.ceil_div(Y.shape[:3], config.output_tile[:3])
        self.tiles = self.counts[0] * self.counts[1] * self.counts[2]

    def init(self) -> None:
        """Bring the input's tensor map to the TMA unit's cache, and make the barriers."""
        self.load.prefetch()
        self.ring.init()
        self.weighed.init()

    def origin(self, turn: Any) -> tuple[Any, Any, Any]:
        """Image, row and column of the first result of the block's tile number `turn`."""
        images, rows, columns, _ = self.config.output_tile
        number = self.first + turn * self.step
        column, rest = number % self.counts[2], number // self.counts[2]
        row, image = rest % self.counts[1], rest // self.counts[1]
        return image * images, row * rows, column * columns


@kd.func
def begin(block):
    """One thread brings the weights and the first tiles."""
    c = block.config
    if kd.elect_one():
        there = kd.minimum(block.weights.shape[0] - block.channel, c.tile_channels)
        count = (there * c.taps).assume_divisible(LANE_CHANNELS)
        block.weighed.arrive_expect(count * block.weights.dtype.bytes)
        of_tile = kd.Layout(c.tile_channels * c.taps)
        source = block.weights.with_layout(of_tile, block.channel * c.taps)
        kd.bulk_load(source, block.taps, count, block.weighed)
        for turn in range(c.stages):
            bring(block, kd.as_scalar(turn))


@kd.func
def bring(block, turn):
    """Start copying a tile to its stage, which is free, if there is such a tile."""
    c = block.config
    if block.first + turn * block.step < block.tiles:
        image, row, column = block.origin(turn)
        stage, arrived = block.ring.expect(turn, block.load.bytes)
        place = (
            image, row * c.stride[0] - c.padding[0], column * c.stride[1] - c.padding[1],
            block.channel,
        )  # fmt: skip
        block.load(block.input[..., stage], place, arrived)


@kd.func
def compute(worker):
    """The strips of each tile."""
    block, c = worker.block, worker.block.config
    block.weighed.wait(0)
    worker.read_weights()
    worker.read_fixed()
    for turn in kd.range(kd.ceil_div(block.tiles - block.first, block.step)):
        stage = block.ring.wait(turn)
        for unit in kd.range(worker.first_unit(turn), c.units, c.teams):
            fetched = worker.fetch(turn, unit)
            worker.convolve(stage, unit)
            worker.finish(turn, unit, fetched)
        kd.sync_warp()
        if worker.lane == 0:
            release(block.ring, turn, partial(bring, block))
    if worker.leads:
        kd.tma_store_wait(0)
    if kd.cluster_dim() != (1, 1, 1):
        kd.cluster_sync()  # nobody may still write to a block that has ended


class Worker:
    """A computing warp: its weights, and its part of every strip."""

    def __init__(self, block: Block, warp: Any, epilogue: Any, extras: Any) -> None:
        c = block.config
        self.block, self.epilogue, self.extras = block, epilogue, extras
        self.warp, self.lane = warp, kd.lane_idx()
        self.team, self.group = warp // c.groups, warp % c.groups
        self.leads = (self.lane == 0) & (self.group == 0)
        self.barrier = kd.named_barrier(1 + self.team, WARP * c.groups)
        self.first = block.channel + self.group * LANE_CHANNELS  # channel of the warp
        dtype = block.input.dtype
        self.mma = kd.tiled_mma(kd.atoms.find(arch="sm_80", a=dtype.name, acc="f32"))
        columns = c.kernel[1] + c.kernel[1] % 2
        self.pixels = [
            kd.rmem(dtype, kd.Layout((4, columns)), name="pixels") for _ in range(c.together)
        ]
        self.sums = kd.rmem(kd.f32, kd.Layout((4, c.rows)), name="sums")
        self.rounded = kd.rmem(dtype, kd.Layout((4, c.rows)), name="rounded")
        self.moments = None
        if isinstance(epilogue, Normalised):
            self.moments = Moments(c, block.y.shape[3], epilogue.eps)
        self.source, self.target = flat(block.input), flat(block.output)
        self.starts = [self._start(2 * pair) for pair in range(columns // 2)]

    def _start(self, shift: int) -> Any:
        """Where the lane's row of a matrix lies in a row of the input, for a column of taps.

        Lanes name the pixels of both strips, then those one column of taps further.
        """
        c, lane = self.block.config, self.lane
        column = (lane % 8) * c.stride[1] + (shift + lane // 16) * c.dilation[1]
        inner, slab = c.place(self.group, c.panels[0])
        return c.swizzle(column * c.channels + inner) + slab

    def first_unit(self, turn: Any) -> Any:
        """The team's first pair of strips of a tile; teams take turns over all tiles."""
        c = self.block.config
        if c.units % c.teams == 0:
            return self.team
        return (self.team + turn * (c.teams - c.units % c.teams)) % c.teams

    @kd.func
    def read_weights(self):
        """Weights from shared memory: diagonal matrices, and pairs of f32."""
        c, lane = self.block.config, self.lane
        there = kd.as_scalar(self.first < self.block.y.shape[3])
        own, pair = lane // 4, 2 * (lane % 4)
        first = self.group * LANE_CHANNELS
        self.diagonals = kd.rmem(
            self.source.dtype, kd.Layout((2, max(c.products * c.kernel[0], 1)))
        )
        self.diagonals.fill(0)
        rest = max(c.kernel[1] - c.products, 0)
        self.factors = kd.rmem(kd.f32, kd.Layout((2, max(rest * c.kernel[0], 1))))
        for held in self.pixels:
            held.fill(0)
        for r in range(c.kernel[0]):
            for s in range(c.kernel[1]):
                tap = r * c.kernel[1] + s
                if s < c.products:
                    weight = self.block.taps.load((first + own) * c.taps + tap, there)
                    zero = kd.as_scalar(0.0).to(weight.dtype)
                    for e in range(2):
                        self.diagonals[e, r * c.products + s] = kd.where(
                            own == pair + e, weight, zero
                        )
                else:
                    for e in range(2):
                        weight = self.block.taps.load((first + pair + e) * c.taps + tap, there)
                        self.factors[e, r * rest + s - c.products] = weight.to(kd.f32)

    @kd.func
    def convolve(self, stage, unit):
        """The sums of two strips."""
        c = self.block.config
        images, rows, columns, _ = c.input_tile
        half = kd.minimum(2 * unit + self.lane // 8 % 2, c.halves - 1)
        image, row, column = c.strip(half)
        first = ((stage * c.slabs * images + image) * rows + row * c.stride[0]) * columns
        first = (first + column * c.stride[1]) * c.channels
        self.sums.fill(0.0)
        for rows_together in steps(c):
            for held, (y, _) in zip(self.pixels, rows_together, strict=False):
                self._load(held, first, y * columns * c.channels)
            self._multiply(rows_together)
            self._add(rows_together)

    def _load(self, held: Any, first: Any, row: int) -> None:
        """The pixels of a row for all columns of taps."""
        columns = self.block.config.kernel[1]
        for pair, start in enumerate(self.starts):
            matrices = 4 if 2 * pair + 1 < columns else 2
            source = self.source.with_layout(kd.Layout(8), start + first + row)
            target = held.with_layout(kd.Layout(2 * matrices), 8 * pair)
            kd.copy(source, target, atom=kd.atoms.ldmatrix(matrices))

    def _multiply(self, together: Any) -> None:
        """Add the taps that tensor cores take."""
        c = self.block.config
        for s in range(0, c.products, 2):
            for held, (_, uses) in zip(self.pixels, together, strict=False):
                a = held.with_layout(kd.Layout((8, 1)), 4 * s)
                for o, r in uses:
                    b = self.diagonals.with_layout(kd.Layout((4, 1)), 2 * (r * c.products + s))
                    acc = self.sums.with_layout(kd.Layout((4, 1, 1)), 4 * o)
                    kd.gemm(self.mma, a, b, acc)

    def _add(self, together: Any) -> None:
        """Add the other taps."""
        c = self.block.config
        rest = c.kernel[1] - c.products
        for s in range(c.products, c.kernel[1]):
            for held, (_, uses) in zip(self.pixels, together, strict=False):
                values = [held[i, s].to(kd.f32) for i in range(4)]
                for o, r in uses:
                    for i, value in enumerate(values):
                        factor = self.factors[i % 2, r * rest + s - c.products]
                        self.sums[i, o] = kd.fma(value, factor, self.sums[i, o])

    def read_fixed(self) -> None:
        """The extras that are the same for all pixels."""
        channel = self.first + 2 * (self.lane % 4)
        inside = kd.as_scalar(channel < self.block.y.shape[3])
        self.fixed = {
            i: neighbours(extra, (0, 0, 0, channel), 3, 2, inside)
            for i, extra in enumerate(self.extras)
            if all(isinstance(step, int) and step == 0 for step in extra.stride[:3])
        }

    def places(self, turn: Any, unit: Any) -> list[tuple[Any, ...]]:
        """Image, row and column of the first results of both strips."""
        origin = self.block.origin(turn)
        strip = self.block.config.strip
        halves = [strip(kd.as_scalar(2 * unit + half)) for half in range(2)]
        return [tuple(a + b for a, b in zip(origin, at, strict=True)) for at in halves]

    def fetch(self, turn: Any, unit: Any) -> dict[int, Any]:
        """The other extras at the lane's pixels, ahead of the sums, as memory takes its time."""
        left = {i: x for i, x in enumerate(self.extras) if i not in self.fixed}
        if not left:
            return {}
        rows, places = self.block.config.rows, self.places(turn, unit)
        held = {i: kd.rmem(x.dtype, kd.Layout((4, rows)), name="extra") for i, x in left.items()}
        for o in range(rows):
            for half, at in enumerate(places):
                for i, extra in left.items():
                    for e, value in enumerate(self._extra(extra, at, o)):
                        held[i][2 * half + e, o] = value
        return held

    def _extra(self, extra: Any, at: tuple[Any, ...], o: int) -> list[Any]:
        """The lane's two channels of an extra at a pixel."""
        y = self.block.y
        place = at[0], at[1] + o, at[2] + self.lane // 4, self.first + 2 * (self.lane % 4)
        inside = kd.as_scalar(place[0] < y.shape[0])
        for index, size in zip(place[1:], y.shape[1:], strict=True):
            inside = inside & (index < size)
        return neighbours(extra, place, 3, 2, inside)

    @kd.func
    def finish(self, turn, unit, fetched):
        """Apply the epilogue to both strips and start their way to memory."""
        c, block = self.block.config, self.block
        places, buffer = self.places(turn, unit), self._buffer(turn, unit)
        function, used = self.epilogue, 0
        if self.moments is not None:
            used = function.first
            self._apply(function.before, range(used), fetched)
            self.moments.normalise(self, turn * c.units + unit)
            function = function.behind
        self._apply(function, range(used, len(self.extras)), fetched)
        for o in range(c.rows):
            kd.convert_fragment(self.sums[None, o], self.rounded[None, o])
        if self.leads:
            kd.tma_store_wait(c.buffers - 1)
        self.barrier.sync()
        self._put(buffer)
        kd.fence_proxy_async()
        self.barrier.sync()
        if self.leads:
            for half, (image, row, column) in enumerate(places):
                if 2 * unit + half < c.halves:
                    block.store(
                        block.output[..., half, buffer, self.team],
                        (image, row, column, block.channel),
                    )
            kd.tma_store_commit()

    def _apply(self, function: Any, extras: range, fetched: dict[int, Any]) -> None:
        """Replace all sums by a function of them and some of the extras."""
        for o in range(self.block.config.rows):
            for i in range(4):
                own = [self.fixed[x][i % 2] if x in self.fixed else fetched[x][i, o]
                       for x in extras]  # fmt: skip
                self.sums[i, o] = kd.as_scalar(function(self.sums[i, o], *own))

    def _buffer(self, turn: Any, unit: Any) -> Any:
        """Which of the team's buffers takes the results of a pair of strips: they take turns."""
        c = self.block.config
        if c.buffers == 1:
            return 0
        return ((turn * c.units + unit) // c.teams) % c.buffers

    def _put(self, buffer: Any) -> None:
        """Rounded results to a buffer of the team."""
        c, lane = self.block.config, self.lane
        row = STRIP * c.channels
        half, pixel = lane // 8 % 2, lane % 8
        inner, slab = c.place(self.group, c.panels[1])
        strip = (self.team * c.buffers + buffer) * 2 + half
        first = strip * (c.slabs * c.panels[1]) + slab + c.swizzle(pixel * c.channels + inner)
        for o in range(0, c.rows, 2):
            matrices = 4 if o + 1 < c.rows else 2
            further = lane // 16 * row if matrices == 4 else 0
            target = self.target.with_layout(kd.Layout(8), first + further + o * row)
            held = self.rounded.with_layout(kd.Layout(2 * matrices), 4 * o)
            kd.copy(held, target, atom=kd.atoms.stmatrix(matrices))


def flat(tensor: Any) -> Any:
    """All elements of a swizzled allocation, by their places."""
    return kd.recast(tensor, tensor.dtype, kd.Layout(kd.cosize(tensor.layout)))
