"""A matrix product on tensor cores in a dozen lines.

python examples/matmul.py
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd


@kd.kernel
def matmul(
    A: kd.Tensor["bf16", "m k"],
    B: kd.Tensor["bf16", "n k"],
    C: kd.Tensor["bf16", "m n"],
    tile: kd.Static = (64, 64, 32),
):
    """C = A · Bᵀ for sizes that are whole tiles; four warps share each tile of C."""
    tile_m, tile_n, tile_k = tile
    m, n, _ = kd.block_idx()
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN, warps=(2, 2), permutation=(32, 32))
    a = kd.local_tile(A, (tile_m, tile_k), (m, None))  # (tile_m, tile_k, k tiles)
    b = kd.local_tile(B, (tile_n, tile_k), (n, None))
    acc = mma.make_fragment_C((tile_m, tile_n)).fill(0.0)
    for k in kd.range(kd.size(a, 2)):
        kd.collective.mma_tile(mma, a[..., k], b[..., k], acc)
    kd.collective.store_tile(mma, acc, kd.local_tile(C, (tile_m, tile_n), (m, n)))


def example_matmul() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/matmul.py`."""
    a, b = (np.ones((128, 64), ml_dtypes.bfloat16) for _ in range(2))
    return {"grid": (2, 2), "block": 128, "args": (a, b, np.empty((128, 128), a.dtype))}


def main() -> None:
    """Compare with NumPy, and show what the kernel became."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))
    c = np.empty((128, 128), ml_dtypes.bfloat16)
    matmul[(2, 2), 128](a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-7, atol=0.05)
    ptx = matmul.ptx(a, b, c, block=128, target="sm_90a")
    print(f"{len(ptx.splitlines())} lines of PTX, {ptx.count('mma.sync')} mma.sync")


if __name__ == "__main__":
    main()
