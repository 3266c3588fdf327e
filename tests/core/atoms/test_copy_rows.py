"""Each copy atom against the PTX ISA's description of the instruction, and against CuTe."""

from __future__ import annotations

import dataclasses

import pytest

from core.atoms.cute import OF_BITS, copy_atom, records
from core.layout.golden import decode
from kdsl_core import atoms
from kdsl_core.atoms import ALL_COPY_ATOMS, CopyAtom
from kdsl_core.dtypes import f16, f32, u8
from kdsl_core.errors import TypeMismatch
from kdsl_core.layout import Layout, size

MATRIX_ATOMS = [atom for atom in ALL_COPY_ATOMS if atom.matrices]


def memory_side(atom: CopyAtom) -> Layout:
    """(lane, element) ↦ element of the block, where lanes name rows."""
    src, dst, _ref = atom.value_layouts(f16)
    return src if atom.kind == "ldmatrix" else dst


def register_side(atom: CopyAtom) -> Layout:
    """(lane, element) ↦ element of the block, where lanes hold fragments."""
    src, dst, _ref = atom.value_layouts(f16)
    return dst if atom.kind == "ldmatrix" else src


def row_start(atom: CopyAtom, lane: int) -> int:
    """Threads 0–7 hold the row addresses of matrix 0, 8–15 of matrix 1, and so on; with fewer
    matrices the other threads repeat them."""
    return lane % (8 * atom.matrices) * 8


def fragment_element(atom: CopyAtom, lane: int, register: int, half: int) -> int:
    """Thread t holds row t / 4, elements 2·(t % 4) and the next, of each matrix; transposed,
    the same of its columns."""
    row, column = lane // 4, 2 * (lane % 4) + half
    if atom.transposed:
        row, column = column, row
    return 64 * register + 8 * row + column


def misplaced(atom: CopyAtom) -> int:
    """How many elements the atom's layouts put elsewhere than the ISA does."""
    rows, fragments = memory_side(atom), register_side(atom)
    wrong = sum(
        rows((lane, i)) != row_start(atom, lane) + i for lane in range(32) for i in range(8)
    )
    return wrong + sum(
        fragments((lane, 2 * r + half)) != fragment_element(atom, lane, r, half)
        for lane in range(32)
        for r in range(atom.matrices)
        for half in (0, 1)
    )


@pytest.mark.parametrize("atom", MATRIX_ATOMS, ids=str)
def test_matrices_lie_where_ptx_says(atom: CopyAtom) -> None:
    """Row addresses and fragments of ldmatrix and stmatrix are the ISA's."""
    assert size(register_side(atom)) == 64 * atom.matrices
    assert misplaced(atom) == 0


def test_a_wrong_stride_is_detected() -> None:
    """Exchanging the strides of the fragment's first two values or lanes contradicts the ISA."""
    for atom in MATRIX_ATOMS:
        side = "dst" if atom.kind == "ldmatrix" else "src"
        tv: Layout = getattr(atom, side)
        lanes, values = tv.stride
        if isinstance(lanes, tuple):
            mutant = Layout(tv.shape, (lanes[::-1], values))
        else:
            mutant = Layout(tv.shape, (2 * lanes, values))
        assert misplaced(dataclasses.replace(atom, **{side: mutant})) > 0, atom


def test_rows_agree_with_cute() -> None:
    """Threads and bit layouts, and layouts in elements, are those of the CuTe C++ headers."""
    checked = 0
    for record in records("copy_traits"):
        name, *bits = record["args"]
        atom, result = copy_atom(name), record["result"]
        if atom is None or (bits and bits[0] > atom.bits):
            continue  # CuTe lets an atom of 8 bits move elements of 32; kdsl refuses
        if bits:
            expected = tuple(decode(result[f"ValLayout{x}"]) for x in ("Src", "Dst", "Ref"))
            assert atom.value_layouts(OF_BITS[bits[0]]) == expected, record
        else:
            keys = ("ThrID", "SrcLayout", "DstLayout", "RefLayout")
            assert (atom.thr_id, atom.src, atom.dst, atom.ref) == tuple(
                decode(result[key]) for key in keys
            ), record
        checked += 1
    assert checked >= 50


def test_elements_wider_than_pieces_are_refused() -> None:
    """What CuTe rejects at compile time is a type error that names both widths."""
    for record in records("rejected"):
        if record["op"] == "copy_atom_val_layouts":
            name, bits = record["args"]
            atom = copy_atom(name)
            assert atom is not None
            with pytest.raises(TypeMismatch, match=r"pieces of 16 bits.*u32 has 32") as caught:
                atom.value_layouts(OF_BITS[bits])
            assert caught.value.code == "K240"
    with pytest.raises(TypeMismatch, match="pieces of 8 bits"):
        atoms.UNIVERSAL_COPY_8.value_layouts(f32)
    assert atoms.UNIVERSAL_COPY_8.value_layouts(u8)[0] == Layout((1, 1), (0, 1))


def test_convenience_names_give_the_rows() -> None:
    """Atoms by what they move: bytes, bits, matrices."""
    assert atoms.universal_copy(64) is atoms.UNIVERSAL_COPY_64
    assert atoms.cp_async(16) is atoms.SM80_CP_ASYNC_CACHEGLOBAL_U128
    assert atoms.cp_async(16, cache="ca") is atoms.SM80_CP_ASYNC_CACHEALWAYS_U128
    assert atoms.cp_async(4, zfill=True) is atoms.SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U32
    assert atoms.ldmatrix(4) is atoms.SM75_U32x4_LDSM_N
    assert atoms.ldmatrix(2, transposed=True) is atoms.SM75_U16x4_LDSM_T
    assert atoms.stmatrix(4) is atoms.SM90_U32x4_STSM_N
    for atom in ALL_COPY_ATOMS:
        assert getattr(atoms, atom.name) is atom


def test_widths_that_no_instruction_has_are_refused() -> None:
    """Each convenience name says what exists."""
    refusals = [
        (lambda: atoms.universal_copy(256), "K241", "8, 16, 32, 64 or 128 bits"),
        (lambda: atoms.cp_async(2), "K242", "4, 8 or 16 bytes"),
        (lambda: atoms.cp_async(8, cache="cg"), "K242", "16 only"),
        (lambda: atoms.ldmatrix(3), "K243", "1, 2 or 4"),
        (lambda: atoms.stmatrix(8), "K244", "1, 2 or 4"),
    ]
    for call, code, words in refusals:
        with pytest.raises(TypeMismatch, match=words) as caught:
            call()
        assert caught.value.code == code


def test_only_stmatrix_needs_hopper() -> None:
    """The target is checked where an atom becomes an instruction."""
    assert {atom.need.sm for atom in ALL_COPY_ATOMS if atom.kind == "stmatrix"} == {90}
    assert {atom.need.sm for atom in ALL_COPY_ATOMS if atom.kind != "stmatrix"} == {80}
