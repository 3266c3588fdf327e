"""`kd.show` and `kd.svg`: pictures of layouts, atoms and tilings, for the terminal and as SVG."""

from __future__ import annotations

import os
import sys
from typing import Any

from kdsl_core.atoms import CopyAtom, MmaAtom, TiledCopy, TiledMma
from kdsl_core.atoms.picture import picture_of
from kdsl_core.atoms.picture import svg as svg_of_atom
from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import LayoutError
from kdsl_core.layout import ComposedLayout, Layout, holders, show_layout, show_tv
from kdsl_core.layout.grid import bank_runs, tv_grid
from kdsl_core.layout.show import show_grid
from kdsl_core.layout.svg import svg_layout, svg_page


def show(
    x: Any,
    *,
    color: bool | int | None = None,
    dtype: Any = None,
    tile: tuple[int, int] | None = None,
) -> str:
    """A picture for the terminal of a layout, atom, tiled mma or tiled copy.

    A layout shows its offsets; with `tile`, it is a (thread, value) layout over a tile of that
    shape and shows who holds what. Colour is used when standard output is a terminal that has it;
    True or False decides instead, and a number is the run of offsets that share a colour. Under a
    swizzle, or with a `dtype`, elements of one colour lie in the same banks.

    Raises: LayoutError for what has no rows and columns.
    """
    paint = _terminal_has_color() if color is None else bool(color)
    if isinstance(x, Layout) and tile is not None:
        return show_tv(x, tile, paint)
    if isinstance(x, Layout | ComposedLayout):
        return _show_layout(x, color, paint, dtype)
    picture = picture_of(_drawable(x), None if dtype is None else dtype_of(dtype))
    return "\n\n".join(
        [picture.caption, *(show_grid(grid, paint) for _, _, grid in picture.placed)]
    )


def _show_layout(x: Layout | ComposedLayout, color: Any, paint: bool, dtype: Any) -> str:
    if not paint:
        return show_layout(x)
    if color is not None and color is not True:
        return show_layout(x, color)
    run, groups = bank_runs(x, None if dtype is None else dtype_of(dtype)) or (8, None)
    return show_layout(x, run, groups)


def svg(x: Any, *, dtype: Any = None, tile: tuple[int, int] | None = None) -> str:
    """An SVG picture of a layout, atom, tiled mma or tiled copy.

    A layout shows its offsets, coloured by bank under a swizzle or with a `dtype`; with `tile`, it
    is a (thread, value) layout over a tile of that shape. Threads have hues, and their values
    lighten them. A copy atom is drawn in elements of `dtype`, of 16 bits by default.

    Raises: LayoutError for what has no rows and columns.
    """
    element = None if dtype is None else dtype_of(dtype)
    if isinstance(x, Layout) and tile is not None:
        rows, columns = tile
        title = f"{x} over ({rows},{columns})"
        grid = tv_grid(title, holders(x), (rows, columns), lambda i, j: i + j * rows)
        return svg_page([(0, 0, grid)])
    if isinstance(x, Layout | ComposedLayout):
        return svg_layout(x, element)
    return svg_of_atom(_drawable(x), element)


def _drawable(x: Any) -> MmaAtom | CopyAtom | TiledMma | TiledCopy:
    if isinstance(x, MmaAtom | CopyAtom | TiledMma | TiledCopy):
        return x
    raise LayoutError(
        f"expected a layout, atom, tiled mma or tiled copy to draw, got {type(x).__name__}",
        code="K186",
        fix="draw the layout of a tensor: its .layout",
    )


def _terminal_has_color() -> bool:
    """Whether standard output is a terminal that shows colours and nobody asked for none."""
    wanted = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()
