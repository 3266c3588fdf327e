"""Clusters, arrivals at mbarriers, roles of warps, overlapping launches: exact on both machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor

Array = np.ndarray[Any, Any]
THREADS = 128


def words(blocks: int) -> Array:
    """Small numbers, one for each thread."""
    return np.random.default_rng(blocks).integers(-999, 999, (blocks, THREADS)).astype(np.int32)


@kd.kernel
def passes_on(x: kd.Tensor["i32", "b t"], y: kd.Tensor["i32", "b t"]):
    """Reads the block before, writes to the block behind, adds up in block 0 of the cluster."""
    own, given = kd.smem(kd.i32, THREADS, name="own"), kd.smem(kd.i32, THREADS, name="given")
    total = kd.smem(kd.i32, 1, name="total")
    t, block = kd.thread_rank(), kd.block_idx()[0]
    rank, blocks = kd.cluster_rank(), kd.cluster_dim()[0]
    own[t] = x[block, t]
    if t == 0:
        total[0] = 0
    kd.cluster_sync()
    read = kd.peer(own, (rank + blocks - 1) % blocks)[THREADS - 1 - t]
    kd.peer(given, (rank + 1) % blocks)[t] = read
    kd.atomic_add(kd.peer(total, 0), 0, read)
    kd.cluster_sync()
    y[block, t] = given[t] + kd.peer(total, 0)[0]
    kd.cluster_sync()


@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_memory_of_other_blocks(execute: Executor, blocks: int) -> None:
    """Loads, stores and atomic additions reach the named block of the same cluster."""
    x = words(2 * blocks)
    got = execute(passes_on, 2 * blocks, THREADS, x, x * 0, cluster=blocks)[1]
    clusters = x.reshape(2, blocks, THREADS)
    want = np.roll(clusters, 2, axis=1)[..., ::-1] + clusters.sum(axis=(1, 2))[:, None, None]
    np.testing.assert_array_equal(got, want.reshape(x.shape))


@kd.kernel
def hands_over(x: kd.Tensor["i32", "b t"], y: kd.Tensor["i32", "b t"], rounds: kd.Static):
    """Each block writes to the next one's memory, round after round, when that one has read it."""
    box = kd.smem(kd.i32, THREADS, name="box")
    full, empty = kd.mbarrier(2 * THREADS, name="full"), kd.mbarrier(THREADS, name="empty")
    t, block = kd.thread_rank(), kd.block_idx()[0]
    rank, blocks = kd.cluster_rank(), kd.cluster_dim()[0]
    following, before = (rank + 1) % blocks, (rank + blocks - 1) % blocks
    if t == 0:
        full.init()
        empty.init()
        kd.fence_mbarrier_init()
    kd.cluster_arrive()
    kd.cluster_wait()
    total = 0
    for turn in kd.range(rounds):
        parity = (turn % 2).to(kd.u32)
        empty.wait(parity ^ 1)
        kd.peer(box, following)[t] = x[block, t] + turn
        full.arrive(rank=following)
        full.arrive(rank=following, relaxed=True)
        full.wait(parity)
        total += (turn + 1) * box[THREADS - 1 - t]
        empty.arrive(rank=before)
    y[block, t] = total
    kd.cluster_sync()


@pytest.mark.parametrize("blocks", [2, 4])
def test_arrivals_at_other_blocks(execute: Executor, blocks: int) -> None:
    """Barriers of other blocks complete by releasing and by relaxed arrivals, phase after phase."""
    x, rounds = words(2 * blocks), 5
    got = execute(hands_over, 2 * blocks, THREADS, x, x * 0, cluster=blocks, rounds=rounds)[1]
    sent = np.roll(x.reshape(2, blocks, THREADS), 1, axis=1)[..., ::-1].reshape(x.shape)
    want = sum((turn + 1) * (sent + turn) for turn in range(rounds))
    np.testing.assert_array_equal(got, want)


@kd.kernel
def elects(y: kd.Tensor["i32", "times w"], times: kd.Static):
    """The elected lane of each warp says which one it is."""
    for turn in range(times):
        if kd.elect_one():
            y[turn, kd.warp_idx()] = kd.lane_idx()


