"""Matrices that a tail will read, brought into L2 while their tile is still being computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_core.collective.operands import tma_can_address
from kdsl_core.collective.tiles import contiguous_mode
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tma import tma_load
from kdsl_core.layout import Layout

_MOST = 256  # elements of a box along each mode


class TilesAhead:
    """Tiles (M, N) of those `extras` that are whole matrices and that TMA can address.

    Extras that are broadcast, or whose pitch TMA cannot take, are left to the warps that read them.

    Shapes: extras (M, N) or (M, N, L). Threads: `fetch` by one thread, ahead of the tile's readers.
    Memory: a hint only; what is fetched stays in L2 for a while.
    """

    def __init__(self, extras: Sequence[Tensor], tile: tuple[int, int]) -> None:
        self.tile = tile
        self.boxes = [
            (_box(extra, tile), len(extra.shape) - 2) for extra in extras if _whole(extra, tile)
        ]

    def fetch(self, m: Any, n: Any, batch: Any) -> None:
        """Bring tile (m, n) of each matrix into L2."""
        behind = batch if isinstance(batch, tuple) else (batch,)
        for box, rest in self.boxes:
            box.prefetch_tile((m * self.tile[0], n * self.tile[1], *behind[:rest]))


def _whole(extra: Tensor, tile: tuple[int, int]) -> bool:
    """Whether an extra is a matrix of floats whose tiles start at whole 16 bytes."""
    steps = [step for step in extra.stride[:2] if isinstance(step, int)]
    fits = extra.dtype.is_float and extra.dtype.bytes in (2, 4)
    if not fits or 1 not in steps or 0 in steps or not tma_can_address(extra):
        return False
    return tile[contiguous_mode(extra)] * extra.dtype.bytes % 16 == 0


def _box(extra: Tensor, tile: tuple[int, int]) -> Any:
    rows, columns = (min(extent, _MOST) for extent in tile)
    inner = Layout(tile, (columns, 1)) if contiguous_mode(extra) == 1 else Layout(tile, (1, rows))
    return tma_load(extra, inner, (*tile, *(1,) * (len(extra.shape) - 2)))
