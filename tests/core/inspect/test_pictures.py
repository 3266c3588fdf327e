"""Pictures: every cell says what the layout says, and the documents are well formed."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kdsl_core as kd
import kdsl_core.inspect
from kdsl_core import atoms
from kdsl_core.atoms.picture import picture_of
from kdsl_core.layout.grid import layout_grid
from kdsl_core.layout.svg import NOTEBOOK_CELLS

PAGE = Path(__file__).parents[3] / "docs/pictures.md"
ATOM = atoms.SM80_16x8x16_F32BF16BF16F32_TN
MMA = kd.tiled_mma(ATOM, (2, 2))
TILE = kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, kd.Layout((8, 64), (64, 1)))
COPY = kd.tiled_copy(atoms.cp_async(16), kd.bf16, kd.Layout((16, 4), (4, 1)), kd.Layout((1, 8)))
IN_DOCS = {
    "swizzled_tile": lambda: kd.svg(TILE, dtype=kd.bf16),
    "sm80_16x8x16": lambda: kd.svg(ATOM),
    "tiled_copy": lambda: kd.svg(COPY),
}


def texts(document: str, kind: str | None = None) -> list[str]:
    """The texts of an SVG document of one class, or of its cells."""
    root = ElementTree.fromstring(document)
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return [text.text or "" for text in found if text.get("class") == kind]


@pytest.mark.parametrize(
    "layout",
    [
        kd.Layout((8, 8), (8, 1)),
        TILE,
        kd.Layout((128, 64), (72, 1)),
        kd.Layout(((2, 4), (2, 4)), ((1, 8), (2, 16))),
        kd.Layout(5, 3),
        kd.make_identity_layout((2, 3)),
    ],
    ids=str,
)
def test_every_cell_is_the_value(layout: Any) -> None:
    """Cells of rows and columns in order, with numbers beside them."""
    columns = kd.size(layout[1]) if len(layout) > 1 else kd.size(layout)
    rows = kd.size(layout) // columns
    values = [layout(i + j * rows) for i in range(rows) for j in range(columns)]
    document = kd.svg(layout)
    assert texts(document) == [str(value).replace(" ", "") for value in values]
    assert texts(document, "n") == [*map(str, range(columns)), *map(str, range(rows))]


def test_one_colour_is_one_bank_group() -> None:
    """Under a swizzle or with a dtype, equal fills are equal 16-byte columns of the banks."""
    plain = kd.Layout((16, 64), (64, 1))
    for layout in (TILE, plain):
        grid = layout_grid(layout, kd.bf16)
        groups: dict[str, set[int]] = {}
        for i in range(grid.rows):
            for j in range(grid.columns):
                groups.setdefault(grid.fills[i][j], set()).add(layout(i, j) * 2 // 16 % 8)
        assert sorted(map(sorted, groups.values())) == [[g] for g in range(8)]
    assert layout_grid(TILE).fills == layout_grid(TILE, kd.bf16).fills


@pytest.mark.parametrize("atom", atoms.ALL_MMA_ATOMS, ids=str)
def test_atoms_show_who_holds_what(atom: Any) -> None:
    """Each element of A (M × K), B (K × N) and C (M × N) names a thread and value that hold it."""
    m, n, k = atom.shape_mnk
    b, a, c = (grid for _, _, grid in picture_of(atom).placed)
    for grid, tv, index, shape in (
        (a, atom.tv_a, lambda i, j: i + j * m, (m, k)),
        (b, atom.tv_b, lambda i, j: j + i * n, (k, n)),
        (c, atom.tv_c, lambda i, j: i + j * m, (m, n)),
    ):
        assert (grid.rows, grid.columns) == shape
        for i in range(grid.rows):
            for j in range(grid.columns):
                thread, value = (int(text.strip("TV+")) for text in grid.cells[i][j])
                assert tv((thread, value)) == index(i, j)


@pytest.mark.parametrize("atom", atoms.ALL_COPY_ATOMS, ids=str)
def test_every_copy_atom_has_a_picture(atom: Any) -> None:
    """Well-formed documents whose cells all have holders, in rows of a matrix where it has some."""
    grids = [grid for _, _, grid in picture_of(atom).placed]
    for grid in grids:
        assert all(cell[0].startswith("T") for row in grid.cells for cell in row)
        assert (grid.rows, grid.columns) == (8 * atom.matrices, 8) or not atom.matrices
    assert texts(kd.svg(atom))


def test_tilings_show_each_element() -> None:
    """A tiled mma and a tiled copy name a holder of every element, in the terminal as in SVG."""
    whole = picture_of(COPY).placed[0][2]
    for i in range(16):
        for j in range(32):
            thread, value = (int(text[1:]) for text in whole.cells[i][j])
            assert COPY.tv_layout((thread, value)) == i + j * 16
    assert [(g.rows, g.columns) for _, _, g in picture_of(MMA).placed] == [
        (16, 16),
        (32, 16),
        (32, 16),
    ]
    text = kd.show(MMA, color=False)
    assert text.count("+: further threads") == 2 and "T127V3" in text and "\x1b" not in text
    for drawn in (MMA, COPY, ATOM, atoms.ldmatrix(4)):
        assert re.sub(r"\x1b\[[0-9;]*m", "", kd.show(drawn, color=True)) == kd.show(drawn)


def test_show_colours_by_bank_group() -> None:
    """The terminal's colours of a swizzled tile: eight in each column, one per bank group."""
    lines = kd.show(TILE, color=True).split("\n")[3:]
    firsts = [re.findall(r"48;5;(\d+)m", line)[0] for line in lines]
    assert len(set(firsts)) == 8
    assert "\x1b" not in kd.show(TILE)
    assert kd.show(TILE, color=8) != kd.show(TILE, color=True)


def test_notebooks_show_pictures_of_bearable_size() -> None:
    """Layouts, atoms and tilings have a picture; what is too large or has three modes has none."""
    for drawn in (kd.Layout((4, 4)), TILE, ATOM, atoms.cp_async(16), MMA, COPY):
        assert drawn._repr_svg_().startswith("<svg")
    assert kd.Layout((2, 2, 2))._repr_svg_() is None
    assert kd.Layout((NOTEBOOK_CELLS, 2))._repr_svg_() is None


def test_what_cannot_be_drawn_is_refused() -> None:
    """A number, and a layout of three modes."""
    with pytest.raises(kd.LayoutError, match="K186"):
        kd.svg(3)
    with pytest.raises(kd.LayoutError, match="K180"):
        kd.svg(kd.Layout((2, 2, 2)))


@pytest.mark.parametrize("name", IN_DOCS)
def test_images_of_the_page(name: str, golden: Callable[[str, str], None]) -> None:
    """The images of docs/pictures.md are what kd.svg gives."""
    golden(f"../../docs/img/{name}.svg", IN_DOCS[name]())


def test_examples_of_the_page() -> None:
    """The examples of docs/pictures.md print what the page says."""
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 20 and result.failed == 0
