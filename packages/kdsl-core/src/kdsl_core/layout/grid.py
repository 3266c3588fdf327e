"""Grids of labelled, coloured cells: what a picture of a layout holds before it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from colorsys import hls_to_rgb
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError
from kdsl_core.layout.int_tuple import flatten_tuple, is_static, product, product_each
from kdsl_core.layout.measure import AnyLayout, size
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle
from kdsl_core.records import dataclass

WHITE = "#ffffff"
_BANK_BYTES = 4
_BANK_ROW_BYTES = 128  # 32 banks of 4 bytes
_CHUNK_BYTES = 16  # the widest access of one thread
_GOLDEN = 0.618034  # turns of the colour wheel between neighbours, so that they look unlike

Holders = Mapping[int, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Grid:
    """Rows of cells, each one or two lines of text over a fill "#rrggbb".

    Heavier lines are drawn after every `every[0]` rows and `every[1]` columns.
    """

    title: str
    cells: list[list[tuple[str, ...]]]
    fills: list[list[str]]
    every: tuple[int, int] = (8, 8)
    legend: str = ""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.cells)

    @property
    def columns(self) -> int:
        """How many columns it has."""
        return len(self.cells[0])


def grid_shape(layout: AnyLayout) -> tuple[int, int]:
    """Rows and columns of a picture; a layout of one mode is one row.

    Raises: LayoutError for more than two modes or sizes not known yet.
    """
    if not is_static(layout):
        raise LayoutError(f"cannot draw {layout}: some sizes are known at run time", code="K102")
    extents = product_each(layout.shape)
    if len(extents) > 2:
        raise LayoutError(
            f"a picture has rows and columns, got {len(extents)} modes in {layout}",
            code="K180",
            fix="group_modes or slice_ to two modes first",
        )
    return (1, extents[0]) if len(extents) == 1 else (extents[0], extents[1])


def cell_values(layout: AnyLayout) -> list[list[Any]]:
    """The value of each (row, column)."""
    rows, columns = grid_shape(layout)
    return [[layout(i + j * rows) for j in range(columns)] for i in range(rows)]


def cell_text(value: Any) -> str:
    """An offset or coordinate, without blanks."""
    return f"({','.join(map(cell_text, value))})" if isinstance(value, tuple) else str(value)


def layout_grid(layout: AnyLayout, dtype: DType | None = None) -> Grid:
    """The offsets of a layout, coloured by bank where they lie in swizzled or typed memory.

    With a dtype, or under a swizzle, cells of one colour lie in the same banks; otherwise the
    colour deepens along memory.
    """
    values = cell_values(layout)
    colour, legend = _colours_of(layout, dtype)
    name = f"{layout}" if dtype is None else f"{layout} of {dtype}"
    return Grid(
        name,
        [[(cell_text(value),) for value in row] for row in values],
        [[colour(value) if isinstance(value, int) else WHITE for value in row] for row in values],
        _mode_marks(layout),
        legend,
    )


def _colours_of(layout: AnyLayout, dtype: DType | None) -> tuple[Callable[[int], str], str]:
    found = bank_runs(layout, dtype)
    if found is None:
        last = max(size(layout) - 1, 1)
        return (lambda value: hue(0.58, 0.96 - 0.3 * min(abs(value) / last, 1))), ""
    run, groups = found
    legend = f"{groups} colours: runs of {run} elements that lie in the same banks"
    return (lambda value: hue((value // run % groups) / groups, 0.82)), legend


def bank_runs(layout: AnyLayout, dtype: DType | None) -> tuple[int, int] | None:
    """(elements in a run, runs until the banks repeat), or None when nothing speaks of banks."""
    swizzle = layout.outer if isinstance(layout, ComposedLayout) else None
    chunk = 1 << swizzle.base if isinstance(swizzle, Swizzle) and swizzle.bits else 0
    if dtype is None:
        return (chunk, 1 << swizzle.bits) if swizzle is not None and chunk else None
    unit = min(max(chunk * dtype.bytes or _CHUNK_BYTES, _BANK_BYTES), _CHUNK_BYTES)
    return max(unit // dtype.bytes, 1), _BANK_ROW_BYTES // max(unit, dtype.bytes)


def _mode_marks(layout: AnyLayout) -> tuple[int, int]:
    """After how many rows and columns the last submode counts on; 8 for plain modes."""
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    periods = [product(flatten_tuple(m)[:-1]) if isinstance(m, tuple) else 8 for m in shape]
    rows, columns = periods if len(periods) == 2 else (8, periods[0])
    return max(rows, 1), max(columns, 1)


def tv_grid(
    title: str,
    held: Holders,
    shape: tuple[int, int],
    index: Callable[[int, int], int],
    every: tuple[int, int] = (8, 8),
) -> Grid:
    """Who holds each element: ``T`` thread, ``V`` value; ``+`` where further threads hold it too.

    `index(i, j)` is what `held` calls the element in row i, column j. Each thread has a hue, which
    lightens with the value.
    """
    last = max([value for owners in held.values() for _, value in owners], default=0) or 1
    rows = [[held.get(index(i, j), ()) for j in range(shape[1])] for i in range(shape[0])]
    shared = any(len(owners) > 1 for row in rows for owners in row)
    return Grid(
        title,
        [[_owner_lines(owners) for owners in row] for row in rows],
        [[_owner_fill(owners, last) for owners in row] for row in rows],
        every,
        "+: further threads hold the element too" if shared else "",
    )


def _owner_lines(owners: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    if not owners:
        return (".",)
    thread, value = owners[0]
    return f"T{thread}{'+' if len(owners) > 1 else ''}", f"V{value}"


def _owner_fill(owners: Sequence[tuple[int, int]], last: int) -> str:
    if not owners:
        return WHITE
    thread, value = owners[0]
    return hue(thread * _GOLDEN, 0.74 + 0.16 * value / last)


def hue(turn: float, lightness: float) -> str:
    """A colour of the wheel as "#rrggbb"; one turn is 1."""
    red, green, blue = hls_to_rgb(turn % 1, lightness, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
