"""A copy atom repeated over threads: which thread moves which elements of a tile."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from kdsl_core.atoms.copy_atom import CopyAtom
from kdsl_core.atoms.mma_atom import Operand
from kdsl_core.atoms.tiled_mma import MODES, TiledMma
from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    IntTuple,
    Layout,
    Leaf,
    coalesce,
    composition,
    get,
    inner_of,
    logical_product,
    make_tv_layout,
    product_each,
    right_inverse,
    size,
    slice_,
    slice_and_offset,
    upcast,
    zipped_divide,
)
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class TiledCopy:
    """An atom repeated until it covers a tile of elements of `dtype`.

    `tv_layout` maps (thread, value) to the index in the tile `tiler`, first mode fastest, as the
    atom's reference side sees it.

    Threads: `size` of them; an atom of a warp is executed by whole warps.
    Raises: LayoutError when threads or values are no whole number of atoms.
    """

    atom: CopyAtom
    dtype: DType
    tv_layout: Layout
    tiler: tuple[Any, ...]

    def __post_init__(self) -> None:
        threads, values = product_each(self.tv_layout.shape)
        if threads % self.atom_threads or values % self.atom_values:
            raise LayoutError(
                f"{threads} threads of {values} values ({self.dtype}) are no whole number of"
                f" {self.atom.name}, which takes {self.atom_threads} threads of"
                f" {self.atom_values} values",
                code="K182",
                fix="give each thread more values, or choose a narrower atom",
            )

    @cached_property
    def _atom_layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.atom.value_layouts(self.dtype)

    @property
    def atom_threads(self) -> int:
        """Threads of one atom."""
        return int(size(self._atom_layouts[2][0]))

    @property
    def atom_values(self) -> int:
        """Values of one thread in one atom, in elements."""
        return int(size(self._atom_layouts[2][1]))

    @property
    def size(self) -> int:
        """How many threads take part."""
        return int(size(self.tv_layout[0]))

    @cached_property
    def tile_shape(self) -> tuple[int, ...]:
        """The elements that all threads cover together once."""
        return tuple([int(size(t)) for t in self.tiler])

    @cached_property
    def _source_tv(self) -> Layout:
        return self._target_tv(self._atom_layouts[0])

    @cached_property
    def _destination_tv(self) -> Layout:
        return self._target_tv(self._atom_layouts[1])

    def _target_tv(self, target: Layout) -> Layout:
        """(thread, (value in the atom, rest)) ↦ index in the tile, as one side sees it."""
        reference_to_target = composition(right_inverse(self._atom_layouts[2]), target)
        atoms = zipped_divide(self.tv_layout, (self.atom_threads, self.atom_values))
        both = composition(atoms, (reference_to_target, None))
        layout: Layout = coalesce(_zip_pairs(both), (1, (1, 1)))
        return layout

    def tidfrg_S(self, layout: Any) -> Any:
        """A source layout (M, N, ...) as (thread, (FrgV, FrgRest), (RestM, RestN, ...))."""
        return self._tidfrg(self._source_tv, layout)

    def tidfrg_D(self, layout: Any) -> Any:
        """A destination layout (M, N, ...) as (thread, (FrgV, FrgRest), (RestM, RestN, ...))."""
        return self._tidfrg(self._destination_tv, layout)

    def _tidfrg(self, target_tv: Layout, layout: Any) -> Any:
        if len(inner_of(layout)) < len(self.tiler):
            raise LayoutError(
                f"a copy tiled by {self.tile_shape} needs a layout of {len(self.tiler)} modes or"
                f" more, got {layout}",
                code="K183",
                fix="give a layout with the modes of the tile; further modes are kept",
            )
        tiles = zipped_divide(layout, self.tiler)
        return slice_(((None, None), None), composition(tiles, (target_tv, None)))

    @cached_property
    def tv_layout_S(self) -> Layout:
        """(thread, values) ↦ index in the tile, as the source sees it."""
        return self._tv_of(self._source_tv)

    @cached_property
    def tv_layout_D(self) -> Layout:
        """(thread, values) ↦ index in the tile, as the destination sees it."""
        return self._tv_of(self._destination_tv)

    def _tv_of(self, target_tv: Layout) -> Layout:
        layout: Layout = slice_((None, None, 0), self._tidfrg(target_tv, Layout(self.tile_shape)))
        return layout

    def retile(self, layout: Any) -> Any:
        """A fragment's layout (V, RestM, RestN, ...) regrouped to this copy's values.

        The fragment was partitioned by another tiled mma or copy of the same threads and
        elements; mode 0 of the result is what one atom moves at a time.
        """
        values = size(get(inner_of(layout), 0))
        tile_to_value = upcast(
            composition(right_inverse(self.tv_layout), Layout(self.tile_shape)),
            self.size * values,
        )
        order = logical_product(Layout(values), right_inverse(tile_to_value))
        atoms = zipped_divide(order, self.atom_values)
        tiles = zipped_divide(layout, (values, *product_each(tile_to_value.shape)))
        rank = len(inner_of(layout))
        return slice_((None, (0,) + (None,) * (rank - 1)), composition(tiles, (atoms, None)))

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show: who holds which element."""
        from kdsl_core.atoms.picture import notebook_svg

        return notebook_svg(self)

    def get_slice(self, thread: Leaf) -> ThrCopy:
        """The part of one thread, whose index may be known at run time only."""
        return ThrCopy(self, thread)


