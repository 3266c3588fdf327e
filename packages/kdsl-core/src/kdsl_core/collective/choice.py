"""One of several operands and outputs of one shape: which one, a tile's `batch` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_core.collective.operands import TmaOperand
from kdsl_core.collective.outputs import TileOutput
from kdsl_core.collective.scheduler import WorkTile
from kdsl_core.lang.functions import func
from kdsl_core.lang.mbarriers import Mbarrier
from kdsl_core.lang.tensor import Tensor


class TmaChoice:
    """Tiles of one of several matrices, all of which go to the same stages.

    Memory and threads: as `TmaOperand`, whose options are taken.
    """

    def __init__(
        self, tensors: Sequence[Tensor], tile: tuple[int, int], stages: int, **options: Any
    ) -> None:
        first = TmaOperand(tensors[0], tile, stages, **options)
        self.shared, self.bytes = first.shared, first.bytes
        self.operands = [first]
        for tensor in tensors[1:]:
            self.operands.append(TmaOperand(tensor, tile, stages, into=first.shared, **options))

    def prefetch(self) -> None:
        """Bring all tensor maps to the TMA unit's cache. Threads: one."""
        for operand in self.operands:
            operand.prefetch()

    def load(self, stage: Any, row_tile: Any, k_tile: Any, batch: Any, barrier: Mbarrier) -> None:
        """Start copying a tile of matrix number `batch`; `bytes` complete at `barrier`."""
        _load(self.operands, stage, row_tile, k_tile, batch, barrier)


@func
def _load(
    operands: list[TmaOperand], stage: Any, row_tile: Any, k_tile: Any, batch: Any, barrier: Any
) -> None:
    for number, operand in enumerate(operands):
        if batch == number:
            operand.load(stage, row_tile, k_tile, 0, barrier)


class OutputChoice:
    """Writes a tile to output number `tile.batch`; all use the shared memory of the first one."""

    def __init__(self, outputs: Sequence[TileOutput]) -> None:
        self.outputs = list(outputs)

    def init(self) -> None:
        """As `TileOutput.init`."""
        self.outputs[0].init()

    def write(self, acc: Tensor, tile: WorkTile) -> None:
        """Write a tile's accumulators."""
        _write(self.outputs, acc, tile)

    def finish(self) -> None:
        """Wait until shared memory is no longer read; the block may end then."""
        self.outputs[0].finish()


@func
def _write(outputs: list[TileOutput], acc: Any, tile: Any) -> None:
    for number, output in enumerate(outputs):
        if tile.batch == number:
            output.write(acc, tile)
