"""Loads and stores."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.warps import GLOBAL_BASE, SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import ALL_DTYPES, DType, boolean, f16, f32, f64, i32, u8, u32, u64
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Const, Effect
from kdsl_core.isa.memory import load, load_into, prefetch, shared_address, store

LANE = np.arange(64, dtype=np.uint64).reshape(2, 32)


def place(bench: Bench, space: str, stride: int) -> object:
    """Addresses of pieces of `stride` bytes, one a lane."""
    if space == "global":
        return bench.holding(u64, GLOBAL_BASE + stride * LANE)
    return bench.holding(u32, SHARED_BASE + stride * LANE)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_what_is_stored_is_loaded(dtype: DType, space: str) -> None:
    """Every type goes through memory unchanged, also as a vector at an offset."""
    bench = Bench(2)
    vector = 2 if dtype.bytes <= 8 else 1
    address = place(bench, space, 32)
    values = tuple(bench.random(dtype, seed) for seed in range(vector))
    store(bench.b, space, address, values, offset=16)
    loaded = load(bench.b, space, address, dtype, vector, offset=16)
    bench.run()
    for value, got in zip(values, loaded, strict=True):
        assert bench.got(value).tobytes() == bench.got(got).tobytes()


def test_lanes_without_predicate_get_zeros_and_store_nothing() -> None:
    """A false predicate reads zeros and writes nothing."""
    bench = Bench(2)
    address, odd = place(bench, "global", 4), bench.holding(boolean, LANE % 2)
    store(bench.b, "global", address, (bench.holding(i32, LANE + 1),), pred=odd)
    (masked,) = load(bench.b, "global", address, i32, pred=bench.holding(boolean, LANE % 4 == 1))
    (stored,) = load(bench.b, "global", address, i32)
    bench.run()
    np.testing.assert_array_equal(bench.got(stored), np.where(LANE % 2, LANE + 1, 0))
    np.testing.assert_array_equal(bench.got(masked), np.where(LANE % 4 == 1, LANE + 1, 0))


def test_text() -> None:
    """Cache operators, vectors, offsets, predicates and truth values are spelled as PTX does."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    pointer, pred = new(u64), new(boolean)
    load(b, "global", pointer, u32, 4, offset=16, cache="nc")
    load(b, "global", pointer, f32, pred=pred)
    load(b, "shared", new(u32), u8, pred=Const(boolean, True))
    store(b, "global", pointer, (Const(f32, 1), new(f32)), offset=-8, pred=pred)
    store(b, "global", pointer, (pred,))
    prefetch(b, pointer, 128)
    assert ptx_of(bench.kernel.body) == [
        "ld.global.nc.v4.b32 {b32_1, b32_2, b32_3, b32_4}, [b64_5+16]",
        "mov.f32 f32_6, 0f00000000",
        "@pred_7 ld.global.b32 f32_6, [b64_5]",
        "ld.shared.u8 b16_8, [b32_9]",
        "@pred_7 st.global.v2.b32 [b64_5+-8], {#1.0, f32_10}",
        "selp.u16 b16_11, 1, 0, pred_7",
        "st.global.u8 [b64_5], b16_11",
        "prefetch.global.L2 [b64_5+128]",
    ]


def test_priorities_are_for_both_caches() -> None:
    """L1 is told by the load, L2 by a policy, which loads of one kind share."""
    bench = Bench(1)
    pointer = bench.b.var(u64)
    load(bench.b, "global", pointer, f32, 2, cache="evict_last")
    load(bench.b, "global", pointer, f32, offset=8, cache="evict_last")
    hint = "ld.global.L1::evict_last.L2::cache_hint"
    assert ptx_of(bench.kernel.body) == [
        "createpolicy.fractional.L2::evict_last.b64 b64_1, 1.0",
        f"{hint}.v2.b32 {{f32_2, f32_3}}, [b64_4], b64_1",
        f"{hint}.b32 f32_5, [b64_4+8], b64_1",
    ]


def test_shared_addresses_are_shared() -> None:
    """The address of one allocation is computed once."""
    bench = Bench(1)
    alloc = bench.kernel.allocate_shared("tile", 256, 128)
    assert shared_address(bench.b, alloc) is shared_address(bench.b, alloc)
    second = bench.kernel.allocate_shared("other", 256, 128)
    address = shared_address(bench.b, second)
    bench.run()
    assert (bench.got(address) == SHARED_BASE + 256).all()
    assert ptx_of(bench.kernel.body)[-1] == "mov.u32 b32_2, shared+256"


def test_effects_name_the_space() -> None:
    """A load is kept and ordered by the memory it touches."""
    bench = Bench(1)
    load(bench.b, "shared", bench.b.var(u32), f16)
    store(bench.b, "global", bench.b.var(u64), (bench.b.var(f16),))
    effects = [op.effects for op in bench.kernel.body.ops]
    assert effects == [Effect.READS_SHARED, Effect.WRITES_GLOBAL]


def test_wrong_types_are_refused() -> None:
    """Address widths, vector sizes, mixed types and predicates are checked."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    with pytest.raises(TypeMismatch, match="a global address must be u64, got u32"):
        load(b, "global", new(u32), f32)
    with pytest.raises(TypeMismatch, match="at most 16 bytes"):
        load(b, "global", new(u64), f64, 4)
    with pytest.raises(TypeMismatch, match="number of registers must be 1 or 2 or 4, got 3"):
        load(b, "global", new(u64), f32, 3)
    with pytest.raises(TypeMismatch, match="every register of a vector must be f32, got i32"):
        store(b, "global", new(u64), (new(f32), new(i32)))
    with pytest.raises(TypeMismatch, match="condition must be boolean"):
        load(b, "global", new(u64), f32, pred=new(u32))
    address = new(u64)
    with pytest.raises(TypeMismatch, match="cannot overwrite its address"):
        load_into(b, "global", address, (address,), pred=new(boolean))


def test_wrong_choices_are_refused() -> None:
    """Unknown spaces and cache operators, and "nc" for shared memory, are errors."""
    bench = Bench(1)
    new = bench.b.var
    with pytest.raises(VerifyError, match="memory space"):
        load(bench.b, "local", new(u64), f32)
    with pytest.raises(VerifyError, match="cache operator"):
        load(bench.b, "shared", new(u32), f32, cache="nc")
