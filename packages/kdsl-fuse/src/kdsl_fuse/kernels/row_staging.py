"""Rows in shared memory: the copy engine brings them, threads read them there in each phase."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd

_POLICIES = {"cs": "evict_first", "evict_first": "evict_first", "evict_last": "evict_last"}  # of L2


class Chunks:
    """Places in shared memory, each for what a block takes of a row in a turn, of each input."""

    def __init__(self, operands: Any, config: Any, places: int) -> None:
        self.inputs, self.chunk, self.config = operands.inputs, config.chunk, config
        self.column_bytes = sum(x.dtype.bytes for x in self.inputs)
        self.buffers = [
            kd.smem(x.dtype, places * config.chunk, align=128, name=f"row{i}")
            for i, x in enumerate(self.inputs)
        ]

    def size(self, share: Any, part: Any) -> Any:
        """Columns of a row's chunk number `part`: fewer than others have where the row ends."""
        left = kd.as_scalar(share.columns - part * self.chunk)
        return kd.minimum(kd.maximum(left, 0), self.chunk)

    @kd.func
    def copy_chunk(self, share, part, size, place, barrier):
        """Start copying a chunk of the row; its bytes complete at the barrier. Threads: one."""
        policy = _POLICIES.get(self.config.load)
        if size > 0:
            for x, buffer in zip(self.inputs, self.buffers, strict=True):
                source = x[(share.rows[0], None)].tile((self.chunk,), (part,))
                there = buffer.tile((self.chunk,), (place,))
                count = size.assume_divisible(16 // x.dtype.bytes)
                kd.bulk_load(source, there, count, barrier, cache=policy)

    def vectors(self, row: Any, share: Any, place: Any) -> list[list[list[Any]]]:
        """A thread's vectors of each input, of a chunk that has come."""
        return [self._vector(row, v, share, place) for v in range(self.config.vectors)]

    def _vector(self, row: Any, v: int, share: Any, place: Any) -> list[list[Any]]:
        c, inside = self.config, share.inside(row, v)
        first = place * c.chunk + (v * c.lanes + share.lane) * c.width
        return [list(x.load_vector(first, c.width, inside)) for x in self.buffers]


class Stage(Chunks):
    """A block's part of a row of each input, from the first phase to the results.

    The part is copied in turns, each with an mbarrier, so that the first phase begins when the
    first turn has come. Blocks that share a multiprocessor are at different steps: the copies of
    one are under way while another computes.

    Threads: the whole block.
    """

    def __init__(self, operands: Any, share: Any) -> None:
        super().__init__(operands, share.config, share.config.staged)
        self.arrived = kd.mbarrier(count=share.config.staged, name="arrived")

    @kd.func
    def copy(self, share):
        """Start copying; the block may wait afterwards."""
        if kd.thread_rank() == 0:
            self.arrived.init()
            kd.fence_mbarrier_init()
            for turn in range(share.config.staged):
                self._copy(share, turn)
        kd.sync_threads()

    def _copy(self, share: Any, turn: int) -> None:
        part, barrier = turn * share.config.cluster + kd.cluster_rank(), self.arrived[turn]
        size = self.size(share, part)
        barrier.arrive_expect(size * self.column_bytes)
        self.copy_chunk(share, part, size, turn, barrier)

    def read(self, row: Any, share: Any) -> list[list[list[Any]]]:
        """Vectors of each input, of a turn that has come: later waits are over at once."""
        self.arrived[share.turn].wait(0, scope="cta")
        return self.vectors(row, share, share.turn)
