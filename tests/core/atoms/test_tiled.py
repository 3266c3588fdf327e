"""Partitions by their post-conditions: coverage, products, matrix loads, run-time threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.layout.dynamic import Dyn, known
from kdsl_core import atoms
from kdsl_core.atoms import (
    CopyAtom,
    MmaAtom,
    TiledMma,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    tiled_mma,
)
from kdsl_core.atoms.tiled_mma import MODES, Operand
from kdsl_core.dtypes import DType, f16, f32, i8, tf32
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    get,
    make_identity_layout,
    product,
    size,
)

HALF = atoms.SM80_16x8x16_F32F16F16F32_TN
SHAPE = {"A": (64, 32), "B": (32, 32), "C": (64, 32)}
TILINGS = [
    tiled_mma(HALF),
    tiled_mma(HALF, (2, 2)),
    tiled_mma(HALF, Layout((2, 2, 1), (2, 1, 0))),
    tiled_mma(HALF, (2, 2), (None, 32, 16)),
    tiled_mma(HALF, (2, 2), (None, Layout((8, 2, 2), (1, 16, 8)), None)),
    tiled_mma(atoms.SM80_16x8x8_F32TF32TF32F32_TN, (4, 1)),
    tiled_mma(atoms.SM80_16x8x32_S32S8S8S32_TN, (1, 2)),
    tiled_mma(atoms.UNIVERSAL_FMA_F32, (16, 8)),
]


def indices(part: tuple[Any, Any]) -> list[int]:
    """The values of a (layout, offset), run-time numbers by the value they stand for."""
    layout, offset = part
    return [known(layout(i)) + known(offset) for i in range(size(layout))]


def fragments(mma: TiledMma, operand: Operand, matrix: np.ndarray) -> np.ndarray:
    """[thread, value, rest, rest] of a row-major matrix."""
    rows, columns = matrix.shape
    parts = [
        mma.get_slice(t).partition(operand, Layout((rows, columns), (columns, 1)))
        for t in range(mma.size)
    ]
    shape = [size(mode) for mode in parts[0][0]]
    flat = np.array([matrix.ravel()[indices(part)] for part in parts])
    return flat.reshape((mma.size, *shape), order="F") if len(shape) == 3 else flat


def test_every_element_of_c_has_one_owner() -> None:
    """The threads' parts of C cover a tile, each element once."""
    for mma in TILINGS:
        layout = Layout(SHAPE["C"])
        held = [i for t in range(mma.size) for i in indices(mma.get_slice(t).partition_C(layout))]
        assert sorted(held) == list(range(size(layout))), mma


def test_every_element_of_a_and_b_is_held() -> None:
    """The threads' parts of A and B cover a tile, as often as groups share it."""
    for mma in TILINGS:
        for operand in ("A", "B"):
            layout = Layout(SHAPE[operand])
            held = [
                i
                for t in range(mma.size)
                for i in indices(mma.get_slice(t).partition(operand, layout))
            ]
            missing = MODES["B"][0] if operand == "A" else MODES["A"][0]
            assert sorted(held) == sorted([*range(size(layout))] * mma.groups[missing]), mma


def matrix_of(values: np.ndarray, tv: Layout, rows: int) -> np.ndarray:
    """The matrix that an atom's threads hold: values [thread, value] at tv's places."""
    out = np.empty(values.size)
    for t in range(values.shape[0]):
        for v in range(values.shape[1]):
            out[tv((t, v))] = values[t, v]
    return out.reshape((rows, -1), order="F")


@pytest.mark.parametrize("mma", TILINGS[:6], ids=range(6))
def test_atoms_on_partitions_multiply_the_matrices(mma: TiledMma) -> None:
    """Each group's atoms, fed by partition_A and partition_B, give its partition_C of A·Bᵀ."""
    rng = np.random.default_rng(7)
    a, b = rng.integers(-4, 4, SHAPE["A"]), rng.integers(-4, 4, SHAPE["B"])
    frag = {"A": fragments(mma, "A", a), "B": fragments(mma, "B", b)}
    expected = fragments(mma, "C", a @ b.T)
    atom, lanes = mma.atom, mma.atom.threads
    m, n, _ = atom.shape_mnk
    for first in range(0, mma.size, lanes):
        group = slice(first, first + lanes)
        for i in range(expected.shape[2]):
            for j in range(expected.shape[3]):
                total = sum(
                    matrix_of(frag["A"][group, :, i, k], atom.tv_a, m)
                    @ matrix_of(frag["B"][group, :, j, k], atom.tv_b, n).T
                    for k in range(frag["A"].shape[3])
                )
                want = matrix_of(expected[group, :, i, j], atom.tv_c, m)
                assert np.array_equal(total, want)


