"""The words of Hopper's mbarriers, clusters and warp groups: the PTX that they become."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_runtime.assemble import assemble

TWO, FOUR = (2, 1, 1), (2, 2, 1)


@kd.kernel
def runs(x: kd.Tensor["f32", "n"], case: kd.Static) -> None:
    """One case."""
    case(x, kd.thread_idx()[0])


def lines_of(case: Any, cluster: Any = None, threads: int = 384) -> list[str]:
    """The instructions of a case, which the assembler takes without a warning."""
    spec = kd.spec("f32", 1024)
    module = runs.module(spec, target="sm_90a", block=threads, cluster=cluster, case=case)
    assert assemble(module, "sm_90a").report.warnings == ()
    body = module.text.partition("\n{\n")[2].splitlines()
    return [line.strip(" ;") for line in body if not line.strip().startswith((".reg", "mov.u32"))]


def having(lines: list[str], *parts: str) -> list[str]:
    """The lines in which one of the parts occurs; registers count from where they first do."""
    text = "\n".join(line for line in lines if any(part in line for part in parts))
    for kind in ("%r", "%f", "%p"):
        found = list(dict.fromkeys(re.findall(rf"{kind}\d+", text)))
        text = re.sub(rf"{kind}\d+", lambda m, f=found, k=kind: f"{k}{f.index(m[0]) + 1}", text)
    return text.splitlines()


# -- mbarriers -------------------------------------------------------------------------------------
def phases(x: Any, i: Any) -> None:
    """A ring of three for TMA, and one barrier for the consumers."""
    full, empty = kd.mbarrier(count=3), kd.mbarrier(256, name="empty")
    assert len(full) == 3
    full.init()
    empty.init()
    kd.fence_mbarrier_init()
    full[2].arrive_expect(4096)
    full[1].expect(16)
    full[i % 3].wait(i & 1)
    empty.wait(0)
    empty.arrive()
    empty.arrive(2, pred=i < 3)
    empty.arrive_copies()
    empty.invalidate()


def test_mbarriers() -> None:
    """Static indices are offsets, run-time ones are added to the address; waits loop."""
    assert having(lines_of(phases), "mbarrier", "bra", "shl", "add") == [
        "mbarrier.init.shared::cta.b64 [%r1], 1",
        "mbarrier.init.shared::cta.b64 [%r1+8], 1",
        "mbarrier.init.shared::cta.b64 [%r1+16], 1",
        "mbarrier.init.shared::cta.b64 [%r2], 256",
        "fence.mbarrier_init.release.cluster",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+16], 4096",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1+8], 16",
        "shl.b32 %r3, %r4, 3",
        "add.u32 %r5, %r1, %r3",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r5], %r6",
        "@!%p1 bra $L_wait_0",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r2], 0",
        "@!%p2 bra $L_wait_1",
        "mbarrier.arrive.shared::cta.b64 _, [%r2]",
        "@%p3 mbarrier.arrive.shared::cta.b64 _, [%r2], 2",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2]",
        "mbarrier.inval.shared::cta.b64 [%r2]",
    ]


@kd.func
def remote(x: Any, i: Any) -> None:
    """Consumers free the stage in the block that filled it."""
    bars = kd.mbarrier(2, count=2)
    bars[1].arrive(rank=0)
    bars[1].arrive(3, rank=kd.cluster_rank() ^ 1)
    bars[1].arrive_expect(32, rank=0)
    if bars[0].try_wait(True):
        x[i] = 0.0
    bars[0].wait(0, scope="cta")


def test_arrivals_at_other_blocks() -> None:
    """The address is mapped once per block; waits acquire from the cluster, unless told not to."""
    assert having(lines_of(remote, TWO), "mbarrier", "mapa") == [
        "mapa.shared::cluster.u32 %r1, %r2, 0",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1+8]",
        "mapa.shared::cluster.u32 %r3, %r2, %r4",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3+8], 3",
        "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1+8], 32",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 1",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r2], 0",
    ]


# -- clusters --------------------------------------------------------------------------------------
def exchange(x: Any, i: Any) -> None:
    """Each block reads what the next one wrote."""
    tile = kd.smem(kd.f32, (kd.Layout(384)))
    tile[i] = x[i]
    kd.cluster_sync()
    there = kd.peer(tile, kd.cluster_rank() ^ 1)
    assert there.space == "cluster"
    x[i] = there[i]
    kd.atomic_add(there, 5, 1.0)
    kd.cluster_arrive(relaxed=True)
    kd.cluster_wait()


def test_peers() -> None:
    """A peer's tensor is read and changed where it lies."""
    lines = lines_of(exchange, TWO)
    assert having(lines, "barrier.cluster", "cluster.b32", "cluster.add") == [
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.wait.acquire.aligned",
        "ld.shared::cluster.b32 %f1, [%r1]",
        "atom.gpu.shared::cluster.add.f32 %f2, [%r2+20], %f3",
        "barrier.cluster.arrive.relaxed.aligned",
        "barrier.cluster.wait.acquire.aligned",
    ]


