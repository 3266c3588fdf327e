"""Blocks begin and end: what others of the cluster do to their memory before and behind that."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.parties import tuple_text
from kdsl_core.sim.reporting import Reporter

_FIX_END = "kd.cluster_sync() as the last thing that all blocks of the cluster do"
_FIX_BEGIN = "kd.cluster_sync() before the first access to memory of another block"


class Lifetimes:
    """The last access of each warp to the shared memory of each other block of its cluster.

    Such an access must happen before a thread of the block ends, which keeps the memory alive, and
    behind something that a thread of the block did: its memory is none before the block has begun.
    A wait at the cluster's barrier tells that all blocks have, whatever else it orders.
    """

    def __init__(self, batch: Batch, reporter: Reporter) -> None:
        self._batch = batch
        self._reporter = reporter
        self._epoch = np.zeros((batch.blocks.size, batch.clocks.warps), np.int64)
        self._pc = np.zeros_like(self._epoch)
        self._address = np.zeros_like(self._epoch)
        self._touched = np.zeros(batch.blocks.size, bool)
        self._met = np.zeros(batch.blocks.size, bool)

    def meet(self, blocks: Array) -> None:
        """Warps of these blocks have waited at their cluster's barrier."""
        self._met[blocks] = True

    def touch(self, access: Access, block: Array) -> None:
        """Threads access shared memory of the batch's blocks (L,)."""
        batch = self._batch
        far = block != batch.block_of[access.row]
        if not far.any():
            return
        row, block = access.row[far], block[far]
        column = batch.clocks.local[row]
        self._epoch[block, column] = batch.clocks.epoch[row]
        self._pc[block, column] = access.pc
        self._address[block, column] = access.address[far]
        self._touched[block] = True
        gone = ~self._alive()[block]
        if gone.any():
            at = int(gone.argmax())
            self._report(int(column[at]), int(row[at]), int(access.lane[far][at]), int(block[at]))
        self._check_begun(row, access.lane[far], block)

    def _check_begun(self, row: Array, lane: Array, block: Array) -> None:
        """The blocks (L,) that lanes of warps `row` access must be known to have begun."""
        batch, size = self._batch, self._batch.warps_per_block
        unknown = np.nonzero(~self._met[batch.block_of[row]])[0]
        if not unknown.size or not batch.clocks.kept:
            return
        warps = (block % batch.blocks_per_cluster)[unknown, None] * size + np.arange(size)
        early = unknown[~(batch.clocks.reached[row[unknown, None], warps] > 0).any(axis=1)]
        if early.size:
            at = int(early[0])
            column = int(batch.clocks.local[row[at]])
            self._report(column, int(row[at]), int(lane[at]), int(block[at]), begun=False)

    def end(self, blocks: Array) -> None:
        """Threads of the batch's blocks ended: where all have, check the accesses of others."""
        for block in blocks[self._touched[blocks] & ~self._alive()[blocks]].tolist():
            batch, size = self._batch, self._batch.warps_per_block
            mine = slice(block * size, (block + 1) * size)
            seen = batch.clocks.reached[mine, : batch.clocks.warps].max(axis=0)
            late = self._epoch[block] > seen
            if late.any():
                column = int(late.argmax())
                first = int(batch.clocks.cluster[block * size]) * batch.clocks.warps
                self._report(column, first + column, 0, block)

    def _alive(self) -> Array:
        return self._batch.living_blocks()

    def _report(self, column: int, row: int, lane: int, block: int, begun: bool = True) -> None:
        batch, pc = self._batch, int(self._pc[block, column])
        place = self._reporter.places.at(int(self._address[block, column]), "shared")
        home = tuple_text(batch.block_coordinate(block * batch.warps_per_block))
        why = (
            "may have ended: nothing orders the access before its end"
            if begun
            else "may not have begun: nothing orders the access behind its beginning"
        )
        text = f"accesses {place}, shared memory of block {home} of its cluster, which {why}"
        fix = _FIX_END if begun else _FIX_BEGIN
        self._reporter.at_thread("exited", pc, row, lane, text, place=place, fix=fix)
