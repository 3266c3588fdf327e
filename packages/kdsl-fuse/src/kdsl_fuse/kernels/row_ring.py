"""Rows on their way through shared memory: a warp has them copied, the others read them there."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.collective.pipeline import RingPosition, TmaPipeline
from kdsl_fuse.kernels.row_exchange import WARP

_POLICIES = {"cs": "evict_first"}  # of the L2 cache, for a cache operator of loads


class Ring:
    """A block's parts of its rows, in turns of `chunk` columns, each with a stage of a ring.

    The last warp copies turn after turn, row after row, as far ahead as stages are free; the other
    warps give a stage back when they have read it for the last time. So copies are under way while
    rows are reduced and written.

    Memory: `ring` stages of each input.
    """

    def __init__(self, operands: Any, share: Any) -> None:
        c = share.config
        self.inputs, self.config = operands.inputs, c
        self.buffers = [
            kd.smem(x.dtype, c.ring * c.chunk, align=128, name=f"row{i}")
            for i, x in enumerate(self.inputs)
        ]
        self.pipeline = TmaPipeline(c.ring, 0, c.lanes // WARP)

    def init(self) -> None:
        """Initialise the barriers. Threads: one."""
        self.pipeline.init()

    @kd.func
    def fill(self, share):
        """Copy all rows of the block. Threads: one warp."""
        writer = self.pipeline.writer()
        if kd.elect_one():
            for row in share.all_rows():
                for turn in kd.range(0, share.turns):
                    self._copy(writer, row, share.at(row, turn))

    @kd.func
    def _copy(self, writer, row, share):
        c, size = self.config, self.config.chunk
        part = share.turn * c.cluster + kd.cluster_rank()
        if c.ragged:
            size = kd.minimum(kd.maximum(kd.as_scalar(share.columns - part * c.chunk), 0), size)
        stage, barrier = writer.acquire(size * sum(x.dtype.bytes for x in self.inputs))
        policy = _POLICIES.get(c.load)
        if size > 0:
            for x, buffer in zip(self.inputs, self.buffers, strict=True):
                source = x[(row, None)].tile((c.chunk,), (part,))
                there = buffer.tile((c.chunk,), (stage,))
                count = kd.as_scalar(size).assume_divisible(16 // x.dtype.bytes)
                kd.bulk_load(source, there, count, barrier, cache=policy)
        writer.advance()

    def reader(self) -> Reader:
        """What the reading warps see. Threads: they alone."""
        return Reader(self)


class Reader:
    """The turns of a row, read once for each phase and for the results.

    Threads: all but those of the last warp.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring, self.stages = ring, ring.pipeline.reader()
        self.first = self.last = False
        self.again: Any = None

    def begin(self, first: bool, last: bool) -> None:
        """Begin to read a row from its first turn: for the first time, for the last."""
        self.first, self.last = first, last
        if not (first or last):
            held = self.stages.oldest
            self.again = RingPosition(held.stages, held.index, held.parity)

    def read(self, row: Any, share: Any) -> list[list[list[Any]]]:
        """Vectors of each input in the next turn."""
        c = share.config
        if self.first:
            stage = self.stages.wait()
        elif self.last:
            stage = self.stages.oldest.stage
        else:
            stage = self.again.stage
            self.again.advance()
        places = [stage * c.chunk + (v * c.lanes + share.lane) * c.width for v in range(c.vectors)]
        found = [
            [list(x.load_vector(place, c.width, share.reaches(v))) for x in self.ring.buffers]
            for v, place in enumerate(places)
        ]
        if self.last:
            if c.early:
                kd.fence_proxy_async()
            kd.sync_warp()
            self.stages.release(kd.lane_idx())
        return found
