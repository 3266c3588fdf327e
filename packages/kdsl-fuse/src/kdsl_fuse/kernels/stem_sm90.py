"""Convolutions of images with few channels on Hopper: fragments straight from the images' lines.

A row of a window is one run of memory. Lines of the images lie in shared memory as they are, with
zeros around them (TMA), and a thread's part of `wgmma`'s A, pairs of neighbours, is read from where
its pixel's window starts. Filters stay in shared memory, padded to the runs of 8 that A has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP

RUN = 8  # elements of a row of A that four threads share
STEP = 16  # of an instruction's K
UNIT = 8  # elements that TMA counts starts in
ROWS = 64  # pixels of an instruction
PIECE = 256  # elements of a box of TMA
SPAN = 64  # elements of a swizzled line


@dataclass(frozen=True)
class StemConfig:
    """How blocks compute, and the geometry that they are built for.

    `tile` is (pixels, filters); `lines` of `pitch` elements go to one of the `stages` of a ring.
    `channels` are those of a pixel; pairs are along (height, width).
    """

    tile: tuple[int, int]
    consumers: int
    stages: int
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    lines: int
    pitch: int

    @classmethod
    def of(
        cls, problem: ConvProblem, blocks: int = 2, consumers: int = 4, stages: int = 4
    ) -> StemConfig:
        """The configuration whose warp groups take `blocks` times 64 pixels of a tile."""
        p, pixels = problem, ROWS * blocks * consumers
        rows = (pixels + p.output[1] - 2) // p.output[1] + 1  # of results that a tile touches
        lines = (min(rows, p.output[0]) - 1) * p.stride[0] + p.kernel[0]
        before = -(-p.padding[1] * p.channels // UNIT) * UNIT
        last = (p.output[1] - 1) * p.stride[1] * p.channels
        line = before + last + runs_of(p) * RUN
        piece = PIECE if line > PIECE else SPAN
        return cls(
            (pixels, -(-p.filters // UNIT) * UNIT), consumers, stages, p.channels, p.kernel,
            p.stride, p.padding, lines, -(-line // piece) * piece,
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers, and a warp that loads lines."""
        return self.consumers * GROUP + WARP

    @property
    def before(self) -> int:
        """Elements of a line in front of the image's first one."""
        return -(-self.padding[1] * self.channels // UNIT) * UNIT

    @property
    def lead(self) -> int:
        """Elements in front of a window that make its start even."""
        return self.padding[1] * self.channels % 2

    @property
    def width(self) -> int:
        """Elements of a row of a window, with those in front."""
        return self.lead + self.kernel[1] * self.channels

    @property
    def runs(self) -> int:
        """Runs of 8 elements of a row of a window."""
        return -(-self.width // RUN)

    @property
    def steps(self) -> int:
        """Instructions for the K of a window."""
        return -(-self.kernel[0] * self.runs * RUN // STEP)

    @property
    def shared_bytes(self) -> int:
        """Shared memory for lines and filters; results take about 16 KiB a warp group."""
        depth = -(-self.steps * STEP // SPAN) * SPAN
        return 2 * (self.stages * self.lines * self.pitch + self.tile[1] * depth)


def runs_of(problem: ConvProblem) -> int:
    """Runs of 8 elements of a row of a window, at most."""
    return -(-(1 + problem.kernel[1] * problem.channels) // RUN)


@kd.kernel(min_blocks_per_sm=1)
def stem_sm90(
    X: kd.Tensor["f16|bf16", "n h d"],
    W: kd.Tensor["=X", "k t"],
    C: kd.Tensor,
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    columns: kd.Static,
    outputs: kd.Static = 1,
):
    """C = epilogue(windows of X · Wᵀ, extras…): (pixels of an image, filters, images).

    Images are (n, h, width · channels), filters (k, rows · columns · channels); `columns` are the
    pixels of a row of the result. Extras lie like C, broadcast by strides of 0; with several
    `outputs` the epilogue gives a tuple, and the extras begin with those after C.
    """
    tile_m, tile_n = config.tile
    lines = kd.smem(
        X.dtype, kd.Layout((1, 1, config.pitch, config.lines, config.stages),
                           (0, 0, 1, config.pitch, config.pitch * config.lines)), name="lines",
    )  # fmt: skip
    box = kd.tma_load(X, lines[..., 0, 0], (1, 1, config.pitch))
    depth = -(-config.steps * STEP // SPAN) * SPAN
    filters = kd.smem(W.dtype, kd.atoms.shared_operand(W.dtype, (tile_n, depth)), name="filters")
    ring = kd.collective.TmaPipeline(
        config.stages, config.lines * box.bytes, config.consumers * (GROUP // WARP)
    )
    work = kd.collective.TileScheduler(
        (kd.ceil_div(C.shape[0], tile_m), 1), 1, batches=C.shape[2], group=1
    )
    results, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    group = kd.collective.WarpGroup.of_thread(config.consumers)
    out = kd.collective.TileOutput(
        results, (tile_m, tile_n), group, epilogue, extras, accumulator=kd.f32
    )
    if kd.thread_rank() == config.threads - 1:
        box.prefetch()
        ring.init()
        kd.fence_mbarrier_init()
    kd.wait_for_dependencies()
    kd.launch_dependents()
    if group.number < config.consumers:
        keep_filters(config, W, filters)
    kd.sync_threads()
    if group.number == config.consumers:
        load_lines(config, box, lines, ring.writer(), work, columns)
    else:
        consume(Windows(config, lines, columns, C.shape[0]), filters, ring, work, group, out)


@kd.func
def keep_filters(config, W, filters):
    """Copy all filters to shared memory, their rows in runs of 8 with zeros around."""
    tile_n, per_filter = config.tile[1], kd.size(filters.layout) // config.tile[1] // RUN
    threads = config.consumers * GROUP
    for turn in range(-(-tile_n * per_filter // threads)):
        vector = kd.thread_rank() + turn * threads
        number, run = vector // per_filter, vector % per_filter
        if number < tile_n:
            filters.store_vector((number, run * RUN, 0), run_of(config, W, number, run))
    kd.fence_proxy_async()


def run_of(config, W, number, run):
    """A run of a filter: 8 elements, those in front of a row and behind it zero."""
    row, first = run // config.runs, run % config.runs * RUN - config.lead
    width, values = config.width - config.lead, []
    exists = (row < config.kernel[0]) & (number < W.shape[0])
    for at in (first + i for i in range(RUN)):
        inside = exists & (at >= 0) & (at < width)
        values.append(W.load((number, row * width + at), pred=inside))
    return values


@kd.func
def load_lines(config, box, lines, ring, work, columns):
    """One thread copies the lines of each tile to the ring, zeros where there are none."""
    if kd.elect_one():
        for item in kd.range(work.first, work.total, work.step):
            tile = work.at(item)
            stage, full = ring.acquire()
            top = tile.m * config.tile[0] // columns * config.stride[0] - config.padding[0]
            for line in range(config.lines):
                at = tile.batch, top + line, -config.before
                box(lines[..., line, stage], at, full)
            ring.advance()
        ring.drain()


class Windows:
    """A thread's fragments of A, read from lines in shared memory."""

    def __init__(self, config: StemConfig, lines: kd.Tensor, columns: int, pixels: Any) -> None:
        self.config, self.lines, self.columns, self.pixels = config, lines, columns, pixels
        atom = kd.atoms.wgmma(config.tile[1], lines.dtype, a_from="registers")
        self.mma = kd.tiled_mma(atom, warps=(1, 1))
        self.steps = [self.mma.make_fragment_A((ROWS, STEP)) for _ in range(config.steps)]
        thread = kd.thread_rank() % GROUP
        self.row = 16 * (thread // WARP) + thread % WARP // 4
        self.pair = 2 * (thread % 4)

    def read(self, stage: Any, tile: Any, block: Any) -> None:
        """Read the fragments of 64 pixels, number `block` of the tile."""
        config, origin = self.config, tile.m * self.config.tile[0]
        first = origin // self.columns
        for half in range(2):
            pixel = kd.minimum(origin + block * ROWS + self.row + 8 * half, self.pixels - 1)
            down, across = pixel // self.columns - first, pixel % self.columns
            start = across * (config.stride[1] * config.channels) + self.pair
            place = self.lines.layout((0, 0, start, down * config.stride[0], stage))
            for run in range(2 * config.steps):
                self._read_run(run, half, place)

    def _read_run(self, run: int, half: int, place: Any) -> None:
        """Two neighbours of run number `run` of the pixel's window."""
        config = self.config
        row, part = divmod(run, config.runs)
        fragment = self.steps[run // 2].with_layout(kd.Layout(2), 2 * (half + 2 * (run % 2)))
        if row >= config.kernel[0]:
            fragment[0] = fragment[1] = 0
            return
        skipped = config.before - config.padding[1] * config.channels - config.lead
        offset = row * config.pitch + part * RUN + skipped
        source = self.lines.with_layout(kd.Layout(2), place + offset)
        first, last = part * RUN, part * RUN + RUN
        within = None if last <= config.width else first + self.pair < config.width
        kd.copy(source, fragment, pred=within)
        if first < config.lead:
            fragment[0] = kd.where(self.pair < config.lead, 0, fragment[0])
        if last > config.width and config.width % 2:
            fragment[1] = kd.where(first + self.pair + 1 < config.width, fragment[1], 0)


@kd.func
def consume(windows, filters, ring, work, group, out):
    """A warp group computes its share of 64 pixels at a time of every tile."""
    config, mma = windows.config, windows.mma
    view = mma.get_slice(group.thread)
    tiles = [filters.tile((config.tile[1], STEP), (0, k)) for k in range(config.steps)]
    parts = [view.partition_B(tile)[..., 0] for tile in tiles]
    acc = mma.make_fragment_C((ROWS, config.tile[1]))
    read = ring.reader()
    blocks = config.tile[0] // (ROWS * config.consumers)
    for item in kd.range(work.first, work.total, work.step):
        tile = work.at(item)
        stage = read.wait()
        for turn in kd.range(blocks):
            block = turn * config.consumers + group.number
            windows.read(stage, tile, block)
            if turn == blocks - 1:
                kd.fence_proxy_async()  # loads must have ended before TMA overwrites what they read
                kd.sync_warp()
                read.release(kd.lane_idx())
            kd.wgmma_fence()
            for k in range(config.steps):
                kd.gemm(mma, windows.steps[k], parts[k], acc, accumulate=k > 0)
            kd.wgmma_commit()
            kd.wgmma_wait(0)
            out.stage.store(
                acc[None, 0, 0], (tile.m * config.tile[0] + block * ROWS, 0), tile.batch
            )
    out.finish()
