"""Copies of 8×8 matrices."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.warps import SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import f32, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import target_of
from kdsl_core.isa.matrix_copy import ldmatrix, stmatrix


def filled(count: int) -> tuple[Bench, np.ndarray, object]:
    """A bench whose shared memory holds random matrices, and addresses of their shuffled rows."""
    bench = Bench(2)
    rng = np.random.default_rng(count)
    matrices = rng.integers(0, 1 << 16, (2, count, 8, 8)).astype(np.uint16)
    places = rng.permutation(2 * count * 8).reshape(2, count * 8)
    shared = bench.m.memory["shared"].view(np.uint16).reshape(-1, 8)
    shared[places] = matrices.reshape(2, count * 8, 8)
    rows = np.zeros((2, 32), np.uint32)
    rows[:, : count * 8] = places
    return bench, matrices, bench.holding(u32, SHARED_BASE + 16 * rows)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_elements_reach_their_lanes(count: int, transposed: bool) -> None:
    """Lane l gets elements 2(l mod 4) and +1 of row l div 4 of each matrix, or its transpose."""
    bench, matrices, address = filled(count)
    dst = tuple(bench.b.var(u32) for _ in range(count))
    ldmatrix(bench.b, address, dst, transposed)
    bench.run()
    for warp, j, lane in np.ndindex(2, count, 32):
        matrix = matrices[warp, j].T if transposed else matrices[warp, j]
        low, high = matrix[lane // 4, lane % 4 * 2 :][:2]
        assert bench.got(dst[j])[warp, lane] == int(low) | int(high) << 16


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_store_undoes_load(count: int, transposed: bool) -> None:
    """What was loaded, erased and stored is there again."""
    bench, _, address = filled(count)
    before = bench.m.memory["shared"].copy()
    dst = tuple(bench.b.var(u32) for _ in range(count))
    ldmatrix(bench.b, address, dst, transposed)
    bench.run()
    bench.m.memory["shared"][:] = 0
    bench.kernel.body.ops.clear()
    stmatrix(bench.b, address, dst, transposed)
    bench.run()
    np.testing.assert_array_equal(bench.m.memory["shared"], before)


def test_text_and_needs() -> None:
    """Dropped registers get scratch ones; storing needs Hopper."""
    bench = Bench(1)
    new = bench.b.var
    ldmatrix(bench.b, new(u32), (new(u32), None), transposed=True, offset=64)
    stmatrix(bench.b, new(u32), (new(u32),))
    assert ptx_of(bench.kernel.body) == [
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {b32_1, b32_2}, [b32_3+64]",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [b32_5], {b32_4}",
    ]
    load, store = bench.kernel.body.ops
    assert load.need.missing(target_of("sm_80")) is None
    assert store.need.missing(target_of("sm_80")) == "it needs sm_90 or newer"


def test_counts_and_types_are_checked() -> None:
    """One, two or four u32 registers."""
    bench = Bench(1)
    new = bench.b.var
    with pytest.raises(TypeMismatch, match="number of matrices must be 1 or 2 or 4, got 3"):
        ldmatrix(bench.b, new(u32), (new(u32), new(u32), new(u32)))
    with pytest.raises(TypeMismatch, match="a matrix register must be u32, got f32"):
        stmatrix(bench.b, new(u32), (new(f32),))
