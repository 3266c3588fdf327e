"""Atoms of warp groups against the PTX ISA and CuTe, and layouts of their operands."""

from __future__ import annotations

import numpy as np
import pytest

from core.atoms.cute import FOREIGN, mma_of_record
from core.isa.test_wgmma import isa_a, isa_d
from kdsl_core import atoms
from kdsl_core.atoms.sm90.shared_layouts import SPANS, UNIT
from kdsl_core.dtypes import DType, bf16, e4m3, f16, i8, tf32
from kdsl_core.errors import LayoutError, TypeMismatch
from kdsl_core.layout import ComposedLayout, Layout, Swizzle, size
from kdsl_core.sim.descriptors import element_addresses

OF_16_BITS = [(dtype, major) for dtype in (f16, bf16) for major in ("K", "MN")]
OPERANDS: list[tuple[DType, str]] = [*OF_16_BITS, (tf32, "K"), (e4m3, "K"), (i8, "K")]


@pytest.mark.parametrize("a", ["f16", "tf32", "e4m3", "i8"])
def test_fragments_lie_where_ptx_says(a: str) -> None:
    """Accumulators and A in registers are at the places of the ISA's formulae."""
    atom = atoms.wgmma(24, a, a_from="registers")
    for thread in range(128):
        for i in range(size(atom.tv_c[1])):
            row, column = isa_d(thread, i)
            assert atom.tv_c((thread, i)) == row + 64 * column
        for i in range(size(atom.tv_a[1])):
            row, column = isa_a(atom.a.bits, thread, i)
            assert atom.tv_a((thread, i)) == row + 64 * column


def test_rows_agree_with_cute() -> None:
    """Shape, threads, layouts and widths are those of the CuTe C++ headers."""
    names = [name for name in FOREIGN if name.startswith("SM90_64x")]
    assert len(names) >= 3
    for name in names:
        mine, theirs = getattr(atoms, name.replace("<K,K>", "")), mma_of_record(FOREIGN[name])
        for part in ("shape_mnk", "thr_id", "tv_a", "tv_b", "tv_c"):
            assert getattr(mine, part) == getattr(theirs, part), (name, part)
        assert [t.bits for t in mine.types] == [t.bits for t in theirs.types]


def test_names_and_choices() -> None:
    """Names are CuTe's, lead back to the atom, and unknown ones are unknown."""
    for atom in (
        atoms.wgmma(128, "bf16"),
        atoms.wgmma(64, "f16", d="f16", a_major="MN", b_major="K"),
        atoms.wgmma(96, "e4m3", "e5m2", a_from="registers"),
        atoms.wgmma(32, "i8", "u8"),
    ):
        assert atoms.wgmma_named(atom.name) is atom
    assert atoms.SM90_64x32x32_S32S8U8_SS_TN.need.ptx == (8, 4)
    assert atoms.wgmma_named("SM90_64x32x16_S32S8U8_SS_TN") is None
    assert atoms.find(arch="sm_90a", a="bf16", n=256) is atoms.SM90_64x256x16_F32BF16BF16_SS
    assert atoms.tiled_mma(atoms.wgmma(64, "f16"), warps=(2, 1)).tile_shape == (128, 64, 16)
    with pytest.raises(AttributeError, match="no 'SM90_64x12x16_X'"):
        _ = atoms.SM90_64x12x16_X
    for choice in ({"a_major": "MN", "a_from": "registers"}, {"b_major": "N"}, {"a_from": "smem"}):
        with pytest.raises(TypeMismatch) as caught:
            atoms.wgmma(64, "f16", **choice)
        assert caught.value.code == "K288"


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize(("dtype", "major"), OPERANDS, ids=str)
def test_descriptors_name_every_element(dtype: DType, major: str, swizzle: int) -> None:
    """The addresses that a descriptor means are those of the layout, swizzle included."""
    rows, depth = 128, 256 // dtype.bytes
    layout = atoms.shared_operand(dtype, (rows, depth), major=major, swizzle=swizzle, stages=2)
    step = 32 // dtype.bytes
    mma = atoms.tiled_mma(atoms.wgmma(64, dtype, a_major=major, b_major=major))
    part, _ = mma.get_slice(0).partition_A(layout.inner)
    tile = ComposedLayout(layout.outer, 0, part[0])
    code, leading, stride = atoms.descriptor_fields(tile, dtype, major)
    constant = code << 62 | (stride >> 4) << 32 | (leading >> 4) << 16
    for m, k, stage in ((0, 0, 0), (1, 1, 0), (1, depth // step - 1, 1)):
        start = (part[1](m) + part[2](k) + part[3](stage)) * dtype.bytes
        descriptor = np.array([constant + ((start + 4096) >> 4)], np.uint64)
        meant = element_addresses(descriptor, 0, 64, step, dtype.bytes, major)[0]
        for row, column in np.ndindex(64, step):
            at = layout(64 * m + row, step * k + column, stage)
            assert meant[row, column] == 4096 + at * dtype.bytes


def test_fields_of_the_usual_operands() -> None:
    """The numbers of K-major and MN-major tiles with 128-byte swizzles."""
    k_major = atoms.shared_operand(bf16, (128, 64))
    assert k_major == ComposedLayout(
        Swizzle(3, 3, 3), 0, Layout(((8, 16), (64, 1), (1, 1)), ((64, 512), (1, 0), (0, 0)))
    )
    piece = ComposedLayout(k_major.outer, 0, Layout((128, 16), (64, 1)))
    assert atoms.descriptor_fields(piece, bf16, "K") == (1, 16, 1024)
    panels = Layout(((64, 2), 16), ((1, 4096), 64))  # of 64 × 64, as shared_operand has them
    mn_major = ComposedLayout(Swizzle(3, 3, 3), 0, panels)
    assert atoms.descriptor_fields(mn_major, bf16, "MN") == (1, 64 * 128, 1024)


@pytest.mark.parametrize(
    ("shape", "major", "span"),
    [((64, 64), "K", 128), ((64, 96), "K", 64), ((64, 48), "K", 32), ((64, 8), "K", 16),
     ((96, 64), "MN", 64), ((8, 64), "MN", 16)],
)  # fmt: skip
def test_the_widest_span_is_chosen(shape: tuple[int, int], major: str, span: int) -> None:
    """Without a swizzle named, the contiguous extent decides."""
    layout = atoms.shared_operand(f16, shape, major=major, stages=3)
    assert span in SPANS and layout.outer.bits == (span // UNIT).bit_length() - 1
    assert layout.inner[2].stride[1] == shape[0] * shape[1]


def test_layouts_that_are_refused() -> None:
    """Extents that do not fill atoms, unknown choices, foreign swizzles, transposed tiles."""
    plain = Layout((64, 16), (64, 1))
    for code, make in {
        "K441": lambda: atoms.shared_operand(f16, (60, 64)),
        "K289": lambda: atoms.shared_operand(f16, (64, 64), swizzle=16 * 3),
        "K185": lambda: atoms.descriptor_fields(
            ComposedLayout(Swizzle(2, 3, 4), 0, plain), f16, "K"
        ),
        "K442": lambda: atoms.descriptor_fields(
            ComposedLayout(Swizzle(3, 3, 3), 0, plain), f16, "MN"
        ),
    }.items():
        with pytest.raises(LayoutError) as caught:
            make()
        assert caught.value.code == code
    with pytest.raises(LayoutError, match="runs of 16 bytes"):
        atoms.descriptor_fields(plain, f16, "K")
