"""Bulk copies: what must be waited for before memory is touched again, and before a block ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, codes, found
from kdsl_core import sim
from kdsl_core.dtypes import u32
from kdsl_core.ir import Operand
from kdsl_core.isa import bulk, mbarrier, tma
from kdsl_core.isa.barrier import barrier_sync, fence_proxy

THREADS = 64
BYTES = THREADS * 4
Values = np.ndarray[Any, Any]


def words(count: int = THREADS) -> Values:
    """Words that differ from zero."""
    return np.arange(1, count + 1, dtype=np.uint32)


def first(a: Author, body: Any) -> None:
    """Thread 0 alone."""
    a.when(a.test("eq", a.tid, 0), body)


def ring(*, steps: int = 5, stages: int = 2, release: bool = True, expect: int = BYTES) -> Author:
    """Thread 0 of warp 0 loads rows by bulk copies, warp 1 sums them."""
    a = Author(THREADS, x="u32", z="u32")
    tile = a.shared("tile", stages * BYTES)
    full, empty = a.shared("full", stages * 8), a.shared("empty", stages * 8)

    def init() -> None:
        for stage in range(stages):
            mbarrier.init(a.b, full, a.const(1), stage * 8)
            mbarrier.init(a.b, empty, a.const(32), stage * 8)
        mbarrier.fence_init(a.b)

    first(a, init)
    barrier_sync(a.b)

    def place(i: Operand) -> tuple[Operand, Operand, Operand]:
        stage = a.do("rem", i, stages)
        return stage, a.do("mul", stage, 8), a.do("and", a.do("div", i, stages), 1)

    def load(i: Operand) -> None:
        stage, at, parity = place(i)
        if release:
            mbarrier.wait(a.b, a.do("add", empty, at), a.do("xor", parity, 1))
        bar = a.do("add", full, at)
        mbarrier.arrive(a.b, bar, expect_bytes=a.const(expect))
        source = a.address("x", a.do("mul", i, THREADS), 4)
        to = a.do("add", tile, a.do("mul", stage, BYTES))
        bulk.bulk_load(a.b, to, source, a.const(BYTES), bar)

    def add(i: Operand) -> None:
        stage, at, parity = place(i)
        mbarrier.wait(a.b, a.do("add", full, at), parity)
        index = a.do("add", a.do("mul", stage, THREADS), a.do("sub", a.tid, 32))
        got = a.get("shared", a.word(tile, index))
        spot = a.address("z", a.do("add", a.do("mul", i, 32), a.do("sub", a.tid, 32)), 4)
        a.put("global", spot, got)
        mbarrier.arrive(a.b, a.do("add", empty, at))

    a.when(
        a.test("lt", a.tid, 32),
        lambda: first(a, lambda: a.loop(steps, load)),
        lambda: a.loop(steps, add),
    )
    return a


def run_ring(a: Author, **options: Any) -> tuple[sim.Result, Values]:
    """The result and what was stored."""
    z = np.zeros(5 * 32, np.uint32)
    return a.run(x=words(5 * THREADS), z=z)(on_hazard="collect", **options), z


@pytest.mark.parametrize("options", [{}, *({"order": "shuffle", "seed": i} for i in range(5))])
def test_ring(options: dict[str, Any]) -> None:
    """A ring of bulk loads gives every row, in any order of warps and completions."""
    result, z = run_ring(ring(), **options)
    assert codes(result) == []
    np.testing.assert_array_equal(z.reshape(5, 32), words(5 * THREADS).reshape(5, -1)[:, :32])


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"release": False}, "inflight"),
        ({"expect": BYTES + 16}, "deadlock"),
        ({"expect": BYTES - 16}, "deadlock"),
    ],
)
def test_broken_rings(change: dict[str, Any], want: str) -> None:
    """A stage refilled too early, and too many or too few bytes expected."""
    assert want in codes(run_ring(ring(**change))[0])


def store(
    *,
    fence: str | None = "shared::cta",
    commit: bool = True,
    wait: str = "read",
    rewrite: bool = False,
    reread: bool = False,
) -> Author:
    """All threads write words, thread 0 stores them by a bulk copy."""
    a = Author(THREADS, z="u32")
    tile = a.shared("tile", BYTES)
    a.put("shared", a.word(tile, a.tid), a.do("add", a.tid, 1))
    if fence is not None:
        fence_proxy(a.b, fence)
    barrier_sync(a.b)

    def go() -> None:
        bulk.bulk_store(a.b, a.pointers["z"], tile, a.const(BYTES))
        if commit:
            tma.commit(a.b)
        if wait:
            tma.wait(a.b, 0, read=wait == "read")

    first(a, go)
    barrier_sync(a.b)
    if rewrite:
        a.put("shared", a.word(tile, a.tid), a.const(0))
    if reread:
        a.get("global", a.address("z", a.tid, 4))
    return a


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({}, []),
        ({"rewrite": True}, []),
        ({"wait": "all", "reread": True}, []),
        ({"fence": ""}, []),
        ({"fence": None}, ["proxy"]),
        ({"fence": "global"}, ["proxy"]),
        ({"wait": ""}, ["inflight"]),
        ({"commit": False}, ["inflight"]),
        ({"wait": "", "rewrite": True}, ["inflight", "inflight"]),
        ({"reread": True}, ["inflight"]),
    ],
)
def test_store(change: dict[str, Any], want: list[str]) -> None:
    """Shared memory is free after the reads are waited for, global memory is there after all is."""
    z = np.zeros(THREADS, np.uint32)
    assert found(store(**change).run(z=z)) == want
    np.testing.assert_array_equal(z, words())


@pytest.mark.parametrize(("waits", "want"), [(True, []), (False, ["inflight"])])
def test_a_block_that_ends_before_its_loads(waits: bool, want: list[str]) -> None:
    """Somebody must wait for every load before the block's memory goes away."""
    a = Author(32, x="u32")
    tile, bar = a.shared("tile", 128), a.shared("full", 8)

    def go() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)
        mbarrier.arrive(a.b, bar, expect_bytes=a.const(128))
        bulk.bulk_load(a.b, tile, a.pointers["x"], a.const(128), bar)
        if waits:
            mbarrier.wait(a.b, bar, a.const(0))

    first(a, go)
    result = a.run(x=words(32))(on_hazard="collect")
    assert codes(result) == want
    assert all("mbarrier full" in hazard.message for hazard in result.hazards)


