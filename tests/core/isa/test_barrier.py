"""Barriers and fences."""

from __future__ import annotations

import pytest

from core.isa.warps import Bench, ptx_of
from kdsl_core.dtypes import f32, u32
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Const, Effect
from kdsl_core.isa.barrier import (
    PROXY_SPACES,
    barrier_arrive,
    barrier_sync,
    fence,
    fence_proxy,
    sync_warp,
)


def test_text_and_machine() -> None:
    """Each instruction is spelled as PTX does and reaches the machine."""
    bench = Bench(1)
    b = bench.b
    barrier_sync(b)
    barrier_sync(b, bench.holding(u32, 3), 64)
    barrier_arrive(b, 1, 96)
    sync_warp(b)
    fence(b, "gpu")
    assert ptx_of(bench.kernel.body) == [
        "bar.sync #0",
        "bar.sync b32_1, 64",
        "bar.arrive #1, 96",
        "bar.warp.sync #4294967295",
        "fence.acq_rel.gpu",
    ]
    asked = bench.run().asked
    assert [entry[0] for entry in asked] == ["barrier"] * 3 + ["sync_lanes", "fence"]
    assert asked[0] == ("barrier", Const(u32, 0), None, True)
    assert asked[2] == ("barrier", Const(u32, 1), 96, False)
    assert all(op.effects & Effect.SYNC for op in bench.kernel.body.ops)


def test_numbers_and_counts_are_checked() -> None:
    """There are 16 barriers, for whole warps."""
    b = Bench(1).b
    with pytest.raises(VerifyError, match="got 16"):
        barrier_sync(b, 16)
    with pytest.raises(VerifyError, match="positive multiple of 32, got 48"):
        barrier_sync(b, 1, 48)
    with pytest.raises(TypeMismatch, match="got f32"):
        barrier_sync(b, b.var(f32))
    with pytest.raises(VerifyError, match="the scope must be one of 'cta'"):
        fence(b, "warp")


def test_proxy_fences() -> None:
    """One for each space, and one for all; there are no others."""
    bench = Bench(1)
    for space in PROXY_SPACES:
        fence_proxy(bench.b, space)
    assert ptx_of(bench.kernel.body) == [
        "fence.proxy.async.shared::cta",
        "fence.proxy.async.shared::cluster",
        "fence.proxy.async.global",
        "fence.proxy.async",
    ]
    assert bench.run().asked == [("fence_proxy", space) for space in PROXY_SPACES]
    with pytest.raises(VerifyError, match="the space must be one of 'shared::cta'"):
        fence_proxy(bench.b, "shared")
