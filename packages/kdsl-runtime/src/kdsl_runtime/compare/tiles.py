"""The tiles of an output: which block of the kernel writes which elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kdsl_runtime.compare.finding import Tile
from kdsl_runtime.compare.recording import Array


@dataclass(frozen=True, eq=False)
class Tiles:
    """`blocks` holds for each element the linear number of the block that wrote it, or −1."""

    blocks: Array
    grid: tuple[int, int, int]

    @cached_property
    def _boxes(self) -> dict[int, tuple[Array, Array]]:
        """The first and the last coordinate of each block's elements."""
        at = np.argwhere(self.blocks >= 0)
        if not len(at):
            return {}
        block = self.blocks[tuple(at.T)]
        order = np.argsort(block, kind="stable")
        numbers, starts = np.unique(block[order], return_index=True)
        low = np.minimum.reduceat(at[order], starts)
        high = np.maximum.reduceat(at[order], starts)
        return {int(n): (low[i], high[i]) for i, n in enumerate(numbers)}

    def of(self, coordinate: tuple[int, ...]) -> Tile | None:
        """The tile of an element; None where nobody wrote it."""
        number = int(self.blocks[coordinate])
        return None if number < 0 else self._tile(number)

    def all(self) -> Iterator[Tile]:
        """Every tile, by the number of its block."""
        return map(self._tile, self._boxes)

    def _tile(self, number: int) -> Tile:
        low, high = self._boxes[number]
        x, y, _ = self.grid
        block = number % x, number // x % y, number // (x * y)
        return Tile(block, tuple(low.tolist()), tuple((high - low + 1).tolist()))

    @cached_property
    def full(self) -> tuple[int, ...]:
        """The shape of a tile that hangs over no edge."""
        shapes = np.array([tile.shape for tile in self.all()])
        return tuple(shapes.max(axis=0).tolist()) if len(shapes) else ()

    def clipped(self) -> Array:
        """Whether each element belongs to a tile that is smaller than the others, bool."""
        small = [
            number for number in self._boxes
            if any(n < full for n, full in zip(self._tile(number).shape, self.full, strict=True))
        ]  # fmt: skip
        return np.isin(self.blocks, small)

    def whole(self, chosen: Array) -> int | None:
        """How many tiles chosen elements fill; None when they fill one in part.

        Tiles are as large as those that were written, and side by side from the first element.
        """
        if not self.full:
            return None
        at = np.argwhere(chosen)
        tiles, counts = np.unique(at // np.array(self.full), axis=0, return_counts=True)
        ends = np.minimum((tiles + 1) * self.full, chosen.shape)
        sizes = np.prod(ends - tiles * self.full, axis=1)
        return len(tiles) if (counts == sizes).all() else None
