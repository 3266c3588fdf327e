"""Pictures of atoms and their tilings: which thread holds which element of every operand."""

from __future__ import annotations

from typing import Any, TypeAlias

from kdsl_core.atoms.copy_atom import CopyAtom, contiguous_bits
from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.atoms.tiled_copy import TiledCopy
from kdsl_core.atoms.tiled_mma import TiledMma
from kdsl_core.dtypes import DType, u8, u16
from kdsl_core.errors import LayoutError
from kdsl_core.layout import Layout, holders
from kdsl_core.layout.grid import tv_grid
from kdsl_core.layout.svg import NOTEBOOK_CELLS, Placed, svg_page
from kdsl_core.records import dataclass

Drawable: TypeAlias = MmaAtom | CopyAtom | TiledMma | TiledCopy
_MATRIX_COLUMNS = 8  # 16-bit elements in a row of a matrix load or store


@dataclass(frozen=True)
class Picture:
    """Grids with their places on a page, under a caption."""

    caption: str
    placed: list[Placed]


def svg(x: Drawable, dtype: DType | None = None) -> str:
    """An SVG picture of an atom or tiling; `dtype` is the element that a copy atom moves."""
    picture = picture_of(x, dtype)
    return svg_page(picture.placed, picture.caption)


def notebook_svg(x: Drawable) -> str | None:
    """The picture of an atom or tiling, or None for one that is better shown as text."""
    if isinstance(x, TiledCopy) and len(x.tile_shape) > 2:
        return None
    picture = picture_of(x)
    cells = sum(grid.rows * grid.columns for _, _, grid in picture.placed)
    return svg_page(picture.placed, picture.caption) if cells <= NOTEBOOK_CELLS else None


def picture_of(x: Drawable, dtype: DType | None = None) -> Picture:
    """What a picture of an atom or tiling shows.

    A stands left of C, and B, drawn as K × N, above it, so that row and column of an element of C
    point at what it is made of. A copy shows its source beside its destination.
    """
    if isinstance(x, MmaAtom):
        return Picture(x.name, _mma(x, x.shape_mnk, (x.tv_a, x.tv_b, x.tv_c)))
    if isinstance(x, TiledMma):
        layouts = (x.tv_layout_A, x.tv_layout_B, x.tv_layout_C)
        return Picture(f"{x.atom} on {x.size} threads", _mma(x.atom, x.tile_shape, layouts))
    if isinstance(x, CopyAtom):
        return Picture(x.name, _copy_atom(x, dtype))
    return Picture(f"{x.atom} on {x.size} threads, {x.dtype}", _tiled_copy(x))


def _mma(
    atom: MmaAtom, shape: tuple[int, int, int], tvs: tuple[Layout, Layout, Layout]
) -> list[Placed]:
    (m, n, k), (atom_m, atom_n, atom_k) = shape, atom.shape_mnk
    a, b, c = (holders(tv) for tv in tvs)

    def upright(i: int, j: int) -> int:
        return i + j * m

    def transposed(i: int, j: int) -> int:
        return j + i * n

    return [
        (0, 1, tv_grid(f"B ({atom.b}): K × N", b, (k, n), transposed, (atom_k, atom_n))),
        (1, 0, tv_grid(f"A ({atom.a}): M × K", a, (m, k), upright, (atom_m, atom_k))),
        (1, 1, tv_grid(f"C ({atom.c}): M × N", c, (m, n), upright, (atom_m, atom_n))),
    ]


def _copy_atom(atom: CopyAtom, dtype: DType | None) -> list[Placed]:
    piece = min(contiguous_bits(atom.src), contiguous_bits(atom.dst))
    source, destination, _ = atom.value_layouts(dtype or (u16 if piece >= u16.bits else u8))
    count = max(max(holders(tv)) for tv in (source, destination)) + 1
    columns = count * _MATRIX_COLUMNS // (64 * atom.matrices) if atom.matrices else count
    sides = {"source": source, "destination": destination}
    # A block of matrices is row-major: its rows are what the lanes' addresses name.
    return _sides(sides, (count // columns, columns), row_major=True)


def _tiled_copy(copy: TiledCopy) -> list[Placed]:
    if len(copy.tile_shape) > 2:
        raise LayoutError(
            f"a picture has rows and columns, got a copy tiled by {copy.tile_shape}",
            code="K180",
            fix="draw a copy that is tiled along two modes",
        )
    shape = (1, *copy.tile_shape) if len(copy.tile_shape) == 1 else copy.tile_shape
    sides = {"source": copy.tv_layout_S, "destination": copy.tv_layout_D}
    return _sides(sides, (shape[0], shape[1]), row_major=False)


def _sides(sides: dict[str, Layout], shape: tuple[int, int], row_major: bool) -> list[Placed]:
    """Source beside destination, or one grid for both when they agree."""
    rows, columns = shape

    def index(i: int, j: int) -> int:
        return i * columns + j if row_major else i + j * rows

    held = {side: holders(tv) for side, tv in sides.items()}
    first, second = held.values()
    shown: dict[str, Any] = {"source and destination": first} if first == second else held
    return [
        (0, at, tv_grid(side, owners, shape, index))
        for at, (side, owners) in enumerate(shown.items())
    ]
