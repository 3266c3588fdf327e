"""The building blocks of kernels: shared tiles without conflicts, loaders, rasters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from kdsl_core.collective import grouped_raster, shared_tile

BANKS = 32


@pytest.mark.parametrize("contiguous", (0, 1))
@pytest.mark.parametrize("depth", (16, 32, 64))
@pytest.mark.parametrize("dtype", ("bf16", "f32"))
def test_eight_lines_fall_into_eight_bank_groups(dtype: str, depth: int, contiguous: int) -> None:
    """The 16-byte rows that one ldmatrix reads together share no bank."""
    kind = getattr(kd, dtype)
    if kind is kd.f32 and not contiguous:
        return  # 32-bit elements along M are read one by one, see the next test
    tile = shared_tile(kind, 64, depth, contiguous)
    chunk = 16 // kind.bytes
    for first in range(0, 64 if contiguous else depth, 8):
        for along in range(0, depth if contiguous else 64, chunk):
            lines = [(first + i, along) if contiguous else (along, first + i) for i in range(8)]
            groups = {tile(*coord, 0) * kind.bytes // 16 % 8 for coord in lines}
            assert len(groups) == 8


def test_transposed_words_fall_into_all_banks() -> None:
    """The 8 × 4 words of an m16n8k8 fragment lie in 32 different banks."""
    tile = shared_tile(kd.f32, 64, 32, 0)
    for m in range(0, 64, 8):
        for k in range(0, 32, 4):
            words = {tile(m + i, k + j, 0) % BANKS for i in range(8) for j in range(4)}
            assert len(words) == BANKS


def test_shared_tile_is_a_bijection() -> None:
    """A swizzle permutes: every element has a place of its own."""
    tile = shared_tile(kd.bf16, 32, 64, 1, stages=2)
    places = {tile(r, k, s) for r in range(32) for k in range(64) for s in range(2)}
    assert places == set(range(32 * 64 * 2))


@pytest.mark.parametrize(("m", "n", "group"), [(5, 7, 2), (8, 3, 8), (1, 9, 4), (6, 6, 3)])
def test_raster_visits_every_tile_once(m: int, n: int, group: int) -> None:
    """The order is a permutation of the tiles, also where the last band is thin."""
    seen = [grouped_raster(block, m, n, group) for block in range(m * n)]
    assert sorted(seen) == [(i, j) for i in range(m) for j in range(n)]


@kd.kernel
def through_shared(
    x: kd.Tensor["bf16|f32", "m k"], y: kd.Tensor["=x", "m k"], tile: kd.Static = (32, 32)
):
    """Copy a matrix tile by tile through a ring of two stages."""
    rows, depth = tile
    thread = kd.thread_rank()
    loader = kd.collective.TileLoader(x, tile, kd.block_idx()[0], 2, 64, thread)
    for k in kd.range(kd.ceil_div(x.shape[1], depth)):
        kd.sync_threads()
        loader.load(k, k % 2)
        kd.cp_async_commit()
        kd.cp_async_wait(0)
        kd.sync_threads()
        for turn in range(rows * depth // 64):
            row, column = (thread + turn * 64) // depth, (thread + turn * 64) % depth
            i, j = kd.block_idx()[0] * rows + row, k * depth + column
            if (i < y.shape[0]) & (j < y.shape[1]):
                y[i, j] = loader.shared[row, column, k % 2]


@pytest.mark.parametrize("shape", ((64, 64), (33, 40), (17, 19), (1, 1)))
@pytest.mark.parametrize("order", "CF")
def test_loader_copies_any_matrix(execute: Executor, shape: Any, order: str) -> None:
    """Aligned or not, contiguous along either mode, nothing is lost and nothing is read beyond."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    x = np.asarray(x, order=order)
    if shape == (1, 1):
        x = np.ones((1, 1), np.float32)
    y = np.zeros(shape, np.float32)
    result = execute(through_shared, -(-shape[0] // 32), 64, x, y)
    np.testing.assert_array_equal(result[1], x)


def test_matrix_without_unit_stride_is_refused() -> None:
    """A loader needs one mode whose elements are neighbours."""
    x = np.zeros((64, 64), np.float32)[::2, ::2]
    with pytest.raises(kd.TypeMismatch) as caught:
        through_shared[1, 64](x, np.zeros((32, 32), np.float32))
    assert caught.value.code == "K226"


def test_tile_smaller_than_the_block_is_refused() -> None:
    """Every thread must have something to copy."""
    x = np.zeros((8, 4), np.float32)
    with pytest.raises(kd.LayoutError) as caught:
        through_shared[1, 64](x, x.copy(), tile=(8, 4))
    assert caught.value.code == "K154"


def test_lines_that_no_swizzle_permutes_are_refused() -> None:
    """A swizzle moves bits of the offset, so a line has a power of two elements."""
    with pytest.raises(kd.LayoutError) as caught:
        shared_tile(kd.bf16, 96, 64, contiguous=0)
    assert caught.value.code == "K155"
