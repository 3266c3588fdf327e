"""Block barriers (`bar.sync`, `bar.arrive`) and synchronisation of lanes within a warp."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.groups import LANES

NUMBERS = 16


class Barriers:
    """The sixteen barriers of each block of a batch.

    A barrier completes when the warps it expects have arrived; those that wait learn the clocks
    of all that arrived. `expected` is 0 while nobody has arrived. `came` are the epochs that ended
    with the arrivals of this phase, `_before` with those of the last complete one.
    """

    def __init__(self, batch: Batch) -> None:
        blocks, warps = batch.blocks.size, batch.warps_per_block
        self._batch = batch
        self.arrived = np.zeros((blocks, NUMBERS, warps), bool)
        self.waiting = np.zeros((blocks, NUMBERS, warps), bool)
        self.expected = np.zeros((blocks, NUMBERS), np.int64)
        self.pc = np.zeros((blocks, NUMBERS, warps), np.int64)
        self.came = np.zeros((blocks, NUMBERS, warps), np.int64)
        self._before = np.zeros((blocks, NUMBERS, warps), np.int64)
        self._whole_block = np.zeros((blocks, NUMBERS), bool)
        self._clock = batch.clocks.table(blocks * NUMBERS)
        self._idle = True

    def needed(self, index: Array, threads: int | None) -> Array:
        """How many warps the barrier of each of the warps waits for; None means all that live."""
        if threads is not None:
            return np.full(index.size, max(threads // LANES, 1))
        return self._live_warps()[self._batch.block_of[index]]

    def _live_warps(self) -> Array:
        batch = self._batch
        live = batch.alive.any(axis=1).reshape(batch.blocks.size, batch.warps_per_block)
        return np.asarray(live.sum(axis=1))

    def arrive(self, index: Array, number: int, threads: int | None, wait: bool, pc: int) -> Array:
        """Warps `index` arrive; gives the warps that a completed barrier sets free.

        With `wait` they wait as well, and are among those set free when the barrier completes.
        """
        batch = self._batch
        need = self.needed(index, threads)
        if wait and self._idle and index.size == batch.rows and need[0] == batch.warps_per_block:
            batch.clocks.join_blocks(np.arange(batch.blocks.size))
            return index
        blocks, local = batch.block_of[index], batch.local[index]
        unseen = wait and self._idle and not batch.clocks.kept
        if unseen and (np.bincount(blocks)[blocks] == need).all():  # they come all at once
            return index
        self._idle = False
        batch.clocks.tick(index)
        self._clock.add(blocks * NUMBERS + number, batch.clocks.past[index])
        self.arrived[blocks, number, local] = True
        self.came[blocks, number, local] = batch.clocks.epoch[index] - 1
        self.waiting[blocks, number, local] |= wait
        self.expected[blocks, number] = need
        self._whole_block[blocks, number] = threads is None
        self.pc[blocks, number, local] = pc
        return self.complete(np.unique(blocks), number)

    def warps_ended(self) -> Array:
        """Barriers of whole blocks wait for living warps only; gives the warps set free."""
        if self._idle:
            return np.zeros(0, np.int64)
        live = np.broadcast_to(self._live_warps()[:, None], self.expected.shape)
        shrunk = self._whole_block & (self.expected > live)
        self.expected = np.where(shrunk, live, self.expected)
        freed = [self.complete(np.nonzero(shrunk[:, k])[0], k) for k in range(NUMBERS)]
        return np.concatenate(freed)

    def complete(self, blocks: Array, number: int) -> Array:
        """Complete the barrier in those of `blocks` where all have come; gives the warps freed."""
        batch = self._batch
        counts = self.arrived[blocks, number].sum(axis=1)
        done = blocks[(counts >= self.expected[blocks, number]) & (counts > 0)]
        if not done.size:
            return np.zeros(0, np.int64)
        where, local = np.nonzero(self.waiting[done, number])
        free = done[where] * batch.warps_per_block + local
        batch.clocks.join(free, self._clock.rows[done[where] * NUMBERS + number])
        self._before[done, number] = np.where(
            self.arrived[done, number], self.came[done, number], 0
        )
        self.arrived[done, number] = False
        self.waiting[done, number] = False
        self.expected[done, number] = 0
        self._clock.rows[done * NUMBERS + number] = 0
        self._idle = not self.arrived.any()
        return np.asarray(free)

    def overfull(self, index: Array, number: int, threads: int | None) -> Array:
        """Which of the warps would be more than the barrier counts, if all arrived, bool (W,)."""
        blocks = self._batch.block_of[index]
        fresh = ~self.already_arrived(index, number)
        now = np.bincount(blocks[fresh], minlength=self.arrived.shape[0])
        total = self.arrived[:, number].sum(axis=1) + now
        return np.asarray(np.greater(total[blocks], self.needed(index, threads)))

    def already_arrived(self, index: Array, number: int) -> Array:
        """Which of the warps have arrived in this phase before, bool (W,)."""
        batch = self._batch
        return np.asarray(self.arrived[batch.block_of[index], number, batch.local[index]])

    def overtaking(self, index: Array, number: int) -> Array:
        """Which of the warps nothing orders behind all arrivals of the phase before, bool (W,).

        In another run such a warp arrives early enough to be one of that phase.
        """
        batch, clocks = self._batch, self._batch.clocks
        size, block = batch.warps_per_block, batch.block_of[index]
        warps = block[:, None] * size + np.arange(size)
        late = ~clocks.has_reached(index, warps, self._before[block, number])
        late[np.arange(index.size), batch.local[index]] = False
        return np.asarray(late.any(axis=1))

    def expected_elsewhere(self, index: Array, number: int) -> Array:
        """How many warps those who came before expect, (W,); 0 where nobody came."""
        return np.asarray(self.expected[self._batch.block_of[index], number])


class LaneSync:
    """Lanes of warps that wait at `bar.warp.sync` for other lanes of their warp."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.here = np.zeros((batch.rows, LANES), bool)
        self.any_waiting = False

    def arrive(self, index: Array, lanes: Array, mask: Array) -> Array:
        """Lanes, bool (W, 32), arrive and name others; gives the warps that go on, bool (W,)."""
        self.here[index] |= lanes
        alive = self._batch.alive[index]
        go_on = ~(mask & alive & ~self.here[index]).any(axis=1)
        done = index[go_on]
        self.here[done] = False
        self._batch.clocks.tick(done)
        return np.asarray(go_on)
