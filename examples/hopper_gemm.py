"""A matrix product as Hopper wants it, twice: with every barrier written out, and with collectives.

python examples/hopper_gemm.py

In each block one warp, the producer, copies tiles of A and B into a ring of stages in shared memory
by TMA. Two warp groups, the consumers, multiply them from there with wgmma. Each stage has two
mbarriers: `full`, which the copies complete, and `empty`, at which the consumers arrive.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd

TILE_M, TILE_N, TILE_K = 128, 64, 64
STAGES = 3
CONSUMERS = 2  # warp groups, each with 64 rows of the tile
GROUP = 128  # threads of a warp group
THREADS = CONSUMERS * GROUP + 32  # the last warp produces


@kd.kernel(min_blocks_per_sm=1)
def by_hand(A: kd.Tensor["bf16", "m k"], B: kd.Tensor["bf16", "n k"], C: kd.Tensor["bf16", "m n"]):
    """C = A · Bᵀ of any size whose rows are multiples of 16 bytes, one tile of C a block."""
    # The stages, swizzled so that both TMA and wgmma take them: (rows, depth, stage).
    a = kd.smem(
        A.dtype, kd.atoms.shared_operand(A.dtype, (TILE_M, TILE_K), stages=STAGES), name="a"
    )
    b = kd.smem(
        B.dtype, kd.atoms.shared_operand(B.dtype, (TILE_N, TILE_K), stages=STAGES), name="b"
    )
    load_a = kd.tma_load(A, a[..., 0], (TILE_M, TILE_K))
    load_b = kd.tma_load(B, b[..., 0], (TILE_N, TILE_K))

    # A phase of `full` ends with one arrival and all bytes, one of `empty` with every consumer.
    full = kd.mbarrier(1, count=STAGES, name="full")
    empty = kd.mbarrier(CONSUMERS, count=STAGES, name="empty")
    if kd.thread_rank() == 0:
        full.init()
        empty.init()
        kd.fence_mbarrier_init()  # TMA is to see them too
    kd.sync_threads()

    tile_m, tile_n, _ = kd.block_idx()
    steps = kd.ceil_div(A.shape[1], TILE_K)
    # The role is read from lane 0, so that the assembler knows that warps do not split here.
    group = kd.warp_uniform(kd.warpgroup_idx())
    if group == CONSUMERS:
        if kd.elect_one():
            for k in kd.range(steps):
                stage, turn = k % STAGES, k // STAGES
                # In turn 0 nobody has read yet: parity 1 is that of the phase before the first.
                empty[stage].wait((turn + 1) % 2)
                full[stage].arrive_expect(load_a.bytes + load_b.bytes)
                load_a(a[..., stage], (tile_m * TILE_M, k * TILE_K), full[stage])
                load_b(b[..., stage], (tile_n * TILE_N, k * TILE_K), full[stage])
    else:
        atom = kd.atoms.wgmma(TILE_N, A.dtype)  # 64 × TILE_N × 16, sums in f32
        mma = kd.tiled_mma(atom, warps=(CONSUMERS, 1))
        part = mma.get_slice(kd.thread_rank())
        a_part, b_part = part.partition_A(a), part.partition_B(b)  # descriptors, no registers
        acc = mma.make_fragment_C((TILE_M, TILE_N))
        for k in kd.range(steps):
            stage, turn = k % STAGES, k // STAGES
            full[stage].wait(turn % 2)
            kd.wgmma_fence()  # what was done to the accumulators comes first
            kd.gemm(mma, a_part[..., stage], b_part[..., stage], acc, accumulate=k > 0)
            kd.wgmma_commit()
            kd.wgmma_wait(0)  # the stage has been read, the accumulators are ours again
            empty[stage].arrive(pred=kd.thread_rank() % GROUP == 0)
        write(acc, mma, C, (tile_m * TILE_M, tile_n * TILE_N))


def write(acc, mma, C, origin):
    """Each thread writes its own accumulators: simple, and slower than by way of TMA."""
    place = mma.get_slice(kd.thread_rank()).partition_C(kd.identity_tensor((TILE_M, TILE_N)))
    for i in range(kd.size(acc)):
        row, column = (start + at for start, at in zip(origin, place[i], strict=True))
        C.store((row, column), acc[i].to(C.dtype), (row < C.shape[0]) & (column < C.shape[1]))


@kd.kernel(min_blocks_per_sm=1)
def with_collectives(
    A: kd.Tensor["bf16", "m k"], B: kd.Tensor["bf16", "n k"], C: kd.Tensor["bf16", "m n"]
):
    """The same: OperandRing has the stages and boxes, and keeps stages and parities."""
    ring = kd.collective.OperandRing(A, B, (TILE_M, TILE_N, TILE_K), STAGES, CONSUMERS)
    group = kd.collective.WarpGroup.of_thread(CONSUMERS)
    kd.collective.init_together(ring)

    tile_m, tile_n, _ = kd.block_idx()
    steps = kd.ceil_div(A.shape[1], TILE_K)
    if group.number == CONSUMERS:
        if kd.elect_one():
            filling = ring.writer()
            for k in kd.range(steps):
                stage, full = filling.acquire()
                ring.a.load(stage, tile_m, k, 0, full)
                ring.b.load(stage, tile_n, k, 0, full)
                filling.advance()
    else:
        mma = kd.tiled_mma(kd.atoms.wgmma(TILE_N, A.dtype), warps=(CONSUMERS, 1))
        part = mma.get_slice(kd.thread_rank())
        a, b = part.partition_A(ring.a.shared), part.partition_B(ring.b.shared)
        acc = mma.make_fragment_C((TILE_M, TILE_N))
        reading = ring.reader()
        for k in kd.range(steps):
            stage = reading.wait()
            kd.wgmma_fence()
            kd.gemm(mma, a[..., stage], b[..., stage], acc, accumulate=k > 0)
            kd.wgmma_commit()
            kd.wgmma_wait(0)
            reading.release(group.thread)
        write(acc, mma, C, (tile_m * TILE_M, tile_n * TILE_N))


def example_by_hand() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/hopper_gemm.py:by_hand`."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 256)).astype(ml_dtypes.bfloat16) for rows in (256, 128))
    c = np.empty((256, 128), ml_dtypes.bfloat16)
    return {"grid": (2, 2), "block": THREADS, "args": (a, b, c)}


example_with_collectives = example_by_hand


def main() -> None:
    """Compare both with NumPy, and show what they became for an H100 or H200."""
    rng = np.random.default_rng(0)
    m, n, k = 200, 72, 264  # tiles hang over the edge in every direction
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    grid = (-(-m // TILE_M), -(-n // TILE_N))
    for kernel in (by_hand, with_collectives):
        c = np.empty((m, n), ml_dtypes.bfloat16)
        kernel[grid, THREADS](a, b, c)
        np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-7, atol=0.05)
        ptx = kernel.ptx(a, b, c, block=THREADS, target="sm_90a")
        counts = ", ".join(
            f"{ptx.count(word)} {word}" for word in ("wgmma.mma_async", "cp.async.bulk.tensor")
        )
        print(f"{kernel.__name__}: {len(ptx.splitlines())} lines of PTX, {counts}")


if __name__ == "__main__":
    main()
