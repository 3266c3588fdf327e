"""Pictures of layouts for the terminal: a grid of offsets, or of the threads that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.grid import Grid, cell_text, cell_values
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout
from kdsl_core.layout.tv import holders

PALETTE = (153, 157, 223, 217, 183, 159, 229, 252, 111, 114, 179, 174, 140, 80, 185, 246)
"""Xterm-256 pastel backgrounds on which black text reads well."""


def show_layout(layout: AnyLayout, color: int | None = None, groups: int | None = None) -> str:
    """A picture of a layout: row i, column j holds the offset of coordinate (i, j).

    `color` paints offsets in runs: with `color=8`, offsets 0-7 share a colour, then 8-15, and
    so on, and after `groups` runs the colours start again (banks or swizzle atoms become
    visible). A rank-1 layout is one row.

    >>> print(show_layout(Layout((2, 3), (3, 1))))
    (2,3):(3,1)
        0 1 2
      +------
    0 | 0 1 2
    1 | 3 4 5

    Raises: LayoutError for more than two modes or sizes not known yet.
    """
    values = cell_values(layout)
    among = min(groups or len(PALETTE), len(PALETTE))
    colours = [[_colour(v, color, among) for v in row] for row in values] if color else None
    return f"{layout}\n{draw_grid([[cell_text(v) for v in row] for row in values], colours)}"


def show_grid(grid: Grid, color: bool = False) -> str:
    """A grid as text under its title, on the nearest colours that a terminal has."""
    cells = [["".join(cell) for cell in row] for row in grid.cells]
    colours = [[_terminal_colour(fill) for fill in row] for row in grid.fills] if color else None
    legend = [grid.legend] if grid.legend else []
    return "\n".join([grid.title, draw_grid(cells, colours), *legend])


def _terminal_colour(fill: str) -> int:
    """The xterm-256 cube's nearest colour to "#rrggbb"; its levels are 0, 95, 135, … 255."""
    levels = [max(round((int(fill[at : at + 2], 16) - 55) / 40), 0) for at in (1, 3, 5)]
    return 16 + 36 * levels[0] + 6 * levels[1] + levels[2]


def _colour(cell: Any, run: int, among: int) -> int:
    return PALETTE[cell // run % among] if isinstance(cell, int) else PALETTE[0]


def show_tv(tv: Layout, tile: Sequence[int], color: bool = False) -> str:
    """A picture of a thread-value layout over its tile: each cell is T(thread)V(value).

    Elements that several threads hold show the first holder and a ``+``.

    >>> print(show_tv(Layout((2, 2), (1, 2)), (2, 2)))
    (2,2):(1,2) over (2,2)
           0    1
      +----------
    0 | T0V0 T0V1
    1 | T1V0 T1V1
    """
    if len(tile) != 2:
        raise LayoutError(f"a picture has rows and columns, got the tile {tile}", code="K180")
    rows, columns = tile
    held = holders(tv)
    grid: list[list[str]] = [[""] * columns for _ in range(rows)]
    colours = [[PALETTE[7]] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            owners = held.get(i + j * rows, [])
            grid[i][j] = _owner_text(owners)
            colours[i][j] = PALETTE[owners[0][0] % len(PALETTE)] if owners else PALETTE[7]
    title = f"{tv} over ({rows},{columns})"
    return f"{title}\n{draw_grid(grid, colours if color else None)}"


def _owner_text(owners: list[tuple[int, int]]) -> str:
    if not owners:
        return "."
    thread, value = owners[0]
    return f"T{thread}V{value}{'+' if len(owners) > 1 else ''}"


def draw_grid(cells: list[list[str]], colours: list[list[int]] | None = None) -> str:
    """Right-aligned cells under column numbers, behind row numbers."""
    columns = len(cells[0])
    width = max([len(text) for row in cells for text in row] + [len(str(columns - 1))])
    margin = len(str(len(cells) - 1))
    head = " " * (margin + 3) + " ".join(f"{j:>{width}}" for j in range(columns))
    rule = " " * (margin + 1) + "+" + "-" * (columns * (width + 1))
    lines = [head, rule]
    for i, row in enumerate(cells):
        texts = [f"{text:>{width}}" for text in row]
        if colours:
            texts = [_paint(t, colours[i][j]) for j, t in enumerate(texts)]
        lines.append(f"{i:>{margin}} | {' '.join(texts)}")
    return "\n".join(lines)


def _paint(text: str, colour: int) -> str:
    return f"\x1b[48;5;{colour}m\x1b[38;5;16m{text}\x1b[0m"
