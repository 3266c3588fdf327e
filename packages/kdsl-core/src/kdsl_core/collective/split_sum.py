"""Sums of K that several blocks share through global memory, in an order that never changes."""

from __future__ import annotations

from functools import partial
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.collective.fragment_epilogue import ROWS
from kdsl_core.collective.scheduler import WorkTile
from kdsl_core.collective.slab_store import SlabStore, walk
from kdsl_core.lang.functions import func
from kdsl_core.lang.memory import smem
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.words import atomic_add, fence
from kdsl_core.layout import Layout


class SplitSum:
    """Adds up the parts of a tile that `splits` blocks computed, wherever and whenever they ran.

    Each block leaves its part in global memory and counts itself; the one that comes last sums all
    parts in the order of K and stores the result. So nobody waits, and equal inputs give equal
    bits.

    Shapes: `partial` f32 of tiles × splits × tile elements; `counters` i32 of one element for each
    tile, warp group and block of a cluster, all zeros; they are zeros again afterwards.
    Memory: 4 bytes of shared memory for each warp group.
    """

    def __init__(
        self, slab: SlabStore, partial: Tensor, counters: Tensor, splits: int, blocks: int
    ) -> None:
        self.slab = slab
        self.partial, self.counters = partial, counters
        self.splits = splits
        self.blocks = blocks
        self.elements = blocks * ROWS * slab.columns  # of one warp group's part
        self.last = smem(dt.i32, Layout(slab.groups), name="last")

    def owner(self, tile: WorkTile) -> Any:
        """A number for each tile and warp group."""
        return (tile.index // self.splits) * self.slab.groups + self.slab.group

    def leave(self, tile: WorkTile, block: int, accumulators: Tensor) -> None:
        """Leave a block of 64 rows of this part."""
        first = (self.owner(tile) * self.splits + tile.split) * self.elements
        self.slab.leave(accumulators, self.partial, first + block * ROWS * self.slab.columns)

    def add_up(self, tile: WorkTile, block: int, origin: tuple[Any, Any]) -> None:
        """Sum a block of 64 rows over all parts, and store the result."""
        slab = self.slab
        first = self.owner(tile) * self.splits * self.elements + block * ROWS * slab.columns
        for start in range(0, slab.columns, slab.chunk):
            place, at = (origin[0], origin[1] + start), first + start * ROWS
            walk(
                slab,
                lambda unit, at=at: self.sums(at + unit * slab.width),
                partial(slab.finish, origin=place, batch=tile.batch),
            )

    def sums(self, at: Any) -> list[Scalar]:
        """Neighbouring elements of all parts, added in the order of K."""
        total: list[Scalar] = []
        for split in range(self.splits):
            part = self.partial.load_vector(at + split * self.elements, self.slab.width)
            total = [x + y for x, y in zip(total, part, strict=True)] if total else part
        return total

    def is_last(self, tile: WorkTile) -> Scalar:
        """Whether all parts of the tile are there; true for one of the blocks that ask."""
        slab = self.slab
        fence("gpu")
        slab.barrier.sync()
        _count(self, self.owner(tile) * slab.peers + slab.rank)
        slab.barrier.sync()
        fence("gpu")
        last: Scalar = self.last[slab.group] == 1
        return last


@func
def _count(split: SplitSum, counter: Any) -> None:
    if split.slab.thread == 0:
        came_before = atomic_add(split.counters, counter, 1)
        if came_before == split.splits - 1:
            split.counters[counter] = 0
            split.last[split.slab.group] = 1
        else:
            split.last[split.slab.group] = 0
