"""Grids drawn as SVG: text on merged runs of colour, with numbered rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias
from xml.sax.saxutils import escape

from kdsl_core.dtypes import DType
from kdsl_core.layout.grid import WHITE, Grid, layout_grid
from kdsl_core.layout.int_tuple import is_static
from kdsl_core.layout.measure import AnyLayout, size
from kdsl_core.records import dataclass

Placed: TypeAlias = tuple[int, int, Grid]
"""A grid with the row and column of the page that it stands in."""

NOTEBOOK_CELLS = 1 << 15
"""Notebooks show more cells than this as text."""

_LETTER = 6.1  # pixels that a letter of the cells is wide
_LINE = 11
_GAP = 14
_TITLE = 18
_STYLE = (
    "text{font:10px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle;fill:#16181d}"
    ".n{fill:#8a8f98;font-size:9px}.t{font-size:11px;font-weight:600;text-anchor:start}"
    ".l{fill:#5b6069;text-anchor:start}"
)


@dataclass(frozen=True)
class _Cell:
    """The size of every cell of a page, and of the margins that number rows and columns."""

    width: int
    height: int
    margin: int

    def extent(self, grid: Grid) -> tuple[int, int]:
        """Width and height of a grid with its title, numbers and legend."""
        text = max(len(grid.title) * 7, round(len(grid.legend) * _LETTER))
        wide = self.margin + max(grid.columns * self.width, text - self.margin)
        high = _TITLE + _LINE + 3 + grid.rows * self.height + (_TITLE if grid.legend else 0)
        return wide, high


def svg_page(placed: Sequence[Placed], caption: str = "") -> str:
    """An SVG document of grids in rows and columns under a caption, all of one cell size."""
    cell = _cell_of([grid for _, _, grid in placed])
    lefts = _starts(_GAP, [(column, cell.extent(grid)[0]) for _, column, grid in placed])
    top = _GAP + (_TITLE if caption else 0)
    tops = _starts(top, [(row, cell.extent(grid)[1]) for row, _, grid in placed])
    width, height = max(lefts[-1], len(caption) * 7 + 2 * _GAP), tops[-1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}"><style>{_STYLE}</style>',
        f'<rect width="{width}" height="{height}" fill="{WHITE}"/>',
    ]
    if caption:
        parts.append(f'<text class="t" x="{_GAP}" y="{_GAP + 8}">{escape(caption)}</text>')
    for row, column, grid in placed:
        parts.append(f'<g transform="translate({lefts[column]},{tops[row]})">')
        parts += _grid(grid, cell)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _cell_of(grids: Sequence[Grid]) -> _Cell:
    texts = [text for grid in grids for row in grid.cells for cell in row for text in cell]
    lines = max(len(cell) for grid in grids for row in grid.cells for cell in row)
    digits = max(len(str(grid.rows - 1)) for grid in grids)
    wide = max(22, round(max(map(len, texts)) * _LETTER) + 6)
    return _Cell(wide, max(lines * _LINE + 6, 18), round(digits * _LETTER) + 6)


def _starts(first: int, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Where each row (or column) of the page begins, and where the last one ends."""
    starts = [first]
    for place in range(max(at for at, _ in sizes) + 1):
        starts.append(starts[-1] + max([s for at, s in sizes if at == place], default=0) + _GAP)
    return starts


def _grid(grid: Grid, cell: _Cell) -> Iterator[str]:
    yield f'<text class="t" x="0" y="11">{escape(grid.title)}</text>'
    yield f'<g transform="translate({cell.margin},{_TITLE + _LINE + 3})">'
    yield from _numbers(grid, cell)
    yield from _fills(grid, cell)
    yield from _lines(grid, cell)
    yield from _texts(grid, cell)
    if grid.legend:
        below = grid.rows * cell.height + 14
        yield f'<text class="l" x="0" y="{below}">{escape(grid.legend)}</text>'
    yield "</g>"


def _numbers(grid: Grid, cell: _Cell) -> Iterator[str]:
    for j in range(grid.columns):
        yield f'<text class="n" x="{_middle(j, cell.width)}" y="-4">{j}</text>'
    for i in range(grid.rows):
        y = _middle(i, cell.height, 3)
        yield f'<text class="n" x="{-cell.margin / 2:g}" y="{y}">{i}</text>'


def _fills(grid: Grid, cell: _Cell) -> Iterator[str]:
    for i, row in enumerate(grid.fills):
        j = 0
        for fill, same in groupby(row):
            count = len(list(same))
            if fill != WHITE:
                yield (
                    f'<rect x="{j * cell.width}" y="{i * cell.height}"'
                    f' width="{count * cell.width}" height="{cell.height}" fill="{fill}"/>'
                )
            j += count


def _lines(grid: Grid, cell: _Cell) -> Iterator[str]:
    wide, high = grid.columns * cell.width, grid.rows * cell.height
    for colour, stroke, row_step, column_step in (
        ("#00000030", 1, 1, 1),
        ("#000000a0", 1.4, *grid.every),
    ):
        across = [f"M0 {i * cell.height}H{wide}" for i in range(0, grid.rows + 1, row_step)]
        down = [f"M{j * cell.width} 0V{high}" for j in range(0, grid.columns + 1, column_step)]
        path = "".join([*across, *down, f"M0 0H{wide}V{high}H0Z"])
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>'


def _texts(grid: Grid, cell: _Cell) -> Iterator[str]:
    for i, row in enumerate(grid.cells):
        for j, lines in enumerate(row):
            x = _middle(j, cell.width)
            first = i * cell.height + (cell.height - len(lines) * _LINE) / 2 + 9
            for k, text in enumerate(lines):
                yield f'<text x="{x}" y="{first + k * _LINE:g}">{escape(text)}</text>'


def _middle(i: int, step: int, below: float = 0) -> str:
    return f"{(i + 0.5) * step + below:g}"


def svg_layout(layout: AnyLayout, dtype: DType | None = None) -> str:
    """An SVG picture of a layout: row i, column j holds the offset of coordinate (i, j).

    >>> from kdsl_core.layout import Layout
    >>> svg_layout(Layout((8, 8), (8, 1))).count("<text")  # a title, 16 numbers, 64 cells
    81

    Raises: LayoutError for more than two modes or sizes not known yet.
    """
    return svg_page([(0, 0, layout_grid(layout, dtype))])


def notebook_svg(layout: AnyLayout) -> str | None:
    """The picture of a layout, or None for one that is better shown as text.

    >>> from kdsl_core.layout import Layout
    >>> notebook_svg(Layout((2, 2, 2))) is None
    True
    """
    drawable = is_static(layout) and len(layout) <= 2 and size(layout) <= NOTEBOOK_CELLS
    return svg_layout(layout) if drawable else None
