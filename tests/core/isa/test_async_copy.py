"""Asynchronous copies."""

from __future__ import annotations

import pytest

from core.isa.warps import GLOBAL_BASE, SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import u32, u64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Const, Effect
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait


def test_the_machine_is_asked_with_addresses_and_limits() -> None:
    """Copy, commit and wait reach the machine in order, with one address a lane."""
    bench = Bench(2)
    dst, src = bench.holding(u32, SHARED_BASE), bench.holding(u64, GLOBAL_BASE)
    cp_async(bench.b, dst, src, 16, 32, 64, source_bytes=bench.holding(u32, 7))
    cp_async_commit(bench.b)
    cp_async_wait(bench.b, 1)
    copy, *rest = bench.run().asked
    assert rest == [("async_commit",), ("async_wait", 1)]
    _, to, source, size, limit = copy
    assert (to == SHARED_BASE + 32).all() and to.shape == (2, 32)
    assert (source == GLOBAL_BASE + 64).all() and source.shape == (2, 32)
    assert size == 16 and (limit == 7).all()


def test_text() -> None:
    """The PTX names cache, offsets, size and limit."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    dst, src = new(u32), new(u64)
    cp_async(b, dst, src, 16, 16, 32)
    cp_async(b, dst, src, 4, source_bytes=Const(u32, 3), cache="ca")
    cp_async_commit(b)
    cp_async_wait(b, 2)
    assert ptx_of(bench.kernel.body) == [
        "cp.async.cg.shared.global [b32_1+16], [b64_2+32], 16",
        "cp.async.ca.shared.global [b32_1], [b64_2], 4, #3",
        "cp.async.commit_group",
        "cp.async.wait_group 2",
    ]
    effects = [op.effects for op in bench.kernel.body.ops]
    assert effects[2:] == [Effect.SYNC, Effect.SYNC]


def test_sizes_and_spaces_are_checked() -> None:
    """`cg` copies 16 bytes only, and the destination is shared memory."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    with pytest.raises(TypeMismatch, match="size in bytes must be 16, got 8"):
        cp_async(b, new(u32), new(u64), 8)
    with pytest.raises(TypeMismatch, match="a shared address must be u32"):
        cp_async(b, new(u64), new(u64), 16)
    with pytest.raises(TypeMismatch, match="pending groups must be 0 to 63, got -1"):
        cp_async_wait(b, -1)
