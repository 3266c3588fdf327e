"""What becomes of a tile that holds two sums for each result, half a tile apart in each thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    The accumulators' tile has twice the columns of C's tile `tile`, N: `first` is column j of it
    and `second` column j + N. With pairs `along` mode 0 it has twice the rows, and each warp group
    an even number of blocks of 64 rows, as it is dealt them: `second` is row i + M.

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
        along: int = 1,
    ) -> None:
        def of_pair(pair: tuple[Scalar, Scalar], *operands: Scalar) -> Any:
            return function(*pair, *operands)

        self.along = along
        self.in_registers = None
        if not by_tma((c,)):  # through a slab of results, which must be sums of one kind
            self.in_registers = FragmentEpilogue(of_pair, extras, c.shape, group.thread)
            super().__init__(c, tile, group, lambda result: result, accumulator=accumulator)
        else:
            super().__init__(c, tile, group, of_pair, extras, accumulator=accumulator)

    def write(self, acc: Tensor, tile: WorkTile) -> None:
        """Write a tile's accumulators (V, blocks of 64 rows, 1)."""
        for block, pairs in enumerate(self._pairs(acc)):
            origin = self.origin(tile, block)
            results: Any = pairs
            if self.in_registers is not None:
                results = self._results(self.in_registers, pairs, origin, tile.batch)
            self.stage.store(results, origin, tile.batch)

    def _pairs(self, acc: Tensor) -> Iterator[Pairs]:
        """The sums of each block of 64 rows of results."""
        blocks = [acc[None, block, 0] for block in range(size(acc.layout[1]))]
        if self.along == 1:
            yield from (Pairs(block, block, size(block.layout) // 2) for block in blocks)
        else:
            half = len(blocks) // 2
            yield from map(Pairs, blocks[:half], blocks[half:])

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
    """A fragment whose element i is the pair of one's element i and another's i + `distance`."""

    def __init__(self, first: Tensor, second: Tensor, distance: int = 0) -> None:
        self.first, self.second, self.distance = first, second, distance

    def __getitem__(self, index: int) -> tuple[Scalar, Scalar]:
        return self.first[index], self.second[index + self.distance]
