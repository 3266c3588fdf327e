"""Hazards say who, where, and which word orders this pair; results are texts and data."""

from __future__ import annotations

import inspect
import json
import linecache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.sim import Hazard


def floats(n: int) -> np.ndarray[Any, Any]:
    """Zeros."""
    return np.zeros(n, np.float32)


def run(kernel: Any, grid: Any, block: Any, *args: Any, **more: Any) -> kd.Simulated:
    """A run that collects hazards."""
    return kd.simulate(kernel, grid=grid, block=block, args=args, on_hazard="collect", **more)


def first(kernel: Any, grid: Any, block: Any, *args: Any, **more: Any) -> Hazard:
    """The first hazard of a run."""
    return run(kernel, grid, block, *args, **more).hazards[0]


def line_of(function: Any, words: str) -> int:
    """The line of a kernel's source that holds some words."""
    lines, start = inspect.getsourcelines(getattr(function, "__wrapped__", function))
    return next(start + at for at, line in enumerate(lines) if words in line)


# -- what orders a pair ----------------------------------------------------------------------------
@kd.kernel
def through_shared(x: kd.Tensor["f32", "n"], step: kd.Static):
    """Each thread reads what another one wrote."""
    t = kd.smem(kd.f32, 128, name="t")
    i = kd.thread_idx()[0]
    t[i] = x[i]
    x[i] = t[i ^ step]


@kd.kernel
def of_a_peer(x: kd.Tensor["f32", "n"]):
    """Each block reads what the other one of its cluster wrote."""
    t = kd.smem(kd.f32, 32, name="t")
    i = kd.thread_idx()[0]
    kd.cluster_sync()
    t[i] = 1.0
    x[i + 32 * kd.cluster_rank()] = kd.peer(t, 1 - kd.cluster_rank())[i]
    kd.cluster_sync()


@kd.kernel
def of_every_block(x: kd.Tensor["f32", "n"]):
    """All blocks write the same elements."""
    x[kd.thread_idx()[0]] = kd.block_idx()[0].to(kd.f32)


@kd.kernel
def one_word(x: kd.Tensor["f32", "n"]):
    """All warps write one element, each another value."""
    x[0] = kd.thread_idx()[0].to(kd.f32)


@kd.kernel
def atomic_and_not(x: kd.Tensor["f32", "n"]):
    """One warp adds atomically to what another one reads."""
    if kd.warp_idx() == 0:
        kd.atomic_add(x, 0, 1.0)
    else:
        x[1] = x[0]


@kd.kernel
def by_cp_async(x: kd.Tensor["f32", "n"], step: kd.Static):
    """Each thread reads what another one still copies."""
    t = kd.smem(kd.f32, 64, name="t")
    i = kd.thread_idx()[0]
    one = kd.tiled_copy(kd.atoms.SM80_CP_ASYNC_CACHEALWAYS_U32, kd.f32, kd.Layout(64), kd.Layout(1))
    part = one.get_slice(i)
    kd.copy(part.partition_S(kd.local_tile(x, (64,), (0,))), part.partition_D(t), atom=one)
    kd.cp_async_commit()
    x[i] = t[i ^ step]


@kd.kernel
def unfenced(y: kd.Tensor["f32", "n"], writer: kd.Static):
    """Warp 0 stores in bulk what a thread wrote without a proxy fence."""
    t = kd.smem(kd.f32, 64, name="t")
    i = kd.thread_idx()[0]
    if i == 0:
        for k in range(64):
            t[k] = 2.0
    kd.fence_proxy_async()
    kd.sync_threads()
    if i == writer:
        t[0] = 1.0
    kd.sync_threads()
    if i == 0:
        kd.bulk_store(t, y, 64)
        kd.tma_store_commit()
        kd.tma_store_wait(0)


@kd.kernel
def overwrites(y: kd.Tensor["f32", "n"], writer: kd.Static):
    """A thread changes what a bulk copy of thread 0 still reads."""
    t = kd.smem(kd.f32, 64, name="t")
    i = kd.thread_idx()[0]
    t[i] = 2.0
    kd.fence_proxy_async()
    kd.sync_threads()
    if i == 0:
        kd.bulk_store(t, y, 64)
        kd.tma_store_commit()
    kd.sync_threads()
    if i == writer:
        t[0] = 1.0
    if i == 0:
        kd.tma_store_wait(0)


