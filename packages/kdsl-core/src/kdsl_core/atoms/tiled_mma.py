"""A matrix atom repeated over warps: which thread holds which elements of a tile of A, B and C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from kdsl_core.atoms.mma_atom import MmaAtom, Operand
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    IntTuple,
    Layout,
    Leaf,
    append,
    composition,
    get_flat_coord,
    inner_of,
    logical_divide,
    right_inverse,
    size,
    slice_and_offset,
    tiled_product,
    zipped_divide,
)
from kdsl_core.records import dataclass

MODES: dict[Operand, tuple[int, int]] = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}
"""The modes of (M, N, K) that an operand's matrix has."""


@dataclass(frozen=True)
class TiledMma:
    """An atom repeated `thr_layout` times along M, N and K by as many groups of threads.

    `permutation` holds for each of M, N and K a tiler that reorders the mode before it is dealt
    to atoms, an int that widens the tile, or None for the plain tile of atoms × groups.

    Threads: `size` of them, in whole warps; every thread of a warp calls with its own index.
    """

    atom: MmaAtom
    thr_layout: Layout
    permutation: tuple[Any, Any, Any] = (None, None, None)

    @cached_property
    def thr_layout_vmnk(self) -> Layout:
        """(thread in the atom, group along M, N, K) ↦ thread index."""
        layout: Layout = tiled_product(self.atom.thr_id, self.thr_layout)
        return layout

    @cached_property
    def groups(self) -> tuple[int, int, int]:
        """How many atoms lie side by side along M, N and K."""
        m, n, k = (int(size(mode)) for mode in self.thr_layout)
        return m, n, k

    @property
    def size(self) -> int:
        """How many threads take part."""
        return int(size(self.thr_layout_vmnk))

    @cached_property
    def tilers(self) -> tuple[Any, Any, Any]:
        """The tiler of each of M, N and K: the permutation, or atom extent × groups."""
        extents = zip(self.permutation, self.atom.shape_mnk, self.groups, strict=True)
        m, n, k = (s * g if p is None else p for p, s, g in extents)
        return m, n, k

    @cached_property
    def tile_shape(self) -> tuple[int, int, int]:
        """The M × N × K elements that all threads cover together once."""
        m, n, k = (int(size(t)) for t in self.tilers)
        return m, n, k

    # -- whole tensors: ((thread in the atom, groups), (values of the atom, rest)) ---------------

    def thrfrg_A(self, layout: Any) -> Any:
        """A layout of (M, K, ...) as ((ThrV, (ThrM, ThrK)), (FrgV, (RestM, RestK, ...)))."""
        return self._thrfrg("A", layout)

    def thrfrg_B(self, layout: Any) -> Any:
        """A layout of (N, K, ...) as ((ThrV, (ThrN, ThrK)), (FrgV, (RestN, RestK, ...)))."""
        return self._thrfrg("B", layout)

    def thrfrg_C(self, layout: Any) -> Any:
        """A layout of (M, N, ...) as ((ThrV, (ThrM, ThrN)), (FrgV, (RestM, RestN, ...)))."""
        return self._thrfrg("C", layout)

    def _thrfrg(self, operand: Operand, layout: Any) -> Any:
        i, j = MODES[operand]
        if len(inner_of(layout)) < 2:
            raise LayoutError(
                f"operand {operand} of {self.atom} is a matrix, got {layout} of one mode",
                code="K184",
                fix="give a layout of two modes or more; further modes are kept",
            )
        permuted = logical_divide(layout, (self.tilers[i], self.tilers[j]))
        extents = self.atom.shape_mnk
        atoms = zipped_divide(permuted, (extents[i], extents[j]))
        values = composition(atoms, (self.atom.tv(operand), None))
        return zipped_divide(values, (None, (self.groups[i], self.groups[j])))

    # -- thread-value layouts --------------------------------------------------------------------

    @cached_property
    def tv_layout_A(self) -> Layout:
        """(thread index, value) ↦ index in the M × K tile."""
        return self._tv_layout("A")

    @cached_property
    def tv_layout_B(self) -> Layout:
        """(thread index, value) ↦ index in the N × K tile."""
        return self._tv_layout("B")

    @cached_property
    def tv_layout_C(self) -> Layout:
        """(thread index, value) ↦ index in the M × N tile."""
        return self._tv_layout("C")

    def _tv_layout(self, operand: Operand) -> Layout:
        i, j = MODES[operand]
        tile = self._thrfrg(operand, Layout((self.tile_shape[i], self.tile_shape[j])))
        m, n, _ = self.groups
        # Groups that differ only along the mode that the operand lacks hold the same elements.
        held = {"A": Layout((m, n), (1, 0)), "B": Layout((m, n), (0, 1)), "C": None}[operand]
        if held is not None:
            tile = composition(tile, ((None, (held, None)), None))
        index_to_vmnk = right_inverse(self.thr_layout_vmnk)
        layout: Layout = composition(tile, (index_to_vmnk, None))
        return layout

    # -- shapes ----------------------------------------------------------------------------------

    def partition_shape_A(self, shape_mk: IntTuple) -> IntTuple:
        """The shape (FrgV, RestM, RestK) of one thread's part of an M × K tile."""
        return self._partition_shape("A", shape_mk)

    def partition_shape_B(self, shape_nk: IntTuple) -> IntTuple:
        """The shape (FrgV, RestN, RestK) of one thread's part of an N × K tile."""
        return self._partition_shape("B", shape_nk)

    def partition_shape_C(self, shape_mn: IntTuple) -> IntTuple:
        """The shape (FrgV, RestM, RestN) of one thread's part of an M × N tile."""
        return self._partition_shape("C", shape_mn)

    def _partition_shape(self, operand: Operand, shape: IntTuple) -> IntTuple:
        values, rest = self._thrfrg(operand, Layout(shape)).shape[1]
        return (values, *rest)

    def fragment(self, operand: Operand, shape: IntTuple) -> Layout:
        """The compact register layout of one thread's part of a tile, the atom's values first."""
        return Layout(self._partition_shape(operand, shape))

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show: who holds which element."""
        from kdsl_core.atoms.picture import notebook_svg

        return notebook_svg(self)

    def get_slice(self, thread: Leaf) -> ThrMma:
        """The part of one thread, whose index may be known at run time only."""
        return ThrMma(self, thread)


@dataclass(frozen=True, eq=False)
class ThrMma:
    """One thread's view of a tiled mma: partitions are (layout, offset of its first element)."""

    tiled: TiledMma
    thread: Leaf

    @cached_property
    def coord_vmnk(self) -> Any:
        """The thread's (number in the atom, group along M, N, K)."""
        return get_flat_coord(self.tiled.thr_layout_vmnk, self.thread)

    def partition_A(self, layout: Any) -> tuple[Any, Leaf]:
        """This thread's (FrgV, RestM, RestK, ...) of a layout of (M, K, ...), and its offset."""
        return self.partition("A", layout)

    def partition_B(self, layout: Any) -> tuple[Any, Leaf]:
        """This thread's (FrgV, RestN, RestK, ...) of a layout of (N, K, ...), and its offset."""
        return self.partition("B", layout)

    def partition_C(self, layout: Any) -> tuple[Any, Leaf]:
        """This thread's (FrgV, RestM, RestN, ...) of a layout of (M, N, ...), and its offset."""
        return self.partition("C", layout)

    def partition(self, operand: Operand, layout: Any) -> tuple[Any, Leaf]:
        """This thread's part of an operand's layout, and its offset."""
        i, j = MODES[operand]
        threads_values = self.tiled._thrfrg(operand, layout)
        number, *groups = self.coord_vmnk
        rest = (None,) * len(threads_values.shape[1][1])
        return slice_and_offset(((number, (groups[i], groups[j])), (None, rest)), threads_values)


