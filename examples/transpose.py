"""A transpose through swizzled shared memory: coalesced on both sides, no bank conflicts.

python examples/transpose.py
kdsl inspect examples/transpose.py --static swizzle=False
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kdsl_core as kd

TILE = 32
ROWS = 8  # rows of a tile that the block's 256 threads read at a time


@kd.kernel
def transpose(x: kd.Tensor["f32", "m n"], y: kd.Tensor["f32", "n m"], swizzle: kd.Static = True):
    """y = xᵀ. Without the swizzle, the columns of the tile all lie in one bank."""
    layout = kd.Layout((TILE, TILE), (TILE, 1))
    if swizzle:  # element (r, c) lies at column c XOR r
        layout = kd.ComposedLayout(kd.Swizzle(5, 0, 5), 0, layout)
    tile = kd.smem(kd.f32, layout)
    column, row = kd.thread_idx()[0] % TILE, kd.thread_idx()[0] // TILE
    bx, by = kd.block_idx()[:2]
    for step in range(0, TILE, ROWS):
        m, n = by * TILE + row + step, bx * TILE + column
        if (m < x.shape[0]) & (n < x.shape[1]):
            tile[row + step, column] = x[m, n]
    kd.sync_threads()
    for step in range(0, TILE, ROWS):
        n, m = bx * TILE + row + step, by * TILE + column
        if (n < y.shape[0]) & (m < y.shape[1]):
            y[n, m] = tile[column, row + step]


def example_transpose() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/transpose.py`."""
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    return {"grid": (2, 2), "block": TILE * ROWS, "args": (x, np.empty_like(x))}


def main() -> None:
    """Compare the shared-memory wavefronts with and without the swizzle."""
    x = np.arange(70 * 50, dtype=np.float32).reshape(70, 50)
    y = np.empty((50, 70), np.float32)
    grid = (-(-50 // TILE), -(-70 // TILE))
    for swizzle in (False, True):
        result = kd.simulate(
            transpose, grid=grid, block=TILE * ROWS, args=(x, y), kwargs={"swizzle": swizzle}
        )
        np.testing.assert_array_equal(result.outputs[1], x.T)
        taken, ideal = (result.profile.totals[n] for n in ("wavefronts", "ideal_wavefronts"))
        print(f"swizzle {swizzle}: {taken:.0f} wavefronts, {ideal:.0f} without conflicts")


if __name__ == "__main__":
    main()
