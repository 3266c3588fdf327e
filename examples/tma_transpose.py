"""A transpose in which the copy engine does all the travelling: TMA in, TMA out, swizzled between.

python examples/tma_transpose.py

One thread starts the copy of a whole tile. An mbarrier says when it has arrived; what hangs over
the edge of the matrix is read as zero and never written, so there is no predicate in this kernel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd

TILE = 64  # 64 bf16 are 128 bytes, the widest swizzle
WARPS = 4


@kd.kernel
def transpose(x: kd.Tensor["bf16", "m n"], y: kd.Tensor["bf16", "n m"], swizzle: kd.Static = True):
    """y = xᵀ, rows of both being multiples of 16 bytes."""
    layout = kd.Layout((TILE, TILE), (TILE, 1))
    if swizzle:  # 16-byte unit u of row r lies at unit u XOR r mod 8
        layout = kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, layout)
    came, leaves = kd.smem(x.dtype, layout, name="came"), kd.smem(x.dtype, layout, name="leaves")
    load = kd.tma_load(x, came, (TILE, TILE))
    store = kd.tma_store(y, leaves, (TILE, TILE))
    arrived = kd.mbarrier()
    m, n = kd.block_idx()[1] * TILE, kd.block_idx()[0] * TILE

    if kd.thread_rank() == 0:
        arrived.init()
        kd.fence_mbarrier_init()
        arrived.arrive_expect(load.bytes)
        load(came, (m, n), arrived)
    kd.sync_threads()  # nobody may wait at a barrier that is not one yet
    arrived.wait(0)

    # A warp turns 16 × 16 elements at a time: four matrices of 8 × 8 come with ldmatrix, and
    # stmatrix writes each of them transposed. Every lane names one row of a matrix, 16 bytes.
    held = kd.rmem(x.dtype, kd.Layout(8))
    lane, row = kd.lane_idx(), 16 * kd.warp_idx()
    for column in range(0, TILE, 16):
        source = eight(came, row + lane % 16, column + 8 * (lane // 16))
        target = eight(leaves, column + lane % 8 + 8 * (lane // 16), row + 8 * (lane // 8 % 2))
        kd.copy(source, held, atom=kd.atoms.ldmatrix(4))
        kd.copy(held, target, atom=kd.atoms.stmatrix(4, transposed=True))

    kd.fence_proxy_async()  # TMA is to see what this thread wrote …
    kd.sync_threads()  # … and what the others did
    if kd.thread_rank() == 0:
        store(leaves, (n, m))
        kd.tma_store_commit()
        kd.tma_store_wait(0)  # shared memory must live until it has been read


def eight(tile, row, column):
    """Eight neighbours of a tile."""
    return tile.with_layout(kd.Layout(8), tile.layout((row, column)))


def example_transpose() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/tma_transpose.py`."""
    x = np.ones((128, 64), ml_dtypes.bfloat16)
    return {"grid": (1, 2), "block": WARPS * 32, "args": (x, np.empty((64, 128), x.dtype))}


def main() -> None:
    """Count the passes through shared memory with and without the swizzle."""
    x = np.arange(200 * 72).reshape(200, 72).astype(ml_dtypes.bfloat16)
    y = np.empty((72, 200), ml_dtypes.bfloat16)
    grid = (-(-72 // TILE), -(-200 // TILE))
    for swizzle in (False, True):
        result = kd.simulate(
            transpose, grid=grid, block=WARPS * 32, args=(x, y), kwargs={"swizzle": swizzle}
        )
        np.testing.assert_array_equal(result.outputs[1], x.T)
        taken, ideal = (result.profile.totals[n] for n in ("wavefronts", "ideal_wavefronts"))
        print(f"swizzle {swizzle}: {taken:.0f} wavefronts, {ideal:.0f} without conflicts")
    ptx = transpose.ptx(x, y, block=WARPS * 32, target="sm_90a")
    print(f"{len(ptx.splitlines())} lines of PTX for the kernel with the swizzle")


if __name__ == "__main__":
    main()
