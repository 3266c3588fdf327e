"""What becomes of a tile of accumulators: the choice among the ways out, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_core.collective.fragment_epilogue import ROWS, FragmentEpilogue, WarpGroup
from kdsl_core.collective.operands import tma_can_address
from kdsl_core.collective.scheduler import WorkTile
from kdsl_core.collective.slab_store import SlabStore
from kdsl_core.collective.tiles import contiguous_mode, divisor
from kdsl_core.collective.tma_store import TmaStoreStage
from kdsl_core.lang.tensor import Tensor
from kdsl_core.layout import size


class TileOutput:
    """Writes tiles of C = function(accumulators, extras…) by the fastest way that there is.

    A function that gives a tuple has as many outputs, of one shape and major order.
    16-bit results of matrices that TMA can address leave by TMA, while the warps go on; all others,
    and sums of K that `peers` blocks of a cluster share, by ordinary stores.

    Threads: the warp groups of a block.
    """

    def __init__(
        self,
        outputs: Tensor | Sequence[Tensor],
        tile: tuple[int, int],
        group: WarpGroup,
        function: Callable[..., Any],
        extras: Sequence[Tensor] = (),
        *,
        accumulator: Any,
        peers: int = 1,
    ) -> None:
        self.tile, self.group = tile, group
        self.stage: TmaStoreStage | SlabStore
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        own = {"groups": group.count, "group": group.number, "thread": group.thread}
        if peers == 1 and by_tma(outputs):
            epilogue = FragmentEpilogue(function, extras, outputs[0].shape, group.thread)
            self.stage = TmaStoreStage(outputs, tile[1], epilogue, **own)
            return
        self.stage = SlabStore(
            outputs, tile[1], function, extras, accumulator=accumulator, peers=peers, **own
        )

    def init(self) -> None:
        """Initialise what the cluster's blocks wait with. Threads: one, before they all meet."""
        if isinstance(self.stage, SlabStore):
            self.stage.init()

    def write(self, acc: Tensor, tile: WorkTile) -> None:
        """Write a tile's accumulators (V, blocks of 64 rows, 1)."""
        for block in range(size(acc.layout[1])):
            self.stage.store(acc[None, block, 0], self.origin(tile, block), tile.batch)

    def origin(self, tile: WorkTile, block: int) -> tuple[Any, Any]:
        """The coordinate of the first element of a block of 64 rows."""
        group = self.group
        among = group.number % group.readers
        row = tile.m * self.tile[0] + (block * group.readers + among) * ROWS
        return row, tile.n * self.tile[1]

    def finish(self) -> None:
        """Wait until shared memory is no longer read; the block may end then."""
        if isinstance(self.stage, TmaStoreStage):
            self.stage.finish()


def by_tma(outputs: Sequence[Tensor]) -> bool:
    """Whether results can be written by TMA: of one type of 16 bits, in whole 16 bytes."""
    dtypes = {output.dtype for output in outputs}
    if len(dtypes) > 1 or dtypes.pop().bytes != 2:
        return False
    ends = [divisor(output.shape[contiguous_mode(output)]) % 8 for output in outputs]
    return not any(ends) and all(map(tma_can_address, outputs))
