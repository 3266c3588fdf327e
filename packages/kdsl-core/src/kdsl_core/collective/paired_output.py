"""What becomes of a tile that holds two sums for each result, half a tile apart in each thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_core.collective.fragment_epilogue import FragmentEpilogue, WarpGroup
from kdsl_core.collective.outputs import TileOutput, by_tma
from kdsl_core.collective.scheduler import WorkTile
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.layout import size

_STEP = 8  # columns of results that are computed at a time


class PairedOutput(TileOutput):
    """Writes tiles of C = function(first, second, extras…), as `TileOutput` writes them.

    The accumulators' tile has twice the columns of C's tile `tile`: `first` is column j of it and
    `second` column j + N.

    Threads: the warp groups of a block.
    """

    def __init__(
        self,
        c: Tensor,
        tile: tuple[int, int],
        group: WarpGroup,
        function: Callable[..., Any],
        extras: Sequence[Tensor] = (),
        *,
        accumulator: Any,
    ) -> None:
        def of_pair(pair: tuple[Scalar, Scalar], *operands: Scalar) -> Any:
            return function(*pair, *operands)

        self.in_registers = None
        if not by_tma((c,)):  # through a slab of results, which must be sums of one kind
            self.in_registers = FragmentEpilogue(of_pair, extras, c.shape, group.thread)
            super().__init__(c, tile, group, lambda result: result, accumulator=accumulator)
        else:
            super().__init__(c, tile, group, of_pair, extras, accumulator=accumulator)

    def write(self, acc: Tensor, tile: WorkTile) -> None:
        """Write a tile's accumulators (V, blocks of 64 rows, 1)."""
        for block in range(size(acc.layout[1])):
            pairs: Any = Pairs(acc[None, block, 0])
            origin = self.origin(tile, block)
            if self.in_registers is not None:
                pairs = self._results(self.in_registers, pairs, origin, tile.batch)
            self.stage.store(pairs, origin, tile.batch)

    def _results(
        self, epilogue: FragmentEpilogue, pairs: Any, origin: tuple[Any, Any], batch: Any
    ) -> list[Scalar]:
        """The block's results in the order of its registers."""
        found: list[Scalar] = []
        for start in range(0, self.tile[1], _STEP):
            columns = range(start, start + _STEP)
            (some,) = epilogue.results(pairs, epilogue.fetch(origin, batch, columns), columns)
            found += some
        return found


class Pairs:
    """A fragment of two halves: element i is the pair of both halves' elements i."""

    def __init__(self, fragment: Tensor) -> None:
        self.fragment = fragment
        self.half = int(size(fragment.layout)) // 2

    def __getitem__(self, index: int) -> tuple[Scalar, Scalar]:
        return self.fragment[index], self.fragment[index + self.half]