@pytest.mark.parametrize(
    ("fence", "want"),
    [("", []), ("global", []), (None, ["proxy"]), ("shared::cta", ["proxy"])],
)
def test_loading_what_the_kernel_wrote(fence: str | None, want: list[str]) -> None:
    """A bulk load of global memory that the block wrote itself needs a proxy fence, too."""
    a = Author(32, z="u32")
    tile, bar = a.shared("tile", 128), a.shared("full", 8)
    a.put("global", a.address("z", a.tid, 4), a.tid)
    if fence is not None:
        fence_proxy(a.b, fence)
    barrier_sync(a.b)

    def go() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)
        mbarrier.arrive(a.b, bar, expect_bytes=a.const(128))
        bulk.bulk_load(a.b, tile, a.pointers["z"], a.const(128), bar)
        mbarrier.wait(a.b, bar, a.const(0))

    first(a, go)
    assert found(a.run(z=np.zeros(32, u32.numpy))) == want


@pytest.mark.parametrize(("waits", "want"), [(True, set()), (False, {"barrier"})])
def test_arriving_behind_the_phase_before(waits: bool, want: set[str]) -> None:
    """Who expects the next bytes knows that those before have come, else they count together."""
    a = Author(32, x="u32")
    tile, bar = a.shared("tile", 2 * BYTES), a.shared("bar", 8)

    def copies() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)
        for turn in range(2):
            mbarrier.arrive(a.b, bar, expect_bytes=a.const(BYTES))
            to, source = a.do("add", tile, turn * BYTES), a.address("x", a.const(turn * THREADS), 4)
            bulk.bulk_load(a.b, to, source, a.const(BYTES), bar)
            if waits or turn:
                mbarrier.wait(a.b, bar, a.const(turn))

    first(a, copies)
    assert set(found(a.run(x=np.zeros(2 * THREADS, np.uint32)))) == want
