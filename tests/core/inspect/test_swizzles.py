"""Suggested layouts are free of conflicts, and nothing smaller is."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core import atoms
from kdsl_core.inspect import Access
from kdsl_core.layout import cosize

MMA = kd.tiled_mma(atoms.SM80_16x8x16_F32BF16BF16F32_TN, (2, 2))
READ = kd.tiled_copy_A(atoms.ldmatrix(4), MMA)


def fill(columns: int) -> kd.TiledCopy:
    """Rows of a tile, 16 bytes a thread."""
    across = columns // 8
    threads = kd.Layout((128 // across, across), (across, 1))
    return kd.tiled_copy(atoms.cp_async(16), kd.bf16, threads, kd.Layout((1, 8)))


@pytest.mark.parametrize(
    ("columns", "want"),
    [(64, kd.Swizzle(3, 3, 3)), (32, kd.Swizzle(2, 3, 3)), (16, kd.Swizzle(1, 3, 3))],
)
def test_gemm_tiles_get_the_textbook_swizzles(columns: int, want: kd.Swizzle) -> None:
    """bf16 rows of 128, 64 and 32 bytes that cp.async writes and ldmatrix reads."""
    tile = kd.Layout((64, columns), (columns, 1))
    found = kd.inspect.suggest_swizzle(tile, fill(columns), READ)
    assert found.free and found.swizzle == want and found.padding == 0
    for access in (fill(columns), READ):
        assert kd.inspect.bank_conflicts(access, found.layout).free


def test_no_smaller_swizzle_is_free() -> None:
    """By trying every swizzle of fewer bits on a tile of f32 read by columns and rows."""
    tile = kd.Layout((32, 32), (32, 1))
    column, row = kd.Layout((32, 32)), kd.Layout((32, 32), (32, 1))
    moves = (Access(column, width=4), Access(row, width=4))
    found = kd.inspect.suggest_swizzle(tile, *moves, dtype=kd.f32)
    assert found.free and found.swizzle == kd.Swizzle(5, 0, 5)
    for bits in range(5):
        for base in range(6 - bits):
            for shift in range(bits, 11 - base - bits):
                layout = kd.ComposedLayout(kd.Swizzle(bits, base, shift), 0, tile)
                counts = [kd.inspect.bank_conflicts(m, layout, kd.f32) for m in moves]
                assert not all(count.free for count in counts)


@pytest.mark.parametrize(("pitch", "width"), [(64, 16), (32, 16), (128, 8), (64, 4), (96, 16)])
def test_padding_is_the_least_that_helps(pitch: int, width: int) -> None:
    """Rows read down a column, `width` bytes a lane: no smaller multiple of the width is free."""
    tile = kd.Layout((32, pitch), (pitch, 1))
    per = width // 2
    column: Any = kd.Layout((32, per), (1, 32))  # (lane, value) -> index in the tile
    found = kd.inspect.suggest_swizzle(tile, column, dtype=kd.bf16, width=width, swizzle=False)
    assert found.free and found.swizzle is None
    assert found.layout == kd.Layout((32, pitch), (pitch + found.padding, 1))
    for pad in range(0, found.padding, per):
        less = kd.Layout((32, pitch), (pitch + pad, 1))
        assert not kd.inspect.bank_conflicts(column, less, kd.bf16, width=width).free


def test_nothing_is_changed_without_need() -> None:
    """A tile that is free already comes back as it is; so does the layout under a swizzle."""
    tile = kd.Layout((64, 64), (64, 1))
    found = kd.inspect.suggest_swizzle(tile, fill(64))
    assert found.free and found.layout == tile and found.swizzle is None
    swizzled = kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, tile)
    assert kd.inspect.suggest_swizzle(swizzled, fill(64)).layout == tile


def test_the_best_is_told_where_none_is_free() -> None:
    """Without padding, lanes that read words 96 bytes apart in a tile of odd size still collide."""
    tile = kd.Layout((32, 33), (33 * 32, 1))
    column = kd.Layout((32, 1))
    found = kd.inspect.suggest_swizzle(tile, column, dtype=kd.f32, padding=False)
    assert not found.free and found.wavefronts > found.ideal
    padded = kd.inspect.suggest_swizzle(tile, column, dtype=kd.f32)
    assert padded.free and cosize(padded.layout) > cosize(tile)


def test_swizzles_stay_inside_the_memory() -> None:
    """No suggestion reaches beyond the elements that the plain layout spans."""
    for rows in (8, 24, 40):
        tile = kd.Layout((rows, 32), (32, 1))
        found = kd.inspect.suggest_swizzle(
            tile, kd.Layout((8, 32), (1, rows)), dtype=kd.f32, width=4, padding=False
        )
        assert max(found.layout(i) for i in range(rows * 32)) < rows * 32


def test_an_access_is_needed() -> None:
    """Nothing to free is a mistake."""
    with pytest.raises(kd.LayoutError, match="K188"):
        kd.inspect.suggest_swizzle(kd.Layout((8, 8)))
