"""The order in which blocks take the tiles of a matrix."""

from __future__ import annotations

from typing import Any

from kdsl_core.lang.numbers import minimum


def grouped_raster(block: Any, tiles_m: Any, tiles_n: Any, group: int) -> tuple[Any, Any]:
    """The (m, n) tile of a linear block index, walking `group` rows of tiles column by column.

    Blocks that run at the same time then share rows of A and columns of B in the L2 cache.
    """
    per_band = tiles_n * group
    band = block // per_band
    first = band * group
    height = minimum(tiles_m - first, group)
    inside = block % per_band
    return first + inside % height, inside // height