def places(x: Any, i: Any) -> None:
    """What a cluster's shape decides."""
    assert kd.cluster_dim() == FOUR
    cx, cy, cz = kd.cluster_idx()
    x[cx + cy + cz] = kd.cluster_rank().to(kd.f32)
    assert kd.cluster_rank().bound == 4


def alone(x: Any, i: Any) -> None:
    """Without clusters a block is one of its own."""
    assert kd.cluster_dim() == (1, 1, 1)
    x[i] = kd.cluster_rank().to(kd.f32)


def test_places() -> None:
    """Ranks and indices; a block without a cluster has rank 0 and runs anywhere."""
    assert having(lines_of(places, FOUR), "shr") == ["shr.s32 %r1, %r2, 1", "shr.s32 %r3, %r4, 1"]
    module = runs.module(kd.spec("f32", 1024), target="sm_80", block=32, case=alone)
    assert "cluster" not in module.text


@pytest.mark.parametrize(("cluster", "said"), [(2, "2, 1, 1"), ((2, 2), "2, 2, 1")])
def test_inspected_with_a_cluster(cluster: Any, said: str) -> None:
    """What needs no GPU takes a cluster as a launch does."""
    spec = kd.spec("f32", 1024)
    ptx = runs.ptx(spec, target="sm_90a", block=32, cluster=cluster, case=exchange)
    assert f".reqnctapercluster {said}" in ptx
    assert runs.cubin(spec, target="sm_90a", block=32, cluster=cluster, case=exchange)
    assert "cluster" in runs.ir(spec, block=32, cluster=cluster, case=exchange)
    assert f", cluster ({said})](" in runs.keys(spec, block=32, cluster=cluster, case=exchange)[0]


# -- warps with roles ----------------------------------------------------------------------------
@kd.func
def roles(x: Any, i: Any) -> None:
    """A producer gives registers to the consumers."""
    group = kd.warp_uniform(kd.warpgroup_idx())
    if group == 0:
        kd.set_max_registers(40)
        if kd.elect_one():
            x[0] = 1.0
    else:
        kd.set_max_registers(232)
        kd.named_barrier(1 + group, 128).sync()
        kd.named_barrier(3, 256).arrive()


def test_roles() -> None:
    """The direction follows from what each thread of the block starts with."""
    lines = lines_of(roles)
    assert having(lines, "setmaxnreg", "elect", "bar.", "shfl") == [
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, 4294967295",
        "setmaxnreg.dec.sync.aligned.u32 40",
        "elect.sync _|%p1, 4294967295",
        "setmaxnreg.inc.sync.aligned.u32 232",
        "bar.sync %r3, 128",
        "bar.arrive 3, 256",
    ]


def narrow(x: Any, i: Any) -> None:
    """Few threads have all registers from the start."""
    kd.set_max_registers(232)


@pytest.mark.parametrize(
    ("threads", "direction"), [(128, "dec"), (256, "dec"), (384, "inc"), (512, "inc")]
)
def test_register_direction(threads: int, direction: str) -> None:
    """The assembler knows the count at entry, and agrees with the direction."""
    assert f"setmaxnreg.{direction}.sync.aligned.u32 232" in lines_of(narrow, threads=threads)


def order(x: Any, i: Any) -> None:
    """Fences between proxies, and edges between kernels."""
    for space in ("shared", "cluster", "global", "all"):
        kd.fence_proxy_async(space)
    kd.wait_for_dependencies()
    kd.launch_dependents()


def test_order() -> None:
    """Each word is one instruction."""
    assert having(lines_of(order), "fence", "griddepcontrol") == [
        "fence.proxy.async.shared::cta",
        "fence.proxy.async.shared::cluster",
        "fence.proxy.async.global",
        "fence.proxy.async",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
    ]


def multiplies(x: Any, i: Any) -> None:
    """The order of matrix products, without any."""
    kd.wgmma_fence()
    kd.wgmma_commit()
    kd.wgmma_wait(1)


def test_order_of_products() -> None:
    """Each word is one instruction."""
    module = runs.module(kd.spec("f32", 1024), target="sm_90a", block=384, case=multiplies)
    lines = [line.strip(" ;") for line in module.text.splitlines()]
    assert having(lines, "wgmma") == [
        "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned 1",
    ]
