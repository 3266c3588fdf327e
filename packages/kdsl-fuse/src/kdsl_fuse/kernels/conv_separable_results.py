"""Results of a fused separable convolution on their way out: added up, and written by TMA."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.collective.slab_store import Meeting
from kdsl_fuse.kernels.conv_depthwise_config import STRIP
from kdsl_fuse.kernels.conv_depthwise_sm90 import flat
from kdsl_fuse.kernels.conv_separable_config import DEPTH, EIGHT
from kdsl_fuse.kernels.conv_separable_rows import Numbers
from kdsl_fuse.kernels.gemm_sm90_config import GROUP
from kdsl_fuse.kernels.vectors import neighbours


class SharedSums:
    """Sums of parts of the channels, added up by those who have the parts, each a share of columns.

    All have the same results in the same threads, so that a slab is read as it was written.

    Threads: all warp groups of one number, in all parts of all blocks of the cluster.
    Memory: f32 for all sums; named barriers 1 + group.
    """

    def __init__(self, config: Any, group: Any, part: Any, thread: Any) -> None:
        c = self.config = config
        self.group, self.part, self.thread = group, part, thread
        self.slab = kd.smem(kd.f32, c.slab_layout(), name="sums")
        self.barrier = kd.named_barrier(1 + group, GROUP * c.parts)
        self.meeting = None
        self.share = part
        if c.peers > 1:
            self.share = kd.cluster_rank() * c.parts + part
            self.meeting = Meeting(c.peers, c.groups, group, part * GROUP + thread)
        self.total = kd.rmem(kd.f32, kd.Layout((4 * c.width // EIGHT, c.window.rows)), name="total")

    def init(self) -> None:
        """Initialise the cluster's barriers. Threads: one, before a barrier of the cluster."""
        if self.meeting is not None:
            self.meeting.all.init()

    def add(self, sums: list[kd.Tensor]) -> list[kd.Tensor]:
        """The sums of this share's columns, over all parts: in a fixed order."""
        c = self.config
        self._meet(0)
        for o, held in enumerate(sums):
            for eight in range(c.filters // EIGHT):
                place = 0, self.thread, o, eight, self.group, self.part
                self.slab.store_vector(place, [held[4 * eight + i, 0, 0] for i in range(4)])
        self._meet(1)
        own = c.width // EIGHT
        for o in range(c.window.rows):
            for eight in range(own):
                for i, value in enumerate(self._sum(o, self.share * own + eight)):
                    self.total[4 * eight + i, o] = value
        return [self.total[None, o] for o in range(c.window.rows)]

    def _sum(self, o: int, eight: Any) -> list[Any]:
        """Four sums over all parts and blocks."""
        c, found = self.config, []
        for rank in range(c.peers):
            slab = self.slab if c.peers == 1 else kd.peer(self.slab, rank)
            for part in range(c.parts):
                place = 0, self.thread, o, eight, self.group, part
                values = slab.load_vector(place, 4)
                found = [a + b for a, b in zip(found, values, strict=True)] if found else values
        return found

    def _meet(self, turn: int) -> None:
        """Wait for everyone who reads or writes these slabs."""
        self.barrier.sync()
        if self.meeting is not None:
            self.meeting.wait(turn)


class Results:
    """Writes a warp's two strips: function(sums, extras…), through shared memory, by TMA.

    Shapes: extras are like the output Y (n, p, q, k), broadcast by strides of 0; those that are the
    same for all pixels wait in shared memory.
    Threads: a converged warp, number `warp` of the block.
    Memory: a buffer for each warp, which is written again when its stores have read it.
    """

    def __init__(self, config: Any, y: kd.Tensor, function: Any, extras: Any, warp: Any) -> None:
        c = self.config = config
        self.y, self.function = y, function
        self.extras = {i: x for i, x in enumerate(extras) if not same_everywhere(x)}
        self.fixed = {i: x for i, x in enumerate(extras) if same_everywhere(x)}
        filters = config.filters * config.tiles[2]
        self.numbers = Numbers(self.fixed.values(), 0, filters, "numbers of filters")
        self.warp, self.unit, self.lane = warp, config.unit(warp), kd.lane_idx()
        self.stage = kd.smem(y.dtype, c.output_layout(), name="results")
        self.buffer = flat(self.stage)
        box = (1, c.window.rows, STRIP, c.chunk)
        self.store = kd.tma_store(y, self.stage[..., 0, 0, 0], box)

    def _start(self, column: int) -> Any:
        """Where the lane's eight neighbours of a matrix store lie, for columns `column` …"""
        c, lane = self.config, self.lane
        chunk, within = divmod(column, c.chunk)
        place = lane % STRIP * c.chunk + within + lane // 16 * EIGHT
        if c.swizzle is not None:
            place = c.swizzle(place)
        half = c.window.rows * STRIP * c.chunk
        chunks = c.width // c.chunk
        return ((self.warp * chunks + chunk) * 2 + lane // 8 % 2) * half + place

    @kd.func
    def write(self, sums, origin, column):
        """Write the strips of the tile at `origin` (image, row, column): filters `column` …"""
        c = self.config
        places = [
            tuple(a + b for a, b in zip(origin, c.window.strip(2 * self.unit + half), strict=True))
            for half in range(2)
        ]
        if self.lane == 0:
            kd.tma_store_wait(0)
        kd.sync_warp()
        upcoming = self._fetch(places, column, 0, 0)
        for first in range(0, c.width, DEPTH):
            fixed = [self._fixed(column + eight) for eight in self._eights(first)]
            for o in range(c.window.rows):
                fetched = upcoming
                upcoming = self._fetch(places, column, *self._following(first, o))
                self._keep(sums[o], fixed, fetched, first, o)
        kd.fence_proxy_async()
        kd.sync_warp()
        if self.lane == 0:
            self._send(places, column)
            kd.tma_store_commit()

    def _following(self, first: int, o: int) -> tuple[int, int]:
        """What comes behind row o of columns `first` …"""
        return (first, o + 1) if o + 1 < self.config.window.rows else (first + DEPTH, 0)

    def _eights(self, first: int) -> range:
        """Where each eight of up to sixteen columns begins."""
        return range(first, min(first + DEPTH, self.config.width), EIGHT)

    def _fixed(self, column: Any) -> dict[int, list[Any]]:
        """The lane's two numbers of eight columns, of the extras that are the same everywhere."""
        found = self.numbers.at(column + 2 * (self.lane % 4))
        return dict(zip(self.fixed, found, strict=True))

    def _fetch(self, places: Any, column: Any, first: int, o: int) -> list[dict[int, list[Any]]]:
        """The other extras at the lane's pixels, of each eight of up to sixteen columns of a row.

        To be called some time before they are used, as memory takes its time.
        """
        return [
            {i: self._extra(x, place, o, column + eight) for i, x in self.extras.items()}
            for eight in self._eights(first)
            for place in places
        ]

    def _extra(self, extra: Any, at: Any, o: int, column: Any) -> list[Any]:
        """The lane's two columns of an extra at a pixel."""
        place = at[0], at[1] + o, at[2] + self.lane // 4, column + 2 * (self.lane % 4)
        inside = kd.as_scalar(place[3] < self.y.shape[3])
        for mode in range(3):
            inside = inside & (place[mode] < self.y.shape[mode])
        return neighbours(extra, place, 3, 2, inside)

    def _keep(self, sums: kd.Tensor, fixed: Any, fetched: Any, first: int, o: int) -> None:
        """Compute up to sixteen columns of a row, and store them to the warp's buffer."""
        count = 2 * len(fetched)
        results, rounded = kd.rmem(kd.f32, count), kd.rmem(self.y.dtype, count)
        for i in range(count):
            own = fixed[i // 4] | fetched[i // 2]
            operands = [own[number][i % 2] for number in sorted(own)]
            results[i] = kd.as_scalar(self.function(sums[first // 2 + i], *operands))
        kd.convert_fragment(results, rounded)
        place = self._start(first) + o * STRIP * self.config.chunk
        target = self.buffer.with_layout(kd.Layout(8), place)
        kd.copy(rounded, target, atom=kd.atoms.stmatrix(count // 2))

    @kd.func
    def _send(self, places, column):
        """Send both strips. Threads: one."""
        c = self.config
        for half, place in enumerate(places):
            if 2 * self.unit + half < c.window.halves:
                for chunk in range(c.width // c.chunk):
                    at = (*place, column + chunk * c.chunk)
                    self.store(self.stage[..., chunk, half, self.warp], at)

    def finish(self) -> None:
        """Wait until shared memory has been read, before the block ends."""
        finish(self)


@kd.func
def finish(results):
    if results.lane == 0:
        kd.tma_store_wait(0)


def same_everywhere(extra: kd.Tensor) -> bool:
    """Whether an extra has the same numbers for all pixels."""
    return all(isinstance(step, int) and step == 0 for step in extra.stride[:3])