def test_fragments_keep_the_atoms_values_together() -> None:
    """Register layouts count the atom's values first, so that packed words are whole."""
    mma = tiled_mma(HALF, (2, 2))
    assert mma.fragment("A", (128, 32)) == Layout(((2, 2, 2), 4, 2))
    assert mma.partition_shape_B((128, 32)) == ((2, 2), 8, 2)
    assert mma.fragment("C", (128, 128)) == Layout(((2, 2), 4, 8))


# -- run-time threads and strides ----------------------------------------------------------------


def test_partitions_at_run_time_decide_nothing() -> None:
    """A run-time thread and leading stride give the values of the static computation."""
    for mma in TILINGS:
        for operand in ("A", "B", "C"):
            for order in ((1, 0), (0, 1)):
                static, dynamic = (
                    Layout(SHAPE[operand], tuple([1 if i else lead for i in order]))
                    for lead in (1000, Dyn(1000))
                )
                got = mma.get_slice(Dyn(21)).partition(operand, dynamic)
                assert indices(got) == indices(mma.get_slice(21).partition(operand, static))


def test_further_modes_are_kept() -> None:
    """K tiles of run-time number and pipeline stages pass through a partition."""
    mma, tiles = TILINGS[1], Dyn(9)
    layout, _ = mma.get_slice(Dyn(3)).partition_A(Layout((64, 32, tiles), (Dyn(512), 1, 32)))
    assert layout.shape[3] is tiles
    assert layout.stride[3] == 32
    copy = make_tiled_copy(atoms.cp_async(16), f16, Layout((32, 4), (4, 1)), Layout((1, 8)))
    layout, _ = copy.get_slice(Dyn(3)).partition_S(Layout((64, 32, tiles), (Dyn(512), 1, 32)))
    assert layout.shape[3] is tiles


def test_copies_at_run_time_decide_nothing() -> None:
    """The same for a tiled copy, along rows and along columns."""
    along_k = make_tiled_copy(atoms.cp_async(16), f16, Layout((16, 8), (8, 1)), Layout((1, 8)))
    along_m = make_tiled_copy(atoms.cp_async(16), f16, Layout((8, 16)), Layout((8, 1)))
    from_a = make_tiled_copy_A(atoms.ldmatrix(4), TILINGS[1])
    for copy, order in ((along_k, (1, 0)), (along_m, (0, 1)), (from_a, (1, 0))):
        static, dynamic = (
            Layout((128, 64), (lead, 1) if order[0] else (1, lead)) for lead in (512, Dyn(512))
        )
        for side in ("partition_S", "partition_D"):
            got = getattr(copy.get_slice(Dyn(77)), side)(dynamic)
            assert indices(got) == indices(getattr(copy.get_slice(77), side)(static))


def test_identity_partitions_give_coordinates() -> None:
    """Predicates compare the coordinates that a partition of the identity layout gives."""
    mma = tiled_mma(HALF, (2, 2))
    layout, offset = mma.get_slice(Dyn(77)).partition_C(make_identity_layout((128, 128)))
    linear, start = mma.get_slice(77).partition_C(Layout((128, 128), (128, 1)))
    for i in range(size(layout)):
        row, column = layout(i) + offset
        assert known(row) * 128 + known(column) == linear(i) + start


# -- copies --------------------------------------------------------------------------------------