@dataclass(frozen=True, eq=False)
class ThrCopy:
    """One thread's view of a tiled copy: partitions are (layout, offset of its first element)."""

    tiled: TiledCopy
    thread: Leaf

    def partition_S(self, layout: Any) -> tuple[Any, Leaf]:
        """This thread's (V, RestM, RestN, ...) of a source layout, and its offset."""
        return self._slice(self.tiled.tidfrg_S(layout))

    def partition_D(self, layout: Any) -> tuple[Any, Leaf]:
        """This thread's (V, RestM, RestN, ...) of a destination layout, and its offset."""
        return self._slice(self.tiled.tidfrg_D(layout))

    def _slice(self, threads_values: Any) -> tuple[Any, Leaf]:
        rest = (None,) * len(threads_values.shape[2])
        return slice_and_offset((self.thread, None, rest), threads_values)

    def retile_S(self, layout: Any) -> Any:
        """A fragment as this copy's source: (V, RestM, RestN, ...)."""
        return self.tiled.retile(layout)

    def retile_D(self, layout: Any) -> Any:
        """A fragment as this copy's destination: (V, RestM, RestN, ...)."""
        return self.tiled.retile(layout)


def _zip_pairs(layout: Layout) -> Layout:
    """((a, b), (c, d)) as ((a, c), (b, d))."""
    shape, stride = (tuple(zip(*t, strict=True)) for t in (layout.shape, layout.stride))
    return Layout.of(shape, stride)


def make_tiled_copy(
    atom: CopyAtom, dtype: DType, thr_layout: Layout, val_layout: Layout
) -> TiledCopy:
    """A copy in which thread i takes the values `val_layout` at its place in `thr_layout`.

    Shapes: the tile has mode i of size thr_i · val_i.

    >>> from kdsl_core.atoms.universal import UNIVERSAL_COPY_128
    >>> from kdsl_core.dtypes import f16
    >>> copy = make_tiled_copy(UNIVERSAL_COPY_128, f16, Layout((16, 8), (8, 1)), Layout((1, 8)))
    >>> copy.tile_shape, copy.size
    ((16, 64), 128)

    Raises: LayoutError when a thread's values are no whole number of atoms.
    """
    tiler, tv_layout = make_tv_layout(thr_layout, val_layout)
    return TiledCopy(atom, dtype, tv_layout, tiler)


def make_tiled_copy_A(atom: CopyAtom, mma: TiledMma, dtype: DType | None = None) -> TiledCopy:
    """The copy that gives each thread its fragment of the mma's A."""
    return _copy_of_operand(atom, mma, "A", mma.tv_layout_A, dtype)


def make_tiled_copy_B(atom: CopyAtom, mma: TiledMma, dtype: DType | None = None) -> TiledCopy:
    """The copy that gives each thread its fragment of the mma's B."""
    return _copy_of_operand(atom, mma, "B", mma.tv_layout_B, dtype)


def make_tiled_copy_C(atom: CopyAtom, mma: TiledMma, dtype: DType | None = None) -> TiledCopy:
    """The copy that takes each thread's fragment of the mma's C, or of `dtype` made of it."""
    return _copy_of_operand(atom, mma, "C", mma.tv_layout_C, dtype)


def _copy_of_operand(
    atom: CopyAtom, mma: TiledMma, operand: Operand, tv_layout: Layout, dtype: DType | None
) -> TiledCopy:
    i, j = MODES[operand]
    tile: IntTuple = (mma.tile_shape[i], mma.tile_shape[j])
    return TiledCopy(atom, dtype or mma.atom.dtype(operand), tv_layout, tile)
