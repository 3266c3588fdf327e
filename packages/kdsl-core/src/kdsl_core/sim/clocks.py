"""Vector clocks of warps: what each warp knows of the past of the others in its block."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array


class Clocks:
    """One vector clock per warp of a batch.

    `epoch[w]` counts the moments at which warp w published its past. `known[w, v]` is the last
    epoch of warp v (of w's block) whose accesses happened before what w does now; `known[w, w]`
    is `epoch[w] − 1`, because lanes of one warp are ordered only by a synchronisation as well.
    `everyone` is the least entry of `known`: accesses up to it are ordered for all.
    """

    def __init__(self, blocks: int, warps_per_block: int) -> None:
        count = blocks * warps_per_block
        self.epoch = np.ones(count, np.int64)
        self.known = np.zeros((count, warps_per_block), np.int64)
        self.local = np.arange(count) % warps_per_block
        self.block = np.arange(count) // warps_per_block
        self.everyone = 0
        self._fenced = np.zeros((count, warps_per_block), np.int64)
        self._by_atomics = np.zeros((blocks, warps_per_block), np.int64)
        self._fences = False

    @property
    def warps_per_block(self) -> int:
        """Warps of one block."""
        return int(self.known.shape[1])

    def tick(self, index: Array) -> None:
        """Publish the past of warps: later accesses belong to their next epoch."""
        self.known[index, self.local[index]] = self.epoch[index]
        self.epoch[index] += 1

    def join(self, index: Array, clock: Array) -> None:
        """Warps `index` learn `clock` (one row each)."""
        self.known[index] = np.maximum(self.known[index], clock)
        self.settle()

    def settle(self) -> None:
        """Recompute `everyone` after clocks were joined."""
        self.everyone = int(self.known.min())

    def join_blocks(self, blocks: Array) -> None:
        """All warps of each of `blocks` publish their past and learn that of the others."""
        per_block = self.warps_per_block
        index = (blocks[:, None] * per_block + np.arange(per_block)).reshape(-1)
        self.tick(index)
        rows = self.known.reshape(-1, per_block, per_block)
        rows[blocks] = rows[blocks].max(axis=1, keepdims=True)
        self.settle()

    def fence(self, index: Array) -> None:
        """What these warps did so far is released by their next atomic."""
        self.tick(index)
        self._fenced[index] = self.known[index]
        self._fences = True

    def atomic(self, index: Array) -> None:
        """Release what was fenced, and acquire what other warps of the block released."""
        if not self._fences:
            return
        blocks = self.block[index]
        np.maximum.at(self._by_atomics, blocks, self._fenced[index])
        self.join(index, self._by_atomics[blocks])