PAIRS = [
    (through_shared, 1, 128, 1, {"step": 1}, ["kd.sync_warp()"], ["kd.sync_threads"]),
    (through_shared, 1, 128, 1, {"step": 32}, ["kd.sync_threads()", "of warps 0 and 1"], []),
    (of_a_peer, 2, 32, 2, {}, ["kd.cluster_sync()", "bar.arrive(rank=…)"], ["kd.sync_threads"]),
    (of_every_block, 2, 32, 1, {}, ["two launches", "kd.atomic_add"], ["kd.sync"]),
    (of_every_block, 2, 32, 2, {}, ["element of its own", "kd.atomic_add"], ["launches"]),
    (one_word, 1, 64, 1, {}, ["an element of its own", "atomic_add"], ["kd.sync"]),
    (atomic_and_not, 1, 64, 1, {}, ["make both accesses atomic", "kd.sync_threads()"], []),
    (by_cp_async, 1, 64, 1, {"step": 0}, ["kd.cp_async_wait(n) before this line"], ["kd.sync"]),
    (by_cp_async, 1, 64, 1, {"step": 1}, ["kd.cp_async_wait(n) in", "kd.sync_warp()"], []),
    (by_cp_async, 1, 64, 1, {"step": 32}, ["kd.cp_async_wait(n) in", "kd.sync_threads()"], []),
    (unfenced, 1, 64, 1, {"writer": 0}, ["kd.fence_proxy_async() before"], ["kd.sync"]),
    (unfenced, 1, 64, 1, {"writer": 33}, ["fence_proxy_async() in thread (33", "kd.sync_thr"], []),
    (overwrites, 1, 64, 1, {"writer": 0}, ["kd.tma_store_wait(0) before this line"], ["kd.sync"]),
    (overwrites, 1, 64, 1, {"writer": 40}, ["tma_store_wait(0) in thread (0", "sync_threads"], []),
]


@pytest.mark.parametrize(("kernel", "grid", "block", "cluster", "kwargs", "words", "not_"), PAIRS)
def test_the_word_that_orders_this_pair(
    kernel: Any, grid: int, block: int, cluster: int, kwargs: Any, words: Any, not_: Any
) -> None:
    """The fix depends on how far apart the two are, and on what each of them does."""
    more = {"cluster": cluster} if cluster > 1 else {}
    hazard = first(kernel, grid, block, floats(128), kwargs=kwargs, **more)
    fix = hazard.fix or ""
    assert all(word in fix for word in words), fix
    assert not any(word in fix for word in not_), fix


def test_an_atomic_has_its_line() -> None:
    """Both parties of a race stand in the report with their lines, the atomic one as well."""
    hazard = first(atomic_and_not, 1, 64, floats(128))
    sources = [linecache.getline(file, line).strip() for file, line in hazard.lines]
    assert sorted(sources) == ["kd.atomic_add(x, 0, 1.0)", "x[1] = x[0]"]


def test_the_farthest_pair_decides() -> None:
    """Neighbours of one warp and of another: a barrier of warps is named, which orders both."""

    @kd.kernel
    def reversed_(x: kd.Tensor["f32", "n"]):
        t = kd.smem(kd.f32, 96, name="t")
        i = kd.thread_idx()[0]
        t[i] = x[i]
        x[i] = t[(i + 16) % 96]

    hazard = first(reversed_, 1, 96, floats(96))
    assert hazard.other is not None and hazard.who is not None
    assert hazard.other.warp != hazard.who.warp
    assert "kd.sync_threads()" in str(hazard.fix)


# -- who ------------------------------------------------------------------------------------------
@kd.kernel
def with_roles(x: kd.Tensor["f32", "n"]):
    """A warp writes, another one reads, and the author has names for them."""
    t = kd.smem(kd.f32, 32, name="t")
    lane = kd.lane_idx()
    if kd.warp_idx() == 1:
        with kd.role("producer"):
            t[lane] = 1.0
    else:
        with kd.role("consumer"):
            x[lane] = t[lane]
    kd.cluster_sync()