def load_through(
    mma: TiledMma, atom: CopyAtom, operand: Operand, smem: Layout | ComposedLayout
) -> None:
    """Load an operand with ldmatrix through retile, and compare with partitioning it."""
    make = {"A": make_tiled_copy_A, "B": make_tiled_copy_B}[operand]
    copy = make(atom, mma)
    shape = tuple([size(get(smem, i)) for i in (0, 1)])
    fragment = mma.fragment(operand, shape)
    view = copy.retile(fragment)
    _, dst, ref = atom.value_layouts(copy.dtype)
    assert dst == ref
    registers = np.full((mma.size, size(fragment)), -1)
    sources = [indices(copy.get_slice(t).partition_S(smem)) for t in range(mma.size)]
    per_row, per_call = 128 // copy.dtype.bits, size(dst[1])
    for call in range(size(view) // per_call):
        for warp in range(0, mma.size, 32):
            # what the lanes' addresses name, row by row, for the lanes of the matrices
            block = [
                sources[warp + lane][call * per_row + e]
                for lane in range(8 * atom.matrices)
                for e in range(per_row)
            ]
            for lane in range(32):
                for v in range(per_call):
                    place = view(call * per_call + v)
                    registers[warp + lane, place] = block[dst((lane, v))]
    for t in range(mma.size):
        assert list(registers[t]) == indices(mma.get_slice(t).partition(operand, smem)), t


SWIZZLED = ComposedLayout(Swizzle(2, 3, 3), 0, Layout((64, 32), (32, 1)))


@pytest.mark.parametrize(
    ("atom", "mma_atom", "dtype"),
    [
        (atoms.SM75_U32x4_LDSM_N, HALF, f16),
        (atoms.SM75_U32x2_LDSM_N, HALF, f16),
        (atoms.SM75_U32x4_LDSM_N, atoms.SM80_16x8x8_F32TF32TF32F32_TN, tf32),
        (atoms.SM75_U32x4_LDSM_N, atoms.SM80_16x8x32_S32S8S8S32_TN, i8),
    ],
    ids=str,
)
def test_matrix_loads_of_a_fill_the_fragment(
    atom: CopyAtom, mma_atom: MmaAtom, dtype: DType
) -> None:
    """Row addresses from partition_S and registers from retile give each thread its A."""
    assert mma_atom.a is dtype
    mma = tiled_mma(mma_atom, (2, 1))
    load_through(mma, atom, "A", Layout((64, 32), (32, 1)))
    load_through(mma, atom, "A", SWIZZLED)


def test_matrix_loads_of_b_fill_the_fragment() -> None:
    """The same for B, two matrices at a time, or four where the tile is twice as wide."""
    plain = Layout((64, 32), (32, 1))
    load_through(tiled_mma(HALF, (2, 2)), atoms.SM75_U32x2_LDSM_N, "B", plain)
    load_through(tiled_mma(HALF, (2, 2), (None, 32, 16)), atoms.SM75_U32x4_LDSM_N, "B", plain)
    load_through(tiled_mma(HALF, (2, 2), (None, 32, 16)), atoms.SM75_U32x4_LDSM_N, "B", SWIZZLED)


def test_transposed_loads_read_the_other_major() -> None:
    """An operand whose M or N is contiguous is loaded transposed."""
    columns = Layout((64, 32), (1, 64))
    load_through(tiled_mma(HALF, (2, 1)), atoms.SM75_U16x8_LDSM_T, "A", columns)
    load_through(tiled_mma(HALF, (1, 2)), atoms.SM75_U16x4_LDSM_T, "B", columns)


def test_stores_of_c_take_the_accumulators_apart() -> None:
    """Retiled accumulators and the copy's destination name the same elements, in order."""
    mma = tiled_mma(HALF, (2, 2))
    smem = Layout((64, 32), (32, 1))
    fragment = mma.fragment("C", (64, 32))
    for atom, dtype in ((atoms.universal_copy(32), f16), (atoms.universal_copy(64), f32)):
        copy = make_tiled_copy_C(atom, mma, dtype)
        view = copy.retile(fragment)
        for t in (0, 21, 77, 127):
            held = indices(mma.get_slice(t).partition_C(smem))
            stored = indices(copy.get_slice(t).partition_D(smem))
            assert [held[view(i)] for i in range(size(view))] == stored


def test_a_tiled_copy_covers_its_tile_once() -> None:
    """Every element has one thread on each side."""
    copy = make_tiled_copy(atoms.cp_async(16), f16, Layout((16, 8), (8, 1)), Layout((1, 8)))
    assert (copy.size, copy.tile_shape) == (128, (16, 64))
    tile = Layout((64, 64), (64, 1))
    for side in ("partition_S", "partition_D"):
        parts = [getattr(copy.get_slice(t), side)(tile) for t in range(copy.size)]
        assert sorted(i for part in parts for i in indices(part)) == list(range(64 * 64))
        assert product(parts[0][0].shape[0]) == 8


# -- refusals ------------------------------------------------------------------------------------


def test_wrong_tilings_are_refused() -> None:
    """Too few modes, too many groups, threads that no atom divides."""
    mma = tiled_mma(HALF, (2, 2))
    copy = make_tiled_copy(atoms.cp_async(16), f16, Layout((16, 8), (8, 1)), Layout((1, 8)))
    refusals = [
        (lambda: mma.get_slice(0).partition_A(Layout(64)), "K184"),
        (lambda: tiled_mma(HALF, (2, 2, 1, 1)), "K181"),
        (
            lambda: make_tiled_copy(
                atoms.cp_async(16), f16, Layout((16, 8), (8, 1)), Layout((1, 4))
            ),
            "K182",
        ),
        (lambda: copy.get_slice(0).partition_S(Layout(64)), "K183"),
    ]
    for call, code in refusals:
        with pytest.raises(LayoutError) as caught:
            call()
        assert caught.value.code == code
