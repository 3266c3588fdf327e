"""An f32 matrix product of fused multiply-adds: the port of a first CuTe C++ GEMM.

python examples/porting/sgemm.py

A block of 256 threads computes 128 × 128 of C. Tiles of A and B, 8 deep, go through registers into
shared memory; while a tile is multiplied, the next one is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from operands import operands
from products import check, launch_tiles
from shown import show

import kdsl_core as kd

TILE_M, TILE_N, TILE_K = 128, 128, 8
THREADS = 256


@dataclass(frozen=True)
class Plan:
    """What depends on how A and B lie in memory: C++ passes these as template arguments."""

    copy: kd.TiledCopy  # of a tile 128 × 8, for A and for B
    shared: kd.Layout  # of such a tile


def plan(majors: str) -> Plan:
    """TN: neighbours along K, one at a time, and padded lines. NT: along M and N, four."""
    if majors == "TN":
        threads, values = kd.Layout((32, 8), (8, 1)), kd.Layout((1, 1))
        copy = kd.tiled_copy(kd.atoms.universal_copy(32), kd.f32, threads, values)
        return Plan(copy, kd.Layout((TILE_M, TILE_K), (1, TILE_M + 1)))
    threads, values = kd.Layout((32, 8)), kd.Layout((4, 1))
    copy = kd.tiled_copy(kd.atoms.universal_copy(128), kd.f32, threads, values)
    return Plan(copy, kd.Layout((TILE_M, TILE_K)))


@kd.kernel
def sgemm(
    A: kd.Tensor["f32", "m k"],
    B: kd.Tensor["f32", "n k"],
    C: kd.Tensor["f32", "m n"],
    plan: kd.Static,
    shown: kd.Static = False,
):
    """C = A · Bᵀ for whole tiles; each thread sums 8 × 8 elements in the order of k."""
    thread = kd.thread_rank()
    m, n, _ = kd.block_idx()
    gA = kd.local_tile(A, (TILE_M, TILE_K), (m, None))  # (128, 8, k tiles)
    gB = kd.local_tile(B, (TILE_N, TILE_K), (n, None))
    gC = kd.local_tile(C, (TILE_M, TILE_N), (m, n))
    sA = kd.smem(kd.f32, plan.shared, name="sA")
    sB = kd.smem(kd.f32, plan.shared, name="sB")

    copying = plan.copy.get_slice(thread)
    tAgA, tAsA = copying.partition_S(gA), copying.partition_D(sA)  # (V, 128s, 8s[, k tiles])
    tBgB, tBsB = copying.partition_S(gB), copying.partition_D(sB)
    tArA, tBrB = kd.rmem_like(tAsA), kd.rmem_like(tBsB)

    mma = kd.tiled_mma(kd.atoms.UNIVERSAL_FMA_F32, (16, 16, 1))
    multiplying = mma.get_slice(thread)
    tCsA, tCsB = multiplying.partition_A(sA), multiplying.partition_B(sB)  # (1, 8, 8)
    tCgC = multiplying.partition_C(gC)
    tCrA, tCrB = kd.rmem_like(tCsA[..., 0]), kd.rmem_like(tCsB[..., 0])
    tCrC = mma.make_fragment_C((TILE_M, TILE_N)).fill(0.0)
    if shown:
        show(gA=gA, gC=gC, sA=sA, tAgA=tAgA, tAsA=tAsA, tArA=tArA)
        show(tCsA=tCsA, tCsB=tCsB, tCgC=tCgC, tCrC=tCrC)

    tiles = A.shape[1] // TILE_K
    kd.copy(tAgA[..., 0], tArA)
    kd.copy(tBgB[..., 0], tBrB)
    for tile in kd.range(tiles):
        kd.sync_threads()  # everybody has read the tile before
        kd.copy(tArA, tAsA)
        kd.copy(tBrB, tBsB)
        kd.sync_threads()
        following = kd.minimum(tile + 1, tiles - 1)
        kd.copy(tAgA[..., following], tArA)
        kd.copy(tBgB[..., following], tBrB)
        for k in range(TILE_K):
            kd.copy(tCsA[..., k], tCrA)
            kd.copy(tCsB[..., k], tCrB)
            kd.gemm(mma, tCrA, tCrB, tCrC)
    kd.copy(tCrC, tCgC)


def launch_sgemm(A: Any, B: Any, C: Any) -> dict[str, Any]:
    """How to launch it: `plan` follows from how A lies in memory."""
    return launch_tiles(plan, (TILE_M, TILE_N), THREADS, A, B, C)


def example_sgemm() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/porting/sgemm.py`."""
    return launch_sgemm(*operands(128, 128, 40, "TN", np.float32))


def main() -> None:
    """Both kinds of operands in the simulator, compared with NumPy."""
    check(sgemm, launch_sgemm, 40, np.float32, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    main()
