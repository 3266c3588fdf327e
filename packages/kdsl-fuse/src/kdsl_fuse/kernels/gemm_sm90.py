"""A matrix product with any pointwise epilogue at full speed on Hopper (sm_90a).

A persistent grid: in each block one thread copies tiles of A and B into a ring of shared-memory
stages (TMA), warp groups multiply them from there (`wgmma`), and results leave through shared
memory (`stmatrix`, TMA) while the next tiles arrive.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP


@kd.kernel(min_blocks_per_sm=1)
def gemm_sm90(
    A: kd.Tensor["f16|bf16|e4m3|e5m2|i8|u8"],
    B: kd.Tensor["f16|bf16|e4m3|e5m2|i8|u8"],
    C: kd.Tensor,
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    outputs: kd.Static = 1,
):
    """C = epilogue(A · Bᵀ, extras…) for A (m, k), B (n, k), C (m, n), or a batch along mode 2.

    With several `outputs` the epilogue gives a tuple, and the extras begin with those after C. With
    `config.splits`, C is (m, n, splits) and gets a part of the sums for each part of K.
    """
    config.check_ranks(A, C)
    tile_m, tile_n, tile_k = config.tile
    ring = config.operand_ring(A, B)
    work = config.scheduler(
        kd.ceil_div(C.shape[:2], (tile_m, tile_n)),
        kd.ceil_div(A.shape[1], tile_k),
        batches=C.shape[2] if len(C.shape) == 3 and config.splits == 1 else None,
    )
    mma = config.tiled_mma(A, B, kd.i32 if A.dtype.is_int else kd.f32)
    results, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    group = config.warp_group()
    out = kd.collective.TileOutput(
        results, (tile_m, tile_n), group, epilogue, extras,
        accumulator=mma.atom.d, peers=config.peers,
    )  # fmt: skip
    compute_tiles(config, mma, ring, work, group, out)


@kd.func
def copy_tile(ring, write, tile):
    """Copy a tile of both operands to the ring, stage by stage. Threads: one."""
    for k in kd.range(tile.k_begin, tile.k_end):
        stage, full = write.acquire()
        ring.a.load(stage, tile.m, k, tile.batch, full)
        ring.b.load(stage, tile.n, k, tile.batch, full)
        write.advance()


@kd.func
def compute_tiles(config, mma, ring, work, group, out, copy=copy_tile):
    """Begin together, then let each warp group take its role until all tiles are written.

    `copy` copies the operands of one tile to the ring.
    """
    kd.collective.init_together(ring, out)
    if group.number == config.consumers:
        produce(config, ring, work, copy)
    else:
        kd.wait_for_dependencies()  # nothing was read or written so far
        kd.launch_dependents()
        consume(config, mma, ring, work, group, out)
    if config.blocks_together > 1:  # nobody may still write to a block that has ended
        kd.cluster_sync()


@kd.func
def produce(config, ring, work, copy=copy_tile):
    """The producing warps: one thread of the first one fills the ring."""
    if config.registers:
        kd.set_max_registers(config.registers[0])
    if kd.warp_uniform(kd.warp_idx()) == config.consumers * (GROUP // WARP):
        fill_ring(ring, work, copy)


@kd.func
def fill_ring(ring, work, copy=copy_tile):
    """Copy the tiles of all work items to the ring, in their order."""
    write = ring.writer()
    first = work.at(work.first)  # known by the time that the launch ahead has ended
    kd.wait_for_dependencies()
    if kd.elect_one():
        if work.first < work.total:
            copy(ring, write, first)
        for item in kd.range(work.first + work.step, work.total, work.step):
            copy(ring, write, work.at(item))
        write.drain()


@kd.func
def consume(config, mma, ring, work, group, out):
    """Warp groups multiply the tiles as they arrive, and write the results."""
    if config.registers:
        kd.set_max_registers(config.registers[1])
    view = mma.get_slice(kd.thread_rank() % (GROUP * config.readers))
    a, b = view.partition_A(ring.a.shared), view.partition_B(ring.b.shared)
    acc = mma.make_fragment_C(config.tile[:2])
    read = ring.reader()

    def multiply(accumulate):
        stage = read.wait()
        kd.wgmma_fence()
        kd.gemm(mma, a[..., stage], b[..., stage], acc, accumulate=accumulate)
        kd.wgmma_commit()

    first, step = work.first, work.step
    if config.pingpong:
        turns = Turns(group)
        turns.begin()
        first, step = first + group.number * step, step * 2
        read.skip(group.number * work.k_tiles)
    for item in kd.range(first, work.total, step):
        tile = work.at(item)
        if config.pingpong:
            turns.wait()
        multiply(accumulate=False)
        for _ in kd.range(1, tile.k_tiles):
            multiply(accumulate=True)
            kd.wgmma_wait(1)
            read.release(group.thread)
        if config.pingpong:
            turns.pass_on()
        kd.wgmma_wait(0)
        read.release(group.thread)
        if config.pingpong:
            read.skip(work.k_tiles)
        out.write(acc, tile)
    out.finish()


class Turns:
    """Two warp groups that multiply by turns, so that one stores while the other multiplies."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.mine = kd.named_barrier(3 + group.number, 2 * GROUP)
        self.other = kd.named_barrier(4 - group.number, 2 * GROUP)

    def begin(self) -> None:
        """Let group 0 have the first turn."""
        give_first_turn(self)

    def wait(self) -> None:
        """Wait for this group's turn."""
        self.mine.sync()

    def pass_on(self) -> None:
        """Give the turn to the other group."""
        self.other.arrive()


@kd.func
def give_first_turn(turns):
    """Group 1 arrives where group 0 waits first."""
    if turns.group.number == 1:
        turns.other.arrive()


def identity(acc: Any) -> Any:
    """The epilogue that changes nothing."""
    return acc
