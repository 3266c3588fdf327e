"""Each matrix atom against the fragment formulae of the PTX ISA, and against CuTe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from core.atoms.cute import FOREIGN, mma_of_record
from kdsl_core import atoms
from kdsl_core.atoms import ALL_MMA_ATOMS, MmaAtom
from kdsl_core.isa.mma import shape_of
from kdsl_core.layout import Layout, size

Place = Callable[[int, int], tuple[int, int]]

# PTX ISA, "Matrix multiply-accumulate operation using mma instruction": the row and the column of
# fragment element i of a lane, with groupID = lane >> 2 and threadID_in_group = lane % 4.


def c_of_m16n8(lane: int, i: int) -> tuple[int, int]:
    """Accumulators c0..c3 of every m16n8 shape."""
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def a_m16n8k16_half(lane: int, i: int) -> tuple[int, int]:
    """a0..a7 of .f16 and .bf16."""
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8


def b_m16n8k16_half(lane: int, i: int) -> tuple[int, int]:
    """b0..b3 of .f16 and .bf16, as (column, row) of the K × N matrix."""
    group, thread = lane >> 2, lane % 4
    return group, thread * 2 + (i & 1) if i < 2 else thread * 2 + (i & 1) + 8


def a_m16n8k8_half(lane: int, i: int) -> tuple[int, int]:
    """a0..a3 of .f16 and .bf16."""
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def b_m16n8k8_half(lane: int, i: int) -> tuple[int, int]:
    """b0..b1 of .f16 and .bf16, as (column, row)."""
    return lane >> 2, (lane % 4) * 2 + i


def a_m16n8k8_tf32(lane: int, i: int) -> tuple[int, int]:
    """a0..a3 of .tf32."""
    group, thread = lane >> 2, lane % 4
    return (group if i in (0, 2) else group + 8), (thread if i < 2 else thread + 4)


def b_m16n8k8_tf32(lane: int, i: int) -> tuple[int, int]:
    """b0..b1 of .tf32, as (column, row)."""
    return lane >> 2, (lane % 4 if i == 0 else lane % 4 + 4)


def a_m16n8k32_byte(lane: int, i: int) -> tuple[int, int]:
    """a0..a15 of .s8, .u8 and 8-bit floating point."""
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) if i < 8 else thread * 4 + (i & 3) + 16


def b_m16n8k32_byte(lane: int, i: int) -> tuple[int, int]:
    """b0..b7 of .s8, .u8 and 8-bit floating point, as (column, row)."""
    group, thread = lane >> 2, lane % 4
    return group, thread * 4 + (i & 3) if i < 4 else thread * 4 + (i & 3) + 16


FORMULAE: dict[tuple[tuple[int, int, int], int], tuple[Place, Place]] = {
    ((16, 8, 16), 16): (a_m16n8k16_half, b_m16n8k16_half),
    ((16, 8, 8), 16): (a_m16n8k8_half, b_m16n8k8_half),
    ((16, 8, 8), 32): (a_m16n8k8_tf32, b_m16n8k8_tf32),
    ((16, 8, 32), 8): (a_m16n8k32_byte, b_m16n8k32_byte),
}
WARP_ATOMS = [atom for atom in ALL_MMA_ATOMS if atom.threads == 32]


def differences(tv: Layout, rows: int, place: Place) -> list[tuple[int, int]]:
    """The (lane, value) pairs that a thread-value layout puts elsewhere than a formula does."""
    odd = []
    for lane in range(32):
        for i in range(size(tv[1])):
            row, column = place(lane, i)
            if tv((lane, i)) != row + rows * column:
                odd.append((lane, i))
    return odd


def wrong_elements(atom: MmaAtom) -> int:
    """How many fragment elements of an atom disagree with the PTX ISA."""
    a, b = FORMULAE[atom.shape_mnk, atom.a.bits]
    m, n, _ = atom.shape_mnk
    sides = ((atom.tv_a, m, a), (atom.tv_b, n, b), (atom.tv_c, m, c_of_m16n8))
    return sum(len(differences(*side)) for side in sides)


@pytest.mark.parametrize("atom", WARP_ATOMS, ids=str)
def test_fragments_lie_where_ptx_says(atom: MmaAtom) -> None:
    """Every element of A, B and C is in the lane and register position of the ISA's formulae."""
    assert wrong_elements(atom) == 0


@pytest.mark.parametrize("atom", WARP_ATOMS, ids=str)
def test_fragments_hold_each_element_once(atom: MmaAtom) -> None:
    """The layouts are bijections onto the matrices."""
    m, n, k = atom.shape_mnk
    for tv, count in ((atom.tv_a, m * k), (atom.tv_b, n * k), (atom.tv_c, m * n)):
        assert sorted(tv(i) for i in range(size(tv))) == list(range(count))


def swapped_strides(tv: Layout) -> Layout:
    """The layout with the strides of its two thread modes exchanged, extents kept."""
    (group, thread), values = tv.stride
    return Layout(tv.shape, ((thread, group), values))


def test_a_wrong_stride_is_detected() -> None:
    """Exchanging two strides of any layout of any atom contradicts the formulae."""
    for atom in WARP_ATOMS:
        for side in ("tv_a", "tv_b", "tv_c"):
            mutant = dataclasses.replace(atom, **{side: swapped_strides(getattr(atom, side))})
            assert wrong_elements(mutant) > 0, (atom, side)


def test_rows_agree_with_cute() -> None:
    """Shape, threads, layouts and widths are those of the CuTe C++ headers."""
    checked = 0
    for atom in ALL_MMA_ATOMS:
        name = "UniversalFMA<float>" if atom.name == "UNIVERSAL_FMA_F32" else atom.name
        if name in FOREIGN:
            theirs = mma_of_record(FOREIGN[name])
            mine = dataclasses.replace(
                atom, name=name, mnemonic="", need=theirs.need, **types_by_width(atom)
            )
            assert mine == dataclasses.replace(theirs, **types_by_width(theirs)), atom
            checked += 1
    assert checked >= 14


def types_by_width(atom: MmaAtom) -> dict[str, object]:
    """Widths in place of types: CuTe's records hold no more."""
    return {x: getattr(atom, x).bits for x in "dabc"}


@pytest.mark.parametrize("atom", WARP_ATOMS, ids=str)
def test_each_atom_is_an_instruction(atom: MmaAtom) -> None:
    """The instruction family has the atom's shape and types, spelled the same way."""
    shape = shape_of(atom.shape_mnk, atom.types)
    assert (shape.text, shape.need) == (atom.mnemonic, atom.need)


def test_names_follow_the_schema() -> None:
    """An atom's name is its module attribute and tells architecture, shape and types."""
    letters = {"i32": "S32", "i8": "S8"}
    for atom in ALL_MMA_ATOMS:
        assert getattr(atoms, atom.name) is atom
        if atom in WARP_ATOMS:
            shape = "x".join(map(str, atom.shape_mnk))
            types = "".join(letters.get(t.name, t.name.upper()) for t in atom.types)
            assert atom.name == f"SM{atom.need.sm}_{shape}_{types}_TN"
    assert len({atom.name for atom in ALL_MMA_ATOMS}) == len(ALL_MMA_ATOMS)