def test_elections(execute: Executor) -> None:
    """One lane of each warp, the lowest."""
    (got,) = execute(elects, 1, THREADS, np.full((2, 4), -1, np.int32), times=2)
    np.testing.assert_array_equal(got, 0)


@kd.kernel
def arrives_by_copies(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], stages: kd.Static):
    """Each thread copies 16 bytes a stage; the stage's barrier completes when all have come."""
    tile, bars = kd.smem(kd.f32, kd.Layout((4 * THREADS, stages))), kd.mbarrier(THREADS, stages)
    t = kd.thread_rank()
    if t == 0:
        bars.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    atom = kd.atoms.SM80_CP_ASYNC_CACHEGLOBAL_U128
    plan = kd.tiled_copy(atom, kd.f32, kd.Layout(THREADS), kd.Layout(4))
    part = plan.get_slice(t)
    for stage in range(stages):
        source = part.partition_S(x.tile((4 * THREADS,), (stage,)))
        kd.copy(source, part.partition_D(tile[None, stage]), atom=plan)
        bars[stage].arrive_copies()
    for stage in range(stages):
        bars[stage].wait(0)
        for k in range(4):
            i = k * THREADS + t
            y[stage * 4 * THREADS + i] = tile[4 * THREADS - 1 - i, stage]


def test_copies_that_arrive(execute: Executor) -> None:
    """Data of `cp.async` is visible to all who waited at the barrier."""
    x = np.arange(3 * 4 * THREADS, dtype=np.float32)
    got = execute(arrives_by_copies, 1, THREADS, x, x * 0, stages=3)[1]
    np.testing.assert_array_equal(got.reshape(3, -1), x.reshape(3, -1)[:, ::-1])


@kd.kernel
def has_roles(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """One warp group gives registers away, two take them and hold a hundred numbers each."""
    t = kd.thread_rank()
    if kd.warp_uniform(kd.warpgroup_idx()) == 2:
        kd.set_max_registers(40)
        y[t] = x[t]
    else:
        kd.set_max_registers(232)
        held = [x[(t + 3 * i) % 384] for i in range(100)]
        for factor in (2.0, 3.0):
            held = [a * factor - b for a, b in zip(held, [*held[1:], held[0]], strict=True)]
        total = 0.0
        for value in held:
            total += value
        y[t] = total


def test_registers_change_hands(execute: Executor) -> None:
    """Results do not depend on how many registers a thread has."""
    x = np.random.default_rng(0).integers(-8, 8, 384).astype(np.float32)
    got = execute(has_roles, 1, 384, x, x * 0)[1]
    index = (np.arange(256)[:, None] + 3 * np.arange(100)) % 384
    np.testing.assert_array_equal(got[:256], 2 * x[index].sum(axis=1))
    np.testing.assert_array_equal(got[256:], x[256:])


@kd.kernel
def goes_ahead(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"], rounds: kd.Static):
    """y = x after many additions of one; lets the next kernel start at once."""
    kd.wait_for_dependencies()
    kd.launch_dependents()
    i = kd.block_idx()[0] * THREADS + kd.thread_rank()
    value = x[i]
    for _ in kd.range(rounds):
        value = value * 3 + 1
    y[i] = value


@pytest.mark.parametrize("overlap", [False, True])
def test_launches_in_a_row(execute: Executor, overlap: bool) -> None:
    """A kernel that may start early sees all that the one before has written."""
    count, rounds = 64 * THREADS, 40
    x = np.random.default_rng(1).integers(-99, 99, count).astype(np.int32)
    launch = goes_ahead.configure(grid=64, block=THREADS, overlap=overlap)

    def three(a: Any, b: Any, c: Any) -> None:
        for source, target in ((a, b), (b, c), (c, a)):
            launch(source, target, rounds=rounds)

    got = execute.run(three, x, x * 0, x * 0)
    with np.errstate(over="ignore"):
        for result in (got[1], got[2], got[0]):
            for _ in range(rounds):
                x = x * np.int32(3) + np.int32(1)
            np.testing.assert_array_equal(result, x)
