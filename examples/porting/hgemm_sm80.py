"""An f16 matrix product for sm_80 and newer: the port of a CuTe C++ GEMM of three stages.

python examples/porting/hgemm_sm80.py

`cp.async` keeps two tiles, 64 deep, on their way into a ring of three. `ldmatrix` fills fragments
one step ahead of the 16 × 8 × 16 instructions that sum in f16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from operands import operands
from products import check, launch_tiles
from shown import show

import kdsl_core as kd

TILE_M, TILE_N, TILE_K = 128, 128, 64
STAGES = 3
THREADS = 128
MMA = kd.tiled_mma(kd.atoms.SM80_16x8x16_F16F16F16F16_TN, (2, 2), permutation=(32, 32, 16))


@dataclass(frozen=True)
class Plan:
    """What depends on how A and B lie in memory: C++ passes these as template arguments."""

    copy: kd.TiledCopy  # of a tile 128 × 64, for A and for B
    shared: kd.ComposedLayout  # of the ring of such tiles
    load: kd.atoms.CopyAtom  # from there to fragments


def plan(majors: str) -> Plan:
    """TN: neighbours along K, matrices as they are. NT: along M and N, matrices transposed."""
    atom, shape = kd.atoms.SM80_CP_ASYNC_CACHEALWAYS_U128, (TILE_M, TILE_K, STAGES)
    if majors == "TN":
        copy = kd.tiled_copy(atom, kd.f16, kd.Layout((16, 8), (8, 1)), kd.Layout((1, 8)))
        piece = kd.Layout((8, (8, 8)), (8, (1, 64)))
        load = kd.atoms.SM75_U32x4_LDSM_N
    else:
        copy = kd.tiled_copy(atom, kd.f16, kd.Layout((16, 8)), kd.Layout((8, 1)))
        piece = kd.Layout((64, 8))
        load = kd.atoms.SM75_U16x8_LDSM_T
    swizzled = kd.composition(kd.Swizzle(3, 3, 3), piece)
    return Plan(copy, kd.tile_to_shape(swizzled, shape), load)


@kd.kernel
def hgemm(
    A: kd.Tensor["f16", "m k"],
    B: kd.Tensor["f16", "n k"],
    C: kd.Tensor["f16", "m n"],
    plan: kd.Static,
    shown: kd.Static = False,
):
    """C = A · Bᵀ for whole tiles, rounded to f16 after every 16 steps along K."""
    thread = kd.thread_rank()
    m, n, _ = kd.block_idx()
    gA = kd.local_tile(A, (TILE_M, TILE_K), (m, None))  # (128, 64, k tiles)
    gB = kd.local_tile(B, (TILE_N, TILE_K), (n, None))
    gC = kd.local_tile(C, (TILE_M, TILE_N), (m, n))
    sA = kd.smem(kd.f16, plan.shared, name="sA")  # (128, 64, stages)
    sB = kd.smem(kd.f16, plan.shared, name="sB")

    copying = plan.copy.get_slice(thread)
    tAgA, tAsA = copying.partition_S(gA), copying.partition_D(sA)  # (V, 128s, 64s, …)
    tBgB, tBsB = copying.partition_S(gB), copying.partition_D(sB)

    tCgC = MMA.get_slice(thread).partition_C(gC)
    tCrA = MMA.make_fragment_A((TILE_M, TILE_K))  # (V, 128s, 64s)
    tCrB = MMA.make_fragment_B((TILE_N, TILE_K))
    tCrC = MMA.make_fragment_C((TILE_M, TILE_N)).fill(0.0)
    load_a = kd.tiled_copy_A(plan.load, MMA).get_slice(thread)
    load_b = kd.tiled_copy_B(plan.load, MMA).get_slice(thread)
    tXsA, tXrA = load_a.partition_S(sA), load_a.retile(tCrA)
    tXsB, tXrB = load_b.partition_S(sB), load_b.retile(tCrB)
    if shown:
        show(gA=gA, gC=gC, sA=sA, tAgA=tAgA, tAsA=tAsA, tCgC=tCgC, tCrC=tCrC)
        show(tCrA=tCrA, tCrB=tCrB, tXsA=tXsA, tXrA=tXrA, tXsB=tXsB, tXrB=tXrB)

    tiles = A.shape[1] // TILE_K

    def fetch(tile, stage):
        """Start copying a tile of A and of B; behind the last tile it is the last one again."""
        tile = kd.minimum(tile, tiles - 1)
        kd.copy(tAgA[..., tile], tAsA[..., stage], atom=plan.copy)
        kd.copy(tBgB[..., tile], tBsB[..., stage], atom=plan.copy)
        kd.cp_async_commit()

    def read(k, stage):
        """Load the fragments of step k of a stage."""
        kd.copy(tXsA[..., k, stage], tXrA[..., k], atom=plan.load)
        kd.copy(tXsB[..., k, stage], tXrB[..., k], atom=plan.load)

    for stage in range(STAGES - 1):
        fetch(stage, stage)
    kd.cp_async_wait(STAGES - 2)
    kd.sync_threads()
    read(0, 0)
    steps = kd.size(tCrA, 2)
    reading, filling = 0, STAGES - 1
    for tile in kd.range(tiles):
        for k in range(steps):
            if k == steps - 1:  # the next fragments lie in the next stage
                kd.cp_async_wait(STAGES - 2)
                kd.sync_threads()
                reading = kd.where(reading == STAGES - 1, 0, reading + 1)
            read((k + 1) % steps, reading)
            if k == 0:
                fetch(tile + (STAGES - 1), filling)
                filling = kd.where(filling == STAGES - 1, 0, filling + 1)
            kd.gemm(MMA, tCrA[..., k], tCrB[..., k], tCrC)
    kd.cp_async_wait(0)
    kd.copy(tCrC, tCgC)


def launch_hgemm(A: Any, B: Any, C: Any) -> dict[str, Any]:
    """How to launch it: `plan` follows from how A lies in memory."""
    return launch_tiles(plan, (TILE_M, TILE_N), THREADS, A, B, C)


def example_hgemm() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/porting/hgemm_sm80.py`."""
    return launch_hgemm(*operands(128, 128, 128, "TN", np.float16))


def main() -> None:
    """Both kinds of operands in the simulator, compared with NumPy."""
    check(hgemm, launch_hgemm, 128, np.float16, rtol=0.01, atol=0.2)


if __name__ == "__main__":
    main()
