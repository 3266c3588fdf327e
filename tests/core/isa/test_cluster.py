"""Clusters: their barrier, and the shared memory of other blocks."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.warps import SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import bf16, boolean, f32, i32, u32, u64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Const, Effect, target_of
from kdsl_core.isa import cluster
from kdsl_core.isa.atomic import atomic, reduce
from kdsl_core.isa.memory import load, store


def test_barrier() -> None:
    """Arrivals release unless told otherwise, waits acquire, and warps do both converged."""
    bench = Bench(1)
    cluster.arrive(bench.b)
    cluster.arrive(bench.b, release=False)
    cluster.wait(bench.b)
    assert ptx_of(bench.kernel.body) == [
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.arrive.relaxed.aligned",
        "barrier.cluster.wait.acquire.aligned",
    ]
    assert bench.run().asked == [
        ("cluster_arrive", True),
        ("cluster_arrive", False),
        ("cluster_wait", True),
    ]
    assert {op.effects for op in bench.kernel.body.ops} == {Effect.SYNC | Effect.CONVERGED}


def test_map_address() -> None:
    """The address of a block's rank is pure: asked twice, it is computed once."""
    bench = Bench(1)
    address, rank = bench.b.value(u32), Const(u32, 3)
    bench.m.write(address, np.full((1, 1), SHARED_BASE, np.uint32))
    there = cluster.map_address(bench.b, address, rank)
    assert cluster.map_address(bench.b, address, rank) is there
    assert ptx_of(bench.kernel.body) == ["mapa.shared::cluster.u32 b32_2, b32_1, #3"]
    bench.run()
    assert (bench.got(there) == SHARED_BASE + (4 << 24)).all()


def test_accesses_to_other_blocks() -> None:
    """Loads, stores and atomics name the space, and need a chip with clusters."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    there = new(u32)
    load(b, "cluster", there, f32, 2, 8, new(boolean))
    store(b, "cluster", there, (new(u32),), 16)
    atomic(b, "cluster", there, "add", new(u32))
    reduce(b, "cluster", there, "add", new(bf16))
    assert ptx_of(bench.kernel.body)[2:] == [
        "@pred_4 ld.shared::cluster.v2.b32 {f32_1, f32_2}, [b32_3+8]",
        "st.shared::cluster.b32 [b32_3+16], b32_5",
        "atom.gpu.shared::cluster.add.u32 b32_6, [b32_3], b32_7",
        "red.gpu.shared::cluster.add.noftz.bf16 [b32_3], b16_8",
    ]
    for op in bench.kernel.body.ops:
        assert op.effects & (Effect.READS_SHARED | Effect.WRITES_SHARED)
        assert op.need.missing(target_of("sm_89")) == "it needs sm_90 or newer"


def test_machine_moves_bytes_of_other_blocks() -> None:
    """The machine is asked for its cluster space."""
    bench = Bench(1)
    there = bench.holding(u32, SHARED_BASE + 4 * np.arange(32))
    store(bench.b, "cluster", there, (bench.holding(i32, np.arange(32)),))
    (got,) = load(bench.b, "cluster", there, i32)
    old = atomic(bench.b, "cluster", there, "add", Const(i32, 1))
    (after,) = load(bench.b, "cluster", there, i32)
    bench.run()
    assert bench.got(got)[0].tolist() == bench.got(old)[0].tolist() == list(range(32))
    assert bench.got(after)[0].tolist() == list(range(1, 33))


def test_wrong_operands_are_refused() -> None:
    """Addresses and ranks are u32, and cache operators belong to global memory."""
    b = Bench(1).b
    new = b.var
    with pytest.raises(TypeMismatch, match="a shared address must be u32, got u64"):
        cluster.map_address(b, new(u64), Const(u32, 0))
    with pytest.raises(TypeMismatch, match="the rank must be u32, got i32"):
        cluster.map_address(b, new(u32), new(i32))
    with pytest.raises(TypeMismatch, match="the result must be u32, got i32"):
        cluster.MapAddressOp(dst=b.value(i32), address=new(u32), rank=new(u32)).verify()
    with pytest.raises(TypeMismatch, match="a cluster address must be u32, got u64"):
        load(b, "cluster", new(u64), f32)
    with pytest.raises(VerifyError, match="the cache operator"):
        load(b, "cluster", new(u32), f32, cache="nc")
