"""Results of a fused separable convolution on their way out: added up, and written by TMA."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.collective.slab_store import Meeting
from kdsl_fuse.kernels.conv_depthwise_config import STRIP
from kdsl_fuse.kernels.conv_depthwise_sm90 import flat
from kdsl_fuse.kernels.conv_separable_config import DEPTH, EIGHT
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

    Shapes: extras are like the output Y (n, p, q, k), broadcast by strides of 0.
    Threads: a converged warp, number `warp` of the block, `unit` among those of its part.
    Memory: a buffer for each warp, which is written again when its stores have read it.
    """

    def __init__(
        self, config: Any, y: kd.Tensor, function: Any, extras: Any, warp: Any, unit: Any
    ) -> None:
        c = self.config = config
        self.y, self.function, self.extras = y, function, list(extras)
        self.warp, self.unit, self.lane = warp, unit, kd.lane_idx()
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
            for o in range(c.window.rows):
                fetched = upcoming
                upcoming = self._fetch(places, column, *self._following(first, o))
                self._keep(sums[o], fetched, first, o)
        kd.fence_proxy_async()
        kd.sync_warp()
        if self.lane == 0:
            self._send(places, column)
            kd.tma_store_commit()

    def _following(self, first: int, o: int) -> tuple[int, int]:
        """What comes behind row o of columns `first` …"""
        return (first, o + 1) if o + 1 < self.config.window.rows else (first + DEPTH, 0)

    def _fetch(self, places: Any, column: Any, first: int, o: int) -> list[Any]:
        """The extras at the lane's results in up to sixteen columns of a row, in register order.

        To be called some time before they are used, as memory takes its time.
        """
        found = []
        for eight in range(first, min(first + DEPTH, self.config.width), EIGHT):
            for place in places:
                parts = [self._extra(x, place, o, column + eight) for x in self.extras]
                found += [[part[e] for part in parts] for e in range(2)]
        return found

    def _extra(self, extra: Any, at: Any, o: int, column: Any) -> list[Any]:
        """The lane's two columns of an extra at a pixel."""
        place = at[0], at[1] + o, at[2] + self.lane // 4, column + 2 * (self.lane % 4)
        inside = kd.as_scalar(place[3] < self.y.shape[3])
        for mode in range(3):
            if not (isinstance(extra.stride[mode], int) and extra.stride[mode] == 0):
                inside = inside & (place[mode] < self.y.shape[mode])
        return neighbours(extra, place, 3, 2, inside)

    def _keep(self, sums: kd.Tensor, fetched: list[Any], first: int, o: int) -> None:
        """Compute up to sixteen columns of a row, and store them to the warp's buffer."""
        count = len(fetched)
        results, rounded = kd.rmem(kd.f32, count), kd.rmem(self.y.dtype, count)
        for i, operands in enumerate(fetched):
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