def test_parties_have_names() -> None:
    """Thread, warp, role, block and rank of both, in the sentence and as fields."""
    hazard = next(h for h in run(with_roles, 2, 64, floats(32), cluster=2).hazards
                  if "t[" in h.message and h.code == "race")  # fmt: skip
    who, other = hazard.who, hazard.other
    assert who is not None and other is not None
    assert {who.role, other.role} == {"producer", "consumer"}
    assert {who.warp, other.warp} == {0, 1} and who.rank == other.rank == 0
    assert who.name in str(hazard) and other.name in str(hazard)
    assert "(rank 0 of its cluster)" in str(hazard)


@kd.func
def fill(t: Any, x: Any, i: Any) -> None:
    """A helper of the author."""
    t[i] = x[i]


@kd.kernel
def calls_a_helper(x: kd.Tensor["f32", "n"]):
    """The write is in a helper."""
    t = kd.smem(kd.f32, 64, name="t")
    i = kd.thread_idx()[0]
    fill(t, x, i)
    x[i] = t[63 - i]


def test_call_chain_of_a_helper() -> None:
    """The helper's line, and the line that called it."""
    hazard = first(calls_a_helper, 1, 64, floats(64))
    text = str(hazard)
    assert f"called from test_sim_reports.py:{line_of(calls_a_helper, 'fill(t, x, i)')}" in text
    assert "t[i] = x[i]\n      |     ^^^^" in text


@kd.kernel
def forgets_to_release(A: kd.Tensor["bf16", "m k"], x: kd.Tensor["f32", "n"]):
    """A ring of two stages from the collectives; its reader never releases a stage."""
    load = kd.collective.TmaOperand(A, (64, 64), 2, name="a")
    ring = kd.collective.TmaPipeline(2, load.bytes, 1)
    if kd.thread_rank() == 0:
        ring.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    if kd.warp_idx() == 0:
        with kd.role("producer"):
            if kd.elect_one():
                filling = ring.writer()
                for k in kd.range(4):
                    stage, full = filling.acquire()
                    load.load(stage, 0, k, 0, full)
                    filling.advance()
    else:
        with kd.role("consumer"):
            reading = ring.reader()
            for _ in kd.range(4):
                stage = reading.wait()
                x[kd.lane_idx()] = load.shared[kd.lane_idx(), 0, stage].to(kd.f32)


def test_deadlock_inside_a_collective() -> None:
    """The author's line comes first and the collective's second; the missing party is named."""
    args = np.ones((64, 256), ml_dtypes.bfloat16), floats(32)
    (hazard,) = run(forgets_to_release, 1, 64, *args).hazards
    text, line = str(hazard), line_of(forgets_to_release, "filling.acquire()")
    assert text.startswith(f"test_sim_reports.py:{line}:")
    assert hazard.lines[0][1] == line
    assert text.index("filling.acquire()") < text.index("in PipelineWriter.acquire")
    assert "nothing in the kernel arrives at mbarrier empty[0]" in hazard.message
    producer, consumer = hazard.waits
    assert (producer.awaited.name, producer.awaited.stage) == ("mbarrier empty[0]", 0)
    assert (producer.awaited.phase, producer.awaited.parity, producer.awaited.pending) == (0, 0, 1)
    assert producer.arrivers == () and producer.loc and producer.loc.role == "producer"
    assert consumer.arrivers == (f"warp 0 (producer) at {producer.loc.short()}",)


# -- deadlocks -------------------------------------------------------------------------------------
@kd.kernel
def crossed(x: kd.Tensor["f32", "n"]):
    """Two warps meet two barriers in opposite orders."""
    if kd.warp_idx() == 0:
        kd.named_barrier(1, 64).sync()
        kd.named_barrier(2, 64).sync()
    else:
        kd.named_barrier(2, 64).sync()
        kd.named_barrier(1, 64).sync()


def test_deadlock_names_the_cycle() -> None:
    """Both warps, both barriers, and where each would have arrived."""
    (hazard,) = run(crossed, 3, 64, floats(1)).hazards
    assert (
        "warp 0 waits for warp 1 to arrive at barrier 1, and warp 1 waits for warp 0 to arrive at "
        "barrier 2: a cycle" in hazard.message
    )
    assert "2 more blocks cannot go on either" in str(hazard)
    assert all(len(wait.arrivers) == 1 for wait in hazard.waits)


