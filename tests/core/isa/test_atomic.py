"""Atomic read-modify-write."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.warps import GLOBAL_BASE, SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import DType, bf16, boolean, f16, f32, f64, i32, i64, u32, u64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Const, Effect, target_of
from kdsl_core.isa.atomic import atomic, reduce

LANE = np.arange(64).reshape(2, 32)


@pytest.mark.parametrize("dtype", [u32, i32, u64, i64, f32, f64, f16, bf16], ids=str)
def test_sums_count_every_lane(dtype: DType) -> None:
    """All lanes add to one place; each sees the sum of those before it."""
    bench = Bench(2)
    address = bench.holding(u64, GLOBAL_BASE)
    old = atomic(bench.b, "global", address, "add", Const(dtype, 1))
    bench.run()
    assert bench.m.memory["global"][: dtype.bytes].view(dtype.numpy)[0] == 64
    assert sorted(bench.got(old).astype(int).ravel()) == list(range(64))


@pytest.mark.parametrize("op", ["min", "max", "and", "or", "xor"])
def test_reductions_agree_with_numpy(op: str) -> None:
    """Reductions leave what NumPy gives for the old content and all lanes."""
    bench = Bench(2)
    x = bench.random(i32, 1)
    reduce(bench.b, "shared", bench.holding(u32, SHARED_BASE), op, x, offset=8)
    bench.run()
    name = {"min": "minimum", "max": "maximum"}.get(op, f"bitwise_{op}")
    expected = getattr(np, name).reduce(bench.got(x), axis=None, initial=0)
    assert bench.m.memory["shared"][8:12].view(np.int32)[0] == expected


def test_compare_and_swap_lets_one_lane_win() -> None:
    """One lane finds zero and writes; all others see its value."""
    bench = Bench(1)
    address = bench.holding(u64, GLOBAL_BASE)
    old = atomic(
        bench.b, "global", address, "cas", bench.holding(u32, LANE[:1] + 7), compare=Const(u32, 0)
    )
    bench.run()
    assert np.count_nonzero(bench.got(old) == 0) == 1
    assert bench.m.memory["global"][:4].view(np.uint32)[0] == 7


def test_predicate_leaves_lanes_out() -> None:
    """Only lanes whose predicate holds take part."""
    bench = Bench(2)
    address, pred = bench.holding(u64, GLOBAL_BASE), bench.holding(boolean, LANE % 4 == 0)
    reduce(bench.b, "global", address, "add", Const(u32, 1), pred=pred)
    bench.run()
    assert bench.m.memory["global"][:4].view(np.uint32)[0] == 16


@pytest.mark.parametrize(("space", "expected"), [("global", 0.0), ("shared", 1e-40)])
def test_global_sums_flush_subnormals(space: str, expected: float) -> None:
    """`atom.add.f32` flushes subnormals in global memory and keeps them in shared memory."""
    bench = Bench(1)
    address = bench.holding(*((u64, GLOBAL_BASE) if space == "global" else (u32, SHARED_BASE)))
    pred = bench.holding(boolean, LANE[:1] == 0)
    reduce(bench.b, space, address, "add", Const(f32, 1e-40), pred=pred)
    bench.run()
    got = bench.m.memory[space][:4].view(np.float32)[0]
    assert got == np.float32(expected)


def test_text() -> None:
    """Without a result it is `red`; orders, scopes and types are spelled as PTX does."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    p = new(u64)
    reduce(b, "global", p, "add", new(f32), offset=4, pred=new(boolean))
    atomic(b, "global", p, "add", new(i64), order="acq_rel", scope="sys")
    atomic(b, "shared", new(u32), "cas", new(i32), compare=new(i32), scope="cta")
    reduce(b, "global", p, "add", new(bf16))
    reduce(b, "global", p, "or", Const(u32, 0), order="acquire")
    assert ptx_of(bench.kernel.body) == [
        "@pred_3 red.gpu.global.add.f32 [b64_1+4], f32_2",
        "atom.acq_rel.sys.global.add.u64 b64_4, [b64_1], b64_5",
        "atom.cta.shared.cas.b32 b32_7, [b32_6], b32_8, b32_9",
        "red.gpu.global.add.noftz.bf16 [b64_1], b16_10",
        "mov.b32 b32_12, #0",
        "atom.acquire.gpu.global.or.b32 b32_11, [b64_1], b32_12",
    ]
    ordered, hopper = bench.kernel.body.ops[1], bench.kernel.body.ops[3]
    assert ordered.effects & Effect.SYNC
    assert hopper.need.missing(target_of("sm_80")) == "it needs sm_90 or newer"


def test_orders_are_fences_in_the_machine() -> None:
    """Release fences before, acquire after."""
    bench = Bench(1)
    address = bench.holding(u64, GLOBAL_BASE)
    atomic(bench.b, "global", address, "add", Const(u32, 1), order="acq_rel")
    assert bench.run().asked == [("fence", "gpu"), ("fence", "gpu")]


def test_wrong_operands_are_refused() -> None:
    """Operations, types and a missing comparison are checked."""
    b = Bench(1).b
    new = b.var
    with pytest.raises(TypeMismatch, match="value must be u32 or i32 or u64 or i64, got f32"):
        atomic(b, "global", new(u64), "max", new(f32))
    with pytest.raises(VerifyError, match="the operation must be one of"):
        atomic(b, "global", new(u64), "sub", new(u32))
    with pytest.raises(VerifyError, match="compare"):
        atomic(b, "global", new(u64), "cas", new(u32))
    with pytest.raises(TypeMismatch, match="compare must be u32, got i32"):
        atomic(b, "global", new(u64), "cas", new(u32), compare=new(i32))
