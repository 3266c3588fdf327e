"""Pictures of layouts in the terminal."""

from __future__ import annotations

import re

import pytest

from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    make_identity_layout,
    make_tv_layout,
    show_layout,
    show_tv,
)


def cells(picture: str) -> list[list[str]]:
    """The cells below the rule, colours stripped."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", picture)
    rows = plain.split("\n")[3:]
    return [row.split("|")[1].split() for row in rows]


def test_every_cell_is_the_offset() -> None:
    """Row i, column j shows layout(i, j), swizzled or not, with colour or without."""
    for tile in (
        Layout((8, 8), (8, 1)),
        ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8), (8, 1))),
    ):
        for color in (None, 8):
            wanted = [[str(tile(i, j)) for j in range(8)] for i in range(8)]
            assert cells(show_layout(tile, color)) == wanted


def test_lines_have_one_width_up_to_large_tiles() -> None:
    """128 × 64 and five-digit offsets still line up."""
    lines = show_layout(Layout((128, 64), (640, 1))).split("\n")[1:]
    assert len(lines) == 130 and len({len(line) for line in lines}) == 1


def test_threads_and_values() -> None:
    """Each cell names its holder; unheld and shared elements are marked."""
    tile, tv = make_tv_layout(Layout((2, 2), (2, 1)), Layout((1, 2)))
    assert cells(show_tv(tv, tile, color=True))[0] == ["T0V0", "T0V1", "T1V0", "T1V1"]
    assert cells(show_tv(Layout((2, 1), (0, 1)), (1, 2))) == [["T0V0+", "."]]


def test_colours_only_when_asked() -> None:
    """Plain text has no escape codes."""
    assert "\x1b" not in show_layout(Layout((2, 2)))
    assert "\x1b[48;5;" in show_layout(Layout((2, 2)), color=2)


def test_rank_one_identity_and_refusals() -> None:
    """One row for one mode, coordinates for identity layouts, an error for three modes."""
    assert cells(show_layout(Layout(3))) == [["0", "1", "2"]]
    assert cells(show_layout(make_identity_layout((1, 2)))) == [["(0,0)", "(0,1)"]]
    with pytest.raises(LayoutError, match="K180"):
        show_layout(Layout((2, 2, 2)))
