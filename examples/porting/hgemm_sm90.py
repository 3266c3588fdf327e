"""An f16 matrix product of `wgmma` fed by `cp.async`: the port of a first CuTe C++ GEMM for Hopper.

python examples/porting/hgemm_sm90.py

One warp group computes 128 × 128 of C with instructions of 64 × 64 × 16 that read A and B from a
ring of three stages in shared memory, and sum in f16.
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


@dataclass(frozen=True)
class Plan:
    """What depends on how A and B lie in memory: C++ passes these as template arguments."""

    copy: kd.TiledCopy  # of a tile 128 × 64, for A and for B
    shared: kd.ComposedLayout  # of the ring of such tiles
    mma: kd.TiledMma  # instructions that read it


def plan(majors: str) -> Plan:
    """TN: both operands have their neighbours along K. NT: along M and N."""
    atom = kd.atoms.SM80_CP_ASYNC_CACHEALWAYS_U128
    if majors == "TN":
        major, threads, values = "K", kd.Layout((16, 8), (8, 1)), kd.Layout((1, 8))
    else:
        major, threads, values = "MN", kd.Layout((16, 8)), kd.Layout((8, 1))
    piece = kd.atoms.smem_atom(kd.f16, major, 128)
    instruction = kd.atoms.wgmma(64, "f16", d="f16", a_major=major, b_major=major)
    return Plan(
        kd.tiled_copy(atom, kd.f16, threads, values),
        kd.tile_to_shape(piece, (TILE_M, TILE_K, STAGES)),
        kd.tiled_mma(instruction),
    )


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

    multiplying = plan.mma.get_slice(thread)
    tCsA, tCsB = multiplying.partition_A(sA), multiplying.partition_B(sB)  # descriptors
    tCgC = multiplying.partition_C(gC)
    tCrC = plan.mma.make_fragment_C((TILE_M, TILE_N)).fill(0.0)
    if shown:
        show(gA=gA, gC=gC, sA=sA, tAgA=tAgA, tAsA=tAsA)
        show(tCsA=tCsA, tCsB=tCsB, tCgC=tCgC, tCrC=tCrC)

    tiles = A.shape[1] // TILE_K

    def fetch(tile, stage):
        """Start copying a tile of A and of B; behind the last tile it is the last one again."""
        tile = kd.minimum(tile, tiles - 1)
        kd.copy(tAgA[..., tile], tAsA[..., stage], atom=plan.copy)
        kd.copy(tBgB[..., tile], tBsB[..., stage], atom=plan.copy)
        kd.cp_async_commit()

    for stage in range(STAGES - 1):
        fetch(stage, stage)
    reading, filling = 0, STAGES - 1
    for tile in kd.range(tiles):
        kd.cp_async_wait(STAGES - 2)
        kd.fence_proxy_async()  # wgmma is to see what cp.async wrote
        kd.sync_threads()  # and everybody has multiplied the stage that is filled now
        fetch(tile + (STAGES - 1), filling)
        kd.wgmma_fence()
        kd.gemm(plan.mma, tCsA[..., reading], tCsB[..., reading], tCrC)
        kd.wgmma_commit()
        kd.wgmma_wait(0)
        reading = kd.where(reading == STAGES - 1, 0, reading + 1)
        filling = kd.where(filling == STAGES - 1, 0, filling + 1)
    kd.cp_async_wait(0)
    kd.copy(tCrC, tCgC)


def launch_hgemm(A: Any, B: Any, C: Any) -> dict[str, Any]:
    """How to launch it: `plan` follows from how A lies in memory."""
    return launch_tiles(plan, (TILE_M, TILE_N), THREADS, A, B, C)


def example_hgemm() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/porting/hgemm_sm90.py`."""
    return launch_hgemm(*operands(128, 128, 128, "TN", np.float16))


def main() -> None:
    """Both kinds of operands in the simulator, compared with NumPy."""
    check(hgemm, launch_hgemm, 128, np.float16, rtol=0.01, atol=0.2)


if __name__ == "__main__":
    main()
