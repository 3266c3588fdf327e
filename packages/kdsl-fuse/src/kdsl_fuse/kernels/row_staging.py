"""Rows in shared memory: the copy engine brings them, threads read them there in each phase."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd

_POLICIES = {"cs": "evict_first"} | {x: x for x in ("evict_first", "evict_last")}  # of L2, by what
# loads say


class Stage:
    """A block's part of a row of each input, from the first phase to the results.

    The part is copied in turns, each with an mbarrier, so that the first phase begins when the
    first turn has come. Blocks that share a multiprocessor are at different steps: the copies of
    one are under way while another computes.

    Threads: the whole block.
    """

    def __init__(self, operands: Any, share: Any) -> None:
        c = share.config
        self.inputs, self.chunk = operands.inputs, c.chunk
        self.buffers = [
            kd.smem(x.dtype, c.staged * c.chunk, align=128, name=f"row{i}")
            for i, x in enumerate(self.inputs)
        ]
        self.arrived = kd.mbarrier(count=c.staged, name="arrived")

    @kd.func
    def copy(self, share):
        """Start copying; the block may wait afterwards."""
        if kd.thread_rank() == 0:
            self.arrived.init()
            kd.fence_mbarrier_init()
            for turn in range(share.config.staged):
                self._copy(share, turn)
        kd.sync_threads()

    @kd.func
    def _copy(self, share, turn):
        part, barrier = turn * share.config.cluster + kd.cluster_rank(), self.arrived[turn]
        left = kd.as_scalar(share.columns - part * self.chunk)
        size = kd.minimum(kd.maximum(left, 0), self.chunk)
        expected = sum(x.dtype.bytes for x in self.inputs)
        barrier.arrive_expect(size * expected)
        policy = _POLICIES.get(share.config.load)
        if size > 0:
            for x, buffer in zip(self.inputs, self.buffers, strict=True):
                source = x[(share.rows[0], None)].tile((self.chunk,), (part,))
                there = buffer.tile((self.chunk,), (turn,))
                count = size.assume_divisible(16 // x.dtype.bytes)
                kd.bulk_load(source, there, count, barrier, cache=policy)

    def read(self, row: Any, share: Any) -> list[list[list[Any]]]:
        """Vectors of each input, of a turn that has come: later waits are over at once."""
        self.arrived[share.turn].wait(0)
        return [self._vector(row, v, share) for v in range(share.config.vectors)]

    def _vector(self, row: Any, v: int, share: Any) -> list[list[Any]]:
        c, inside = share.config, share.inside(row, v)
        place = share.turn * c.chunk + (v * c.lanes + share.lane) * c.width
        return [list(x.load_vector(place, c.width, inside)) for x in self.buffers]
