"""Registers that warps give back to their block and ask for again (`setmaxnreg`)."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.clocks import GROUP_WARPS


class RegisterPool:
    """Registers of a thread, warp by warp, and what each block has left to hand out.

    `held` (rows,) is what the threads of a warp may use, `spare` (blocks,) the sum over warps of
    what was given back and not taken since, `wanted` (rows,) what a warp asked for last, `changes`
    (rows,) how often a warp changed its share, `pc` the instruction that did so last.
    """

    def __init__(self, batch: Batch, at_entry: int) -> None:
        self._batch = batch
        self.held = np.full(batch.rows, at_entry, np.int64)
        self.spare = np.zeros(batch.blocks.size, np.int64)
        self.wanted = np.zeros(batch.rows, np.int64)
        self.changes = np.zeros(batch.rows, np.int64)
        self.waiting = np.zeros(batch.rows, bool)
        self.pc = 0

    def change(self, index: Array, count: int, pc: int) -> Array:
        """Warps are to have `count` registers a thread; gives those that have, bool (W,)."""
        self.pc = pc
        go_on = np.ones(index.size, bool)
        self.wanted[index] = count
        for at, row in enumerate(index.tolist()):
            block, more = self._batch.block_of[row], count - self.held[row]
            go_on[at] = more <= self.spare[block]
            if go_on[at]:
                self.spare[block] -= more
                self.held[row] = count
                self.changes[row] += 1
        self.waiting[index] = ~go_on
        return go_on

    def hopeful(self) -> Array:
        """Warps that wait and that their block's spare registers would now suffice."""
        rows = np.nonzero(self.waiting)[0]
        return rows[self.wanted[rows] - self.held[rows] <= self.spare[self._batch.block_of[rows]]]

    def alone(self, index: Array) -> Array:
        """Which of the warps are in a warp group of fewer than four, bool (W,)."""
        warp = self._batch.local[index] % self._batch.warps_per_block
        whole = self._batch.warps_per_block // GROUP_WARPS * GROUP_WARPS
        return np.asarray(warp >= whole)

    def uneven(self, blocks: Array) -> Array:
        """Warps of ended blocks that changed their share more often than others of their group."""
        if not self.changes.any():
            return np.zeros(0, np.int64)
        batch = self._batch
        group = batch.block_of * batch.warps_per_block + batch.local // GROUP_WARPS
        least = np.full(batch.rows, np.iinfo(np.int64).max)
        np.minimum.at(least, group, self.changes)
        return np.nonzero((self.changes > least[group]) & np.isin(batch.block_of, blocks))[0]
