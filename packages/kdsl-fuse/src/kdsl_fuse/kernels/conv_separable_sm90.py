"""A depthwise convolution and the pointwise one behind it in one kernel on Hopper (sm_90a).

A persistent grid: tiles of the input with their halo, some channels at a time, and as many channels
of the pointwise filters come to a ring of shared-memory stages (TMA; the last warp that has read a
stage brings what takes its place). Each warp computes depthwise results of its pixels by tensor
cores (`conv_separable_rows`), straight into the registers from which its warp group multiplies them
by the filters (`wgmma`). Results go through shared memory to TMA.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_separable_config import BLOCKS_PER_SM, DEPTH, WARPS
from kdsl_fuse.kernels.conv_separable_results import Results, SharedSums
from kdsl_fuse.kernels.conv_separable_rows import DepthwiseRows, Numbers, Weights
from kdsl_fuse.kernels.gemm_sm90_config import GROUP
from kdsl_fuse.kernels.refilled_ring import RefilledRing, release


def conv_separable_sm90(
    X: kd.Tensor["f16|bf16", "n h w c"],
    D: kd.Tensor["=X", "c t"],
    F: kd.Tensor["=X", "k c"],
    Y: kd.Tensor["=X", "n p q k"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
):
    """Y = behind(Σ F · before(depthwise convolution of X by D, first extras…), other extras…).

    `epilogue` has both functions (`Tails`). D has the taps of each channel, by rows. The first
    extras have strides of 0 but for their channels, which are X's; the others are like Y, perhaps
    broadcast by strides of 0.
    """
    block = Block(config, X, F, Y)
    warp = kd.warp_uniform(kd.warp_idx())
    weights = Weights(config, D, block.first)
    numbers = Numbers(extras[: epilogue.first], block.first, config.own_channels, "numbers")
    rows = DepthwiseRows(config, block.images, weights, numbers, epilogue.before, warp)
    results = Results(config, Y, epilogue.behind, extras[epilogue.first :], warp)
    worker = Worker(block, rows, results, warp)
    if kd.thread_rank() == 0:
        block.prefetch()
        block.ring.init()
        worker.init()
        kd.fence_mbarrier_init()
    kd.wait_for_dependencies()
    kd.launch_dependents()
    if config.peers > 1:
        kd.cluster_sync()
    else:
        kd.sync_threads()
    begin(block, warp)
    fetched = [some.fetch(config.threads) for some in (numbers, results.numbers)]
    weights.read()
    for some, values in zip((numbers, results.numbers), fetched, strict=True):
        some.keep(values, config.threads)
    kd.sync_threads()
    compute(worker)
    if config.peers > 1:
        kd.cluster_sync()  # nobody may still read the sums of a block that has ended


KERNELS = {
    n: kd.kernel(name=f"conv_separable_sm90_{n}", min_blocks_per_sm=n)(conv_separable_sm90)
    for n in BLOCKS_PER_SM
}
"""How many blocks of the kernel are to fit a multiprocessor ↦ the kernel."""
globals().update({kernel.signature.name: kernel for kernel in KERNELS.values()})  # for manifests


class Block:
    """What a block loads, and which tiles it computes."""

    def __init__(self, config: Any, X: Any, F: Any, Y: Any) -> None:
        self.config, self.y, window = config, Y, config.window
        self.images = kd.smem(X.dtype, window.input_layout(), name="images")
        self.load = kd.tma_load(X, self.images[..., 0], window.input_tile)
        tile = config.filters, window.channels
        self.filters = kd.collective.TmaOperand(F, tile, window.stages, name="filters")
        self.ring = RefilledRing(window.stages, WARPS * config.groups)
        images = kd.ceil_div(Y.shape[0], window.output_tile[0])
        self.total = images * math.prod(config.tiles)
        self.start = kd.block_idx()[0] // config.peers
        self.step = kd.grid_dim()[0] // config.peers
        self.first = kd.cluster_rank() * config.own_channels if config.peers > 1 else 0

    def prefetch(self) -> None:
        """Bring tensor maps to the TMA unit's cache. Threads: one."""
        self.load.prefetch()
        self.filters.prefetch()

    def tile(self, item: Any) -> tuple[Any, tuple[Any, Any, Any]]:
        """Which filters, and image, row and column of the first result: tiles of the same pixels
        are neighbours."""
        _, down, across, parts = (0, *self.config.tiles)
        images, rows, columns, _ = self.config.window.output_tile
        rest, part = item // parts, item % parts
        line, column = rest // across, rest % across
        return part, (line // down * images, line % down * rows, column * columns)


@kd.func
def begin(block, warp):
    """Each of the first stages is brought by one thread, of another warp."""
    c = block.config
    for turn in range(c.window.stages):
        if (warp == turn % (WARPS * c.consumers)) & kd.elect_one():
            bring(block, kd.as_scalar(turn))


@kd.func
def bring(block, turn):
    """Start copying a turn's channels, of input and filters, to its stage, if there is such a turn.

    Turns go through the channels of one tile after the other.
    """
    c, stages = block.config.window, block.config.stages
    item = block.start + turn // stages * block.step
    if item < block.total:
        part, (image, row, column) = block.tile(item)
        channel = block.first + turn % stages * c.channels
        stage, full = block.ring.expect(turn, block.load.bytes + block.filters.bytes)
        place = (
            image, row * c.stride[0] - c.padding[0], column * c.stride[1] - c.padding[1], channel
        )  # fmt: skip
        block.load(block.images[..., stage], place, full)
        block.filters.load(stage, part, channel // c.channels, 0, full)


class Worker:
    """A warp that computes: its place among the others, and all that it holds."""

    def __init__(self, block: Block, rows: DepthwiseRows, results: Results, warp: Any) -> None:
        c, self.block = block.config, block
        self.rows, self.results, self.lane = rows, results, kd.lane_idx()
        self.part, self.shared, thread = 0, None, kd.thread_rank() % GROUP
        if c.parts > 1:
            self.part = kd.warp_uniform(warp // (WARPS * c.groups))
        if c.shares > 1:
            self.shared = SharedSums(c, rows.warp // WARPS, self.part, thread)
        dtype = block.images.dtype
        self.mma = kd.tiled_mma(kd.atoms.wgmma(c.filters, dtype, a_from="registers"), warps=(1, 1))
        view = self.mma.get_slice(thread)
        tiles = [block.filters.shared.tile((c.filters, DEPTH), (0, k)) for k in range(c.steps)]
        self.filters = [view.partition_B(tile) for tile in tiles]
        each = range(c.window.rows)
        self.fragments = [self.mma.make_fragment_A((64, DEPTH)) for _ in each]
        self.sums = [self.mma.make_fragment_C((64, c.filters)) for _ in each]

    def init(self) -> None:
        """Initialise the cluster's barriers. Threads: one."""
        if self.shared is not None:
            self.shared.init()

    def first_stage(self, turn: Any) -> Any:
        """The part's first stage of a tile whose first turn is `turn`; parts take turns."""
        parts = self.block.config.parts
        return (self.part + parts - turn % parts) % parts if parts > 1 else 0

    @kd.func
    def multiply(self, turn, first, previous):
        """Add the products of a turn's stage, whose channels begin with `first`.

        The turn before, if `previous` is one, is released once its products are done.
        """
        stage = self.block.ring.wait(turn)
        self.rows.begin(stage, first)
        for step, filters in enumerate(self.filters):
            self.rows.compute(stage, first, step)
            kd.wgmma_wait(0)  # the fragments are free
            self.rows.put(self.fragments)
            kd.wgmma_fence()
            for fragment, sums in zip(self.fragments, self.sums, strict=True):
                kd.gemm(self.mma, fragment, filters[..., stage], sums)
            kd.wgmma_commit()
            if step == 0:
                self.release(previous)

    @kd.func
    def release(self, turn):
        """Give the stage of a turn free, whose products are done; none where it is negative."""
        if (self.lane == 0) & (turn >= 0):
            release(self.block.ring, turn, partial(bring, self.block))

    def write(self, item: Any) -> None:
        """Write the results of a tile, or this warp's share of them."""
        c = self.block.config
        part, origin = self.block.tile(item)
        column, sums = part * c.filters, [held[None, 0, 0] for held in self.sums]
        if self.shared is not None:
            column = column + self.shared.share * c.width
            sums = self.shared.add(self.sums)
        self.results.write(sums, origin, column)


@kd.func
def compute(worker):
    """Each part's warp groups multiply their share of every tile's channels, and write results."""
    block, c = worker.block, worker.block.config
    turn = kd.as_scalar(0)  # the first one of the tile
    for item in kd.range(block.start, block.total, block.step):
        for sums in worker.sums:
            sums.fill(0.0)
        previous = kd.as_scalar(-1)
        for k in kd.range(worker.first_stage(turn), c.stages, c.parts):
            worker.multiply(turn + k, block.first + k * c.window.channels, previous)
            previous = turn + k
        kd.wgmma_wait(0)
        kd.sync_warp()
        worker.release(previous)
        turn = turn + c.stages
        worker.write(item)
    worker.results.finish()
