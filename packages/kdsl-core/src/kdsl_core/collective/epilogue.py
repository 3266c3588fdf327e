"""Accumulators on their way out: through shared memory, a pointwise function, and wide stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.collective.tiles import access_elements
from kdsl_core.lang.copy import copy
from kdsl_core.lang.functions import func
from kdsl_core.lang.memory import recast, smem
from kdsl_core.lang.ranges import Range
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tiled import TiledMma
from kdsl_core.lang.words import sync_threads
from kdsl_core.layout import Layout, cosize, size

_COLUMNS = 4  # f32 accumulators that a thread takes at a time: one 16-byte access
_PADDING = 8  # elements behind each row: the pairs of four rows then fall into all 32 banks


class EpilogueStage:
    """Writes a tile of accumulators as C = function(accumulator, extras…), row by row.

    The tile goes through shared memory in slabs of the rows that all warps hold together, so that
    global accesses are whole lines.

    With `paired` the function takes two accumulators, of columns that are half a tile apart; C's
    tile has half of the columns.

    Shapes: C and every extra are (M, N); extras may be broadcast by strides of 0.
    Memory: reuses `scratch`, a shared tensor nobody reads any more, when it is large enough.
    Threads: the whole block.
    """

    def __init__(
        self,
        mma: TiledMma,
        tile: tuple[int, int],
        threads: int,
        thread: Any,
        scratch: Tensor,
        paired: bool = False,
    ) -> None:
        rows, columns = mma.tile_shape[0], tile[1]
        self.tile, self.rows, self.threads = tile, rows, threads
        layout = Layout((rows, columns), (columns + _PADDING, 1))
        fits = cosize(scratch.layout) * scratch.dtype.bytes >= cosize(layout) * 4
        self.slab = recast(scratch, dt.f32, layout) if fits else smem(dt.f32, layout, name="slab")
        self.own = mma.get_slice(thread).partition_C(self.slab)
        self.starts = (0, columns // 2) if paired else (0,)  # of the columns that belong together
        per_row = columns // len(self.starts) // _COLUMNS
        self.step = max(threads // per_row, 1)
        self.whole = threads % per_row == 0 and rows % self.step == 0
        self.row, self.column = thread // per_row, (thread % per_row) * _COLUMNS

    def store(
        self,
        acc: Tensor,
        c: Tensor,
        origin: tuple[Any, Any],
        function: Callable[..., Any],
        extras: Sequence[Tensor] = (),
    ) -> None:
        """Write the accumulators of the tile whose first element is C[origin]."""
        for block in range(size(acc.layout[1])):
            sync_threads()
            copy(acc[None, block, None], self.own[None, 0, None])
            sync_threads()
            first = origin[0] + block * self.rows
            _store_slab(self, c, (first, origin[1]), function, tuple(extras))

    def store_row(
        self,
        row: Any,
        c: Tensor,
        origin: tuple[Any, Any],
        function: Callable[..., Any],
        extras: Sequence[Tensor],
    ) -> None:
        """Write this thread's columns of one row of the slab."""
        held = [
            self.slab.load_vector((row, self.column + start), _COLUMNS) for start in self.starts
        ]
        width = math.gcd(access_elements(c, 1) if c.stride[1] == 1 else 1, _COLUMNS)
        m, n = origin[0] + row, origin[1] + self.column
        for start in range(0, _COLUMNS, width):
            inside = as_scalar(m < c.shape[0]) & (n + start < c.shape[1])
            columns = [_row_part(extra, (m, n + start), width, inside) for extra in extras]
            results = [
                as_scalar(
                    function(*(x[start + i] for x in held), *(part[i] for part in columns))
                ).to(c.dtype)
                for i in range(width)
            ]
            c.store_vector((m, n + start), results, inside)


@func
def _store_slab(
    stage: EpilogueStage,
    c: Tensor,
    origin: tuple[Any, Any],
    function: Callable[..., Any],
    extras: tuple[Tensor, ...],
) -> None:
    turn: Any
    for turn in Range(-(-stage.rows // stage.step)):
        row = stage.row + turn * stage.step
        if stage.whole or (stage.row < stage.step and row < stage.rows):
            stage.store_row(row, c, origin, function, extras)


def _row_part(extra: Tensor, coord: tuple[Any, Any], width: int, inside: Scalar) -> list[Scalar]:
    """`width` neighbours of a row of an extra operand."""
    step = extra.stride[1]
    if isinstance(step, int) and step == 0:
        return [extra.load(coord, inside)] * width
    if isinstance(step, int) and step == 1:
        return extra.load_vector(coord, width, inside)
    return [extra.load((coord[0], coord[1] + i), inside) for i in range(width)]