def tiled_mma(
    atom: MmaAtom,
    warps: Layout | Sequence[int] = (1, 1, 1),
    permutation: Sequence[Any] | None = None,
) -> TiledMma:
    """The atom executed by `warps` groups of threads along M, N (and K).

    `warps` is a shape, numbered first mode fastest, or a layout that numbers the groups itself.
    For an atom of one thread the groups are threads.

    >>> from kdsl_core.atoms.sm80.mma import SM80_16x8x16_F32F16F16F32_TN as atom
    >>> mma = tiled_mma(atom, warps=(2, 2))
    >>> mma.size, mma.tile_shape, mma.partition_shape_C((128, 128))
    (128, (32, 16, 16), ((2, 2), 4, 8))

    Raises: LayoutError when more than M, N and K are given.
    """
    groups = warps if isinstance(warps, Layout) else Layout(tuple(warps))
    tilers = tuple(permutation or ())
    if len(groups) > 3 or len(tilers) > 3:
        raise LayoutError(
            f"a tiled mma repeats along M, N and K, got warps {groups} and permutation {tilers}",
            code="K181",
            fix="give two or three entries",
        )
    m, n, k = tilers + (None,) * (3 - len(tilers))
    return TiledMma(atom, append(groups, up_to=3), (m, n, k))