@kd.kernel
def ends_early(x: kd.Tensor["f32", "n"]):
    """Block 1 of the cluster waits for a barrier at which its own last warp would arrive."""
    b = kd.mbarrier(1, name="late")
    if kd.thread_rank() == 0:
        b.init()
    kd.sync_threads()
    if kd.cluster_rank() == 1:
        if kd.warp_idx() == 0:
            b.wait(0)
        elif kd.thread_rank() == 33:
            return
        b.arrive(pred=kd.thread_rank() == 33)
    kd.cluster_sync()


def test_deadlock_across_a_cluster() -> None:
    """Every waiting warp of the cluster has a line with its rank, and the count of the barrier."""
    hazard = next(h for h in run(ends_early, 2, 64, floats(1), cluster=2).hazards
                  if h.code == "deadlock")  # fmt: skip
    text = str(hazard)
    assert "no warp of the cluster of block (0, 0, 0) can go on" in hazard.message
    assert "(rank 0 of the cluster)" in text and "(rank 1 of the cluster)" in text
    assert "mbarrier late (phase 0: 1 of 1 arrivals pending)" in text
    assert "the cluster's barrier (" in text


@kd.kernel
def waits_for_itself(x: kd.Tensor["f32", "n"]):
    """Every thread waits for the arrival that it makes next."""
    b = kd.mbarrier(32, name="b")
    if kd.thread_rank() == 0:
        b.init()
    kd.sync_threads()
    b.wait(0)
    b.arrive()


def test_deadlock_of_one_warp() -> None:
    """A warp that would itself arrive is its own cycle, and no parity is to blame."""
    (hazard,) = run(waits_for_itself, 1, 32, floats(1)).hazards
    assert "warp 0 waits for their own arrival at mbarrier b: a cycle" in hazard.message
    assert hazard.fix == "let one of them arrive before it waits"


# -- results ---------------------------------------------------------------------------------------
def test_one_hazard_for_a_pair_of_lines() -> None:
    """Unrolled copies of a line, many threads and both orders of the pair count as one."""

    @kd.kernel
    def unrolled(x: kd.Tensor["f32", "n"]):
        t = kd.smem(kd.f32, 64, name="t")
        i = kd.thread_idx()[0]
        for _ in range(3):
            t[i] = x[i]
            x[i] = t[63 - i]

    result = run(unrolled, 1, 64, floats(64))
    (hazard,) = result.hazards
    assert hazard.code == "race"
    assert hazard.count == 64 * (3 + 2)  # each read with the write before it, two writes with both
    assert f"{hazard.count} accesses at these lines show the same" in str(hazard)


def test_report_of_a_result() -> None:
    """A headline, each hazard, and the table on request."""
    result = run(through_shared, 1, 128, floats(128), kwargs={"step": 32})
    text = str(result)
    assert text.splitlines()[0] == "through_shared, 1 block of 128 threads: 1 hazard"
    assert str(result.hazards[0]) in text and str(result.profile) not in text
    assert str(result.profile) in result.report(profile=True)
    clean = run(of_every_block, 1, 32, floats(32))
    assert str(clean) == "of_every_block, 1 block of 32 threads: no hazards"
    assert repr(clean) == "<Simulated of of_every_block, 1 block of 32 threads: no hazards>"
    assert clean.written == clean.names == ("x",)


def test_hazards_as_data() -> None:
    """`to_dict` is JSON and holds both parties, the place and the waits."""
    hazard = first(through_shared, 1, 128, floats(128), kwargs={"step": 32})
    held = json.loads(json.dumps(hazard.to_dict()))
    reader, writer = held["parties"]
    assert (held["code"], held["error"], held["count"]) == ("race", "K501", 128)
    assert (reader["line"], writer["line"]) == (
        line_of(through_shared, "x[i] = t"), line_of(through_shared, "t[i] = x")
    )  # fmt: skip
    assert (reader["thread"], reader["warp"]) == ([0, 0, 0], 0)
    assert (writer["thread"], writer["warp"]) == ([32, 0, 0], 1)
    assert (held["place"]["tensor"], held["place"]["coordinate"]) == ("t", [32])
    deadlock = json.loads(json.dumps(first(crossed, 1, 64, floats(1)).to_dict()))
    assert [wait["awaited"]["name"] for wait in deadlock["waits"]] == ["barrier 1", "barrier 2"]
    assert [wait["awaited"]["pending"] for wait in deadlock["waits"]] == [1, 1]
    result = run(crossed, 1, 64, floats(1)).to_dict()
    assert [found["code"] for found in result["hazards"]] == ["deadlock"]
