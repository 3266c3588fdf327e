"""Matrix descriptors of wgmma, against the canonical layouts as layouts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kdsl_core.atoms.sm90.shared_layouts import descriptor_fields, shared_operand
from kdsl_core.dtypes import DType, bf16, e4m3, f32
from kdsl_core.layout import ComposedLayout, Layout, Swizzle, composition
from kdsl_core.sim.descriptors import chunk_addresses, decode, element_addresses, from_chunks

CODES = {0: 0, 128: 1, 64: 2, 32: 3}
START = 0x2400


def encode(start: int, leading: int, stride: int, swizzle: int, base: int = 0) -> int:
    """A descriptor of byte quantities."""
    fields = ((start >> 4, 0), (leading >> 4, 16), (stride >> 4, 32), (base, 49))
    return sum(value << at for value, at in fields) | CODES[swizzle] << 62


def canonical(
    swizzle: int, size: int, major: str, rows: int, depth: int, leading: int, stride: int
) -> Any:
    """The layout (row, depth) → bytes from an aligned start, by its definition.

    T elements make 16 bytes; the strides below are in bytes.
    """
    t, many = 16 // size, max(swizzle // 16, 1)
    if major == "K" and swizzle:
        shape: Any = ((8, rows // 8), (t, depth // t))
        strides: Any = ((16 * many, stride), (size, 16))
    elif major == "K":
        shape, strides = ((8, rows // 8), (t, depth // t)), ((16, stride), (size, leading))
    elif swizzle:
        shape = ((t, many, rows // (t * many)), (8, depth // 8))
        strides = ((size, 16, leading), (16 * many, stride))
    else:
        shape, strides = ((t, rows // t), (8, depth // 8)), ((size, stride), (16, leading))
    bits = many.bit_length() - 1
    return ComposedLayout(Swizzle(bits, 4, 3), START, Layout(shape, strides))


def cases() -> Any:
    """(swizzle, element bytes, major, rows) of what wgmma reads: transposed only 16-bit types."""
    for swizzle in (0, 32, 64, 128):
        for size in (1, 2, 4):
            yield from ((swizzle, size, "K", rows) for rows in (8, 64, 104, 256))
        yield from ((swizzle, 2, "MN", rows) for rows in (64, 128, 256))


@pytest.mark.parametrize(("swizzle", "size", "major", "rows"), list(cases()))
def test_canonical_layouts(swizzle: int, size: int, major: str, rows: int) -> None:
    """Elements lie where the canonical layout of the descriptor's fields puts them."""
    rng = random.Random(f"{swizzle} {size} {major} {rows}")
    depth = 32 // size
    leading, stride = 16 * rng.randint(8, 500), 16 * rng.randint(8, 500)
    if swizzle:  # the pattern repeats with its rows, so cores start where it does
        leading, stride = (n // (8 * swizzle) * 8 * swizzle for n in (leading, stride))
    layout = canonical(swizzle, size, major, rows, depth, leading, stride)
    want = [[layout(r, k) for k in range(depth)] for r in range(rows)]
    descriptor = np.array([encode(START, leading, stride, swizzle)], np.uint64)
    got = element_addresses(descriptor, 0, rows, depth, size, major)
    np.testing.assert_array_equal(got, [want])


@pytest.mark.parametrize(("swizzle", "size", "major", "rows"), list(cases()))
def test_chunks_hold_the_elements(swizzle: int, size: int, major: str, rows: int) -> None:
    """Sixteen bytes at a time, put in order, are the elements one by one; any rows of them."""
    rng = np.random.default_rng(rows)
    memory = rng.integers(0, 256, 1 << 18, np.uint8)
    dtype = np.dtype(f"u{size}")
    starts = np.array([START, START + 2048, START + 1088], np.uint64)
    descriptor = np.array([encode(int(s), 4096, 1024, swizzle) for s in starts], np.uint64)
    first, count = (rows // 2, rows // 2) if rows % 16 == 0 else (0, rows)
    asked = (first, count, 32 // size, size, major)
    chunks = chunk_addresses(descriptor, *asked)
    got = from_chunks(memory[chunks[..., None] + np.arange(16)], dtype, major)
    want = memory.view(dtype)[element_addresses(descriptor, *asked) // size]
    np.testing.assert_array_equal(got, want)


def test_steps_along_k_stay_in_a_swizzled_line() -> None:
    """Advancing the start by 32 bytes names the next 16 elements of every 128-byte row."""
    row, k = np.arange(64)[:, None], np.arange(64)
    dense = START + row * 128 + k * 2
    tile = dense ^ (dense >> 7 & 7) << 4
    for step in range(4):
        descriptor = np.array([encode(START + 32 * step, 16, 1024, 128)], np.uint64)
        got = element_addresses(descriptor, 0, 64, 16, 2, "K")
        np.testing.assert_array_equal(got[0], tile[:, 16 * step : 16 * step + 16])


def test_base_offset_moves_the_pattern() -> None:
    """A pattern that starts three rows off its boundary has the base offset 3."""
    aligned = np.array([encode(START, 16, 1024, 128)], np.uint64)
    moved = np.array([encode(START + 3 * 128, 16, 1024, 128, base=3)], np.uint64)
    want = element_addresses(aligned, 0, 64, 16, 2, "K") + 3 * 128
    np.testing.assert_array_equal(element_addresses(moved, 0, 64, 16, 2, "K"), want)


def test_fields() -> None:
    """The bits of the constant that 128-byte rows of 16-bit elements take."""
    fields = decode(np.array([0x4000004000010000 | 0x2400 >> 4], np.uint64))
    named = (fields.start, fields.leading, fields.stride, fields.base, fields.line)
    assert [int(field[0]) for field in named] == [0x2400, 16, 1024, 0, 128]


def corner(layout: Layout, rows: int, depth: int) -> Layout:
    """The operand of one instruction, where a tile (rows, depth, stages) starts."""
    m, k = composition(layout[0], Layout(rows)), composition(layout[1], Layout(depth))
    return Layout((m.shape, k.shape), (m.stride, k.stride))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(
    ("dtype", "major"), [(e4m3, "K"), (bf16, "K"), (f32, "K"), (bf16, "MN")], ids=str
)
def test_fields_of_shared_operands(dtype: DType, major: str, swizzle: int) -> None:
    """What is derived from a tile's layout names its elements, for each block of rows and step."""
    size, depth = dtype.bytes, 32 // dtype.bytes
    for rows, columns in ((64, 8 * depth), (192, 4 * depth)):
        whole = shared_operand(dtype, (rows, columns), major=major, swizzle=swizzle)
        dense = np.array([[whole.inner(r, k, 0) for k in range(columns)] for r in range(rows)])
        tile = np.array([[whole(r, k, 0) for k in range(columns)] for r in range(rows)])
        instruction = ComposedLayout(whole.outer, 0, corner(whole.inner, rows, depth))
        code, leading, stride = descriptor_fields(instruction, dtype, major)
        assert code == CODES[swizzle]
        for k in range(0, columns, depth):
            start = START + int(dense[0, k]) * size
            descriptor = np.array([encode(start, leading, stride, swizzle)], np.uint64)
            got = element_addresses(descriptor, 0, rows, depth, size, major)
            np.testing.assert_array_equal(got[0], START + size * tile[:, k : k + depth])
