"""An f16 matrix product of `wgmma` fed by TMA: the port of a CuTe C++ GEMM with mbarriers.

python examples/porting/hgemm_sm90_tma.py

One thread starts the copies of whole tiles into a ring of three stages; each stage has an mbarrier
that says "full" and one that says "read". One warp group multiplies 128 × 128 of C from there with
instructions of 64 × 64 × 16 that sum in f16.
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

    shared: kd.ComposedLayout  # of the ring of such tiles
    mma: kd.TiledMma  # instructions that read it


def plan(majors: str) -> Plan:
    """TN: both operands have their neighbours along K. NT: along M and N."""
    major = "K" if majors == "TN" else "MN"
    piece = kd.atoms.smem_atom(kd.f16, major, 128)
    instruction = kd.atoms.wgmma(64, "f16", d="f16", a_major=major, b_major=major)
    return Plan(
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
    gC = kd.local_tile(C, (TILE_M, TILE_N), (m, n))
    sA = kd.smem(kd.f16, plan.shared, name="sA", align=1024)  # (128, 64, stages)
    sB = kd.smem(kd.f16, plan.shared, name="sB", align=1024)
    load_a = kd.tma_load(A, sA[..., 0], (TILE_M, TILE_K))
    load_b = kd.tma_load(B, sB[..., 0], (TILE_N, TILE_K))
    full = kd.mbarrier(1, count=STAGES, name="full")  # one arrival and the bytes of two tiles
    read = kd.mbarrier(THREADS, count=STAGES, name="read")  # everybody has multiplied

    multiplying = plan.mma.get_slice(thread)
    tCsA, tCsB = multiplying.partition_A(sA), multiplying.partition_B(sB)  # descriptors
    tCgC = multiplying.partition_C(gC)
    tCrC = plan.mma.make_fragment_C((TILE_M, TILE_N)).fill(0.0)

    def fetch(tile, stage):
        """Start copying a tile of A and of B. Threads: one."""
        full[stage].arrive_expect(load_a.bytes + load_b.bytes)
        load_a(sA[..., stage], (m * TILE_M, tile * TILE_K), full[stage])
        load_b(sB[..., stage], (n * TILE_N, tile * TILE_K), full[stage])

    if shown:
        show(gC=gC, sA=sA, tCsA=tCsA, tCsB=tCsB, tCgC=tCgC, tCrC=tCrC)

    tiles = A.shape[1] // TILE_K
    if thread == 0:
        full.init()
        read.init()
        kd.fence_mbarrier_init()
        for stage in range(STAGES):
            if stage < tiles:
                fetch(stage, stage)
    kd.sync_threads()
    for tile in kd.range(tiles):
        stage, turn = tile % STAGES, tile // STAGES
        full[stage].wait(turn % 2)
        kd.wgmma_fence()
        kd.gemm(plan.mma, tCsA[..., stage], tCsB[..., stage], tCrC)
        kd.wgmma_commit()
        kd.wgmma_wait(0)
        read[stage].arrive()
        if thread == 0 and tile + STAGES < tiles:
            read[stage].wait(turn % 2)
            fetch(tile + STAGES, stage)
    kd.copy(tCrC, tCgC)


def launch_hgemm(A: Any, B: Any, C: Any) -> dict[str, Any]:
    """How to launch it: `plan` follows from how A lies in memory."""
    return launch_tiles(plan, (TILE_M, TILE_N), THREADS, A, B, C)


def example_hgemm() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/porting/hgemm_sm90_tma.py`."""
    return launch_hgemm(*operands(128, 128, 128, "TN", np.float16))


def main() -> None:
    """Both kinds of operands in the simulator, compared with NumPy."""
    check(hgemm, launch_hgemm, 128, np.float16, rtol=0.01, atol=0.2)


if __name__ == "__main__":
    main()
