"""mbarriers: eight bytes of shared memory that count arrivals and bytes of a phase."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.batch import SHARED_BASE, Batch
from kdsl_core.sim.clocks import UNIT_EPOCH

MOST_ARRIVALS = (1 << 20) - 1
MOST_BYTES = (1 << 20) - 1
_WORD = 8


class Mbarriers:
    """The mbarriers of a batch, numbered in the order of their initialisation.

    Of each number: `count` arrivals make a phase, of which `pending` are missing and `bytes` of
    transfers; `phase` phases are complete. `agent` is the column of the clocks that stands for its
    transfers, −1 before the first one, and `epoch` that agent's, `moved` that of its last transfer,
    which instruction `pc` started. `maker` is the row whose `lane` initialised it in its epoch
    `made`; `fenced` says that others than this block may use it, `foreign` that threads of others
    have arrived. Waiting threads learn the clocks of those who arrived when a phase completes.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._number_at = np.zeros(batch.shared.size // _WORD, np.int64)  # numbers from 1 on
        self.offset, self.count, self.pending, self.bytes, self.phase = _columns(5)
        self.agent, self.epoch, self.maker, self.made, self.fenced = _columns(5)
        self.moved, self.pc, self.foreign, self.lane = _columns(4)
        self._arriving = batch.clocks.table(0)
        self._released = batch.clocks.table(0)
        self._waiting: dict[int, set[int]] = {}

    def at(self, offset: Array) -> Array:
        """The numbers of live mbarriers at offsets into the batch's bytes (n,), −1 for none."""
        return np.asarray(self._number_at[offset // _WORD] - 1)

    def init(self, offset: Array, count: Array, row: Array, lane: Array) -> None:
        """Lanes of warps `row` make mbarriers at distinct offsets (n,)."""
        number = np.arange(self.offset.size, self.offset.size + offset.size)
        epoch = self._batch.clocks.epoch[row]
        zero = np.zeros(offset.size, np.int64)
        for name, new in (
            ("offset", offset), ("count", count), ("pending", count), ("bytes", zero),
            ("phase", zero), ("agent", zero - 1), ("epoch", zero), ("maker", row), ("made", epoch),
            ("fenced", zero), ("moved", zero), ("pc", zero), ("foreign", zero), ("lane", lane),
        ):  # fmt: skip
            setattr(self, name, np.concatenate([getattr(self, name), new]))
        self._number_at[offset // _WORD] = number + 1
        self._arriving.lengthen(self.offset.size)
        self._released.lengthen(self.offset.size)

    def invalidate(self, number: Array) -> None:
        """End the life of mbarriers."""
        self._number_at[self.offset[number] // _WORD] = 0

    def fence(self, rows: Array) -> None:
        """Warps make what they have initialised visible to the cluster and to TMA."""
        self.fenced[np.isin(self.maker, rows)] = 1

    # -- a phase -------------------------------------------------------------------------------
    def arrive(self, number: Array, count: Array) -> None:
        """Arrive `count` times at distinct mbarriers (n,)."""
        self.pending[number] -= count

    def note_blocks(self, number: Array, row: Array) -> None:
        """Warps `row` (n,), or their copies, arrive at mbarriers (n,), perhaps of other blocks."""
        far = self.block()[number] != self._batch.block_of[row]
        self.foreign[number[far]] = 1

    def learn(self, number: Array, clocks: Array) -> None:
        """Clocks (n, 4, agents) of those who arrive at mbarriers (n,), which may repeat."""
        self._arriving.add(number, clocks)

    def expect(self, number: Array, size: Array) -> None:
        """Expect more bytes in this phase; negative ones have come."""
        np.add.at(self.bytes, number, size)

    def transfer(self, number: Array, pc: int) -> None:
        """An instruction starts transfers to mbarriers: each gets an agent that stands for them."""
        self.pc[number] = pc
        self.moved[number] = self.epoch[number] + 1
        if not self._batch.clocks.kept:
            return
        fresh = np.unique(number[self.agent[number] < 0])
        if fresh.size:
            clusters = self._batch.clocks.cluster[self.maker[fresh]]
            self.agent[fresh] = self._batch.clocks.new_agents(clusters)

    def complete(self, number: Array) -> Array:
        """Complete the phases of which nothing is missing; gives these mbarriers, ascending."""
        asked = np.unique(number)
        done = asked[(self.pending[asked] == 0) & (self.bytes[asked] == 0)]
        if done.size:
            released, arriving = self._released.rows, self._arriving.rows
            self.epoch[done] += 1
            released[done] = np.maximum(released[done], arriving[done])
            arriving[done] = 0
            moved = done[self.agent[done] >= 0]
            released[moved, 0, self.agent[moved]] = self.epochs(moved)
            self.pending[done] = self.count[done]
            self.phase[done] += 1
        return np.asarray(done)

    def knows_phase(self, number: Array, row: Array) -> Array:
        """Whether warps `row` (n,) know that the transfers of the last complete phase have come."""
        agent, epoch = self.agent[number], self.epoch[number]
        silent = (agent < 0) | (epoch == 0) | (self.moved[number] < epoch)
        known = self._batch.clocks.known[row, np.maximum(agent, 0)]
        return np.asarray(silent | (known >= UNIT_EPOCH + epoch))

    def epochs(self, number: Array) -> Array:
        """The epochs that the transfers of the newest complete phases have."""
        return np.asarray(UNIT_EPOCH + self.epoch[number])

    def left(self, blocks: Array) -> Array:
        """mbarriers of ended blocks with transfers that no thread of the block has waited for."""
        batch = self._batch
        size = batch.warps_per_block
        found = []
        for number in np.nonzero((self.agent >= 0) & np.isin(self.block(), blocks))[0].tolist():
            first = int(self.block()[number]) * size
            seen = batch.clocks.known[first : first + size, self.agent[number]].max()
            flying = self.bytes[number] != 0 or self.moved[number] > self.epoch[number]
            if flying or seen < UNIT_EPOCH + self.moved[number]:
                found.append(number)
        return np.array(found, np.int64)

    def block(self) -> Array:
        """The batch's block of each mbarrier."""
        return np.asarray(self.offset // max(self._batch.shared_stride, 1))

    def of_agent(self, cluster: int, agent: int) -> int:
        """The mbarrier whose transfers a column of a cluster's clocks stands for, −1 for none."""
        mine = (self.agent == agent) & (self._batch.clocks.cluster[self.maker] == cluster)
        return int(mine.argmax()) if mine.any() else -1

    def address(self, number: int) -> int:
        """The address of an mbarrier in its block."""
        return int(self.offset[number]) % max(self._batch.shared_stride, 1) + SHARED_BASE

    # -- waiting -------------------------------------------------------------------------------
    def passed(self, number: Array, parity: Array) -> Array:
        """Whether the phase of a parity has completed, bool (n,)."""
        return np.asarray((self.phase[number] & 1) != parity)

    def acquire(self, number: Array, row: Array) -> None:
        """Warps `row` (n,), which may repeat, learn what the complete phases released."""
        if not self._batch.clocks.kept:
            return
        rows, at = np.unique(row, return_inverse=True)
        learned = np.zeros((rows.size, *self._released.rows.shape[1:]), np.int64)
        np.maximum.at(learned, at, self._released.rows[number])
        self._batch.clocks.join(rows, learned)

    def wait(self, number: Array, row: Array) -> None:
        """Warps `row` (n,) wait for phases to complete."""
        for barrier, waiter in zip(number.tolist(), row.tolist(), strict=True):
            self._waiting.setdefault(barrier, set()).add(waiter)

    def freed(self, number: Array) -> Array:
        """Warps that have waited for the phases that just completed."""
        found: set[int] = set()
        for barrier in number.tolist():
            found |= self._waiting.pop(barrier, set())
        return np.array(sorted(found), np.int64)

    def awaited(self, row: int) -> list[int]:
        """The mbarriers that a warp waits for."""
        return [barrier for barrier, rows in self._waiting.items() if row in rows]


def _columns(count: int) -> list[Array]:
    return [np.zeros(0, np.int64) for _ in range(count)]
