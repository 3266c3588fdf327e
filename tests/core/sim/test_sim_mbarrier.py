"""mbarriers: phases order threads, and every misuse is found with its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, codes, found
from kdsl_core import sim
from kdsl_core.ir import Operand
from kdsl_core.isa import mbarrier, register
from kdsl_core.isa.async_copy import cp_async
from kdsl_core.isa.barrier import barrier_sync, sync_warp

THREADS = 64
Values = np.ndarray[Any, Any]


def words(count: int) -> Values:
    """Zeros."""
    return np.zeros(count, np.uint32)


def make(a: Author, count: int, name: str = "bar", *, fence: bool = True) -> Operand:
    """An mbarrier that thread 0 initialises."""
    bar = a.shared(name, 8)

    def init() -> None:
        mbarrier.init(a.b, bar, a.const(count))
        if fence:
            mbarrier.fence_init(a.b)

    a.when(a.test("eq", a.tid, 0), init)
    return bar


def exchange(*, sync: bool = True, arrive: bool = True, wait: bool = True) -> Author:
    """Warp 0 writes words and arrives; warp 1 waits and reads them."""
    a = Author(THREADS, z="u32")
    s = a.shared("s", 128)
    bar = make(a, 32)
    if sync:
        barrier_sync(a.b)
    lane = a.do("and", a.tid, 31)

    def produce() -> None:
        a.put("shared", a.word(s, lane), a.do("add", lane, 7))
        if arrive:
            mbarrier.arrive(a.b, bar)

    def consume() -> None:
        if wait:
            mbarrier.wait(a.b, bar, a.const(0))
        a.put("global", a.address("z", lane, 4), a.get("shared", a.word(s, lane)))

    a.when(a.test("lt", a.tid, 32), produce, consume)
    return a


@pytest.mark.parametrize("options", [{}, *({"order": "shuffle", "seed": i} for i in range(4))])
def test_a_phase_orders_who_arrives_before_who_waits(options: dict[str, Any]) -> None:
    """What a thread did before it arrived is there for those who waited, in any order."""
    z = words(32)
    assert found(exchange().run(z=z), **options) == []
    np.testing.assert_array_equal(z, np.arange(32) + 7)


@pytest.mark.parametrize("left_out", ["arrive", "wait"])
def test_without_arrival_or_wait(left_out: str) -> None:
    """Without a wait there is a race; without an arrival the waiting warp never goes on."""
    want = {"arrive": ["deadlock"], "wait": ["race"]}[left_out]
    assert found(exchange(**{left_out: False}).run(z=words(32))) == want


def test_use_before_the_initialisation_is_known() -> None:
    """Between the initialisation and the first use there must be a barrier."""
    assert "barrier" in found(exchange(sync=False).run(z=words(32)))


@pytest.mark.parametrize(("synced", "want"), [(False, ["barrier"]), (True, [])])
def test_lanes_of_one_warp_use_what_one_of_them_initialised(synced: bool, want: list[str]) -> None:
    """They are no more in step than warps are: a synchronisation must lie between."""
    a = Author(32)
    bar = make(a, 32)
    if synced:
        sync_warp(a.b)
    mbarrier.arrive(a.b, bar)
    mbarrier.wait(a.b, bar, a.const(0))
    assert sorted(set(found(a.run()))) == want


def test_use_without_initialisation() -> None:
    """Bytes that nobody made an mbarrier are none."""
    a = Author(32)
    mbarrier.arrive(a.b, a.shared("bar", 8))
    assert found(a.run()) == ["barrier"]


def message(a: Author, **arrays: Values) -> str:
    """The text of the only hazard."""
    (hazard,) = a.run(**arrays)(on_hazard="collect").hazards
    return str(hazard)


def test_arriving_beyond_the_count() -> None:
    """More arrivals than a phase has pending are an error that names both numbers."""
    a = Author(32)
    bar = make(a, 31)
    sync_warp(a.b)
    mbarrier.arrive(a.b, bar)
    text = message(a)
    assert "32 arrivals here, 31 pending of 31 in phase 0" in text
    assert "mbarrier bar" in text


@pytest.mark.parametrize("between", [False, True])
def test_initialising_twice(between: bool) -> None:
    """An mbarrier in use must be invalidated before it is made again."""
    a = Author(32)
    bar = make(a, 32)
    sync_warp(a.b)

    def again() -> None:
        if between:
            mbarrier.invalidate(a.b, bar)
        mbarrier.init(a.b, bar, a.const(32))

    a.when(a.test("eq", a.tid, 0), again)
    assert found(a.run()) == ([] if between else ["barrier"])


@pytest.mark.parametrize("kind", ["load", "store"])
def test_ordinary_accesses_to_a_live_barrier(kind: str) -> None:
    """The eight bytes of an mbarrier are no data."""
    a = Author(32)
    bar = make(a, 32)
    sync_warp(a.b)

    def touch() -> None:
        if kind == "load":
            a.get("shared", bar)
        else:
            a.put("shared", bar, a.const(1))

    a.when(a.test("eq", a.tid, 0), touch)
    assert "barrier" in found(a.run())


@pytest.mark.parametrize("what", ["parity", "count", "bytes"])
def test_numbers_out_of_range(what: str) -> None:
    """Parities are 0 and 1, counts at least 1, and a phase counts fewer than 2²⁰ bytes."""
    a = Author(32)
    given = a.scalar("given")
    bar = a.shared("bar", 8)
    count = given if what == "count" else a.const(32)
    a.when(a.test("eq", a.tid, 0), lambda: mbarrier.init(a.b, bar, count))
    sync_warp(a.b)
    if what == "parity":
        mbarrier.test_wait(a.b, bar, given)
    elif what == "bytes":
        mbarrier.expect(a.b, bar, given)
    value = {"parity": 2, "count": 0, "bytes": 1 << 20}[what]
    assert found(a.run(1, {"given": value})) == ["barrier"]


def test_deadlock_shows_phase_arrivals_and_bytes() -> None:
    """The report names the barrier, its phase, and what is missing."""
    a = Author(THREADS)
    ring = a.shared("full", 32)
    second = a.do("add", ring, 8)

    def init() -> None:
        mbarrier.init(a.b, second, a.const(3))
        mbarrier.arrive(a.b, second, expect_bytes=a.const(4096))

    a.when(a.test("eq", a.tid, 0), init)
    barrier_sync(a.b)
    mbarrier.wait(a.b, second, a.const(0))
    text = message(a)
    assert "deadlock" in text
    assert "mbarrier full[1] (phase 0: 2 of 3 arrivals pending, 4096 bytes missing)" in text


def ring(stages: int = 2, steps: int = 7, *, first_parity: int = 1, release: bool = True) -> Author:
    """Warp 0 fills a ring of words, warp 1 sums them."""
    a = Author(THREADS, z="u32")
    s = a.shared("s", stages * 128)
    bars = {name: a.shared(name, stages * 8) for name in ("full", "empty")}

    def init() -> None:
        for bar in bars.values():
            for stage in range(stages):
                mbarrier.init(a.b, bar, a.const(32), stage * 8)

    a.when(a.test("eq", a.tid, 0), init)
    barrier_sync(a.b)
    lane = a.do("and", a.tid, 31)

    def place(i: Operand) -> tuple[Operand, Operand, Operand]:
        stage = a.do("rem", i, stages)
        parity = a.do("and", a.do("div", i, stages), 1)
        word = a.word(s, a.do("add", a.do("mul", stage, 32), lane))
        return word, a.do("mul", stage, 8), parity

    def fill(i: Operand) -> None:
        word, at, parity = place(i)
        mbarrier.wait(a.b, a.do("add", bars["empty"], at), a.do("xor", parity, first_parity))
        a.put("shared", word, i)
        mbarrier.arrive(a.b, a.do("add", bars["full"], at))

    def add_up() -> None:
        total = register.declare(a.b, a.tid.dtype, a.const(0))

        def add(i: Operand) -> None:
            word, at, parity = place(i)
            mbarrier.wait(a.b, a.do("add", bars["full"], at), parity)
            register.assign(a.b, total, a.do("add", total, a.get("shared", word)))
            if release:
                mbarrier.arrive(a.b, a.do("add", bars["empty"], at))

        a.loop(steps, add)
        a.put("global", a.address("z", lane, 4), total)

    a.when(a.test("lt", a.tid, 32), lambda: a.loop(steps, fill), add_up)
    return a


@pytest.mark.parametrize("options", [{}, *({"order": "shuffle", "seed": i} for i in range(3))])
def test_ring(options: dict[str, Any]) -> None:
    """A producer and a consumer pass stages to and fro without a hazard."""
    z = words(32)
    assert found(ring().run(z=z), **options) == []
    assert (z == sum(range(7))).all()


@pytest.mark.parametrize("change", [{"first_parity": 0}, {"release": False}])
def test_broken_rings_stop(change: dict[str, Any]) -> None:
    """A wrong first parity and a stage that nobody gives back are deadlocks."""
    assert found(ring(**change).run(z=words(32))) == ["deadlock"]


@pytest.mark.parametrize(("waits", "want"), [(True, []), (False, ["inflight"])])
def test_copies_that_arrive(waits: bool, want: list[str]) -> None:
    """`cp.async` may complete at an mbarrier; who waited for it may read."""
    a = Author(THREADS, x="u32", z="u32")
    s = a.shared("s", THREADS * 16)
    bar = make(a, THREADS)
    barrier_sync(a.b)
    offset = a.do("mul", a.tid, 16)
    cp_async(a.b, a.do("add", s, offset), a.address("x", a.tid, 16), 16)
    mbarrier.async_copy_arrive(a.b, bar)
    if waits:
        mbarrier.wait(a.b, bar, a.const(0))
    got = a.get("shared", a.do("add", s, a.do("xor", offset, 512)))
    a.put("global", a.address("z", a.tid, 4), got)
    x, z = np.arange(THREADS * 4, dtype=np.uint32), words(THREADS)
    result: sim.Result = a.run(x=x, z=z)(on_hazard="collect")
    assert codes(result)[: len(want) or None] == want
    np.testing.assert_array_equal(z, x.reshape(-1, 4)[np.arange(THREADS) ^ 32, 0])


@pytest.mark.parametrize("kind", ["writes", "reads"])
@pytest.mark.parametrize(("synced", "want"), [(True, []), (False, ["race"])])
def test_one_lane_arrives_for_its_warp(kind: str, synced: bool, want: list[str]) -> None:
    """Other lanes' accesses are released only when the warp synchronises first."""
    a = Author(THREADS, z="u32")
    s = a.shared("s", 128)
    bar = make(a, 1)
    lane = a.do("and", a.tid, 31)
    a.when(a.test("lt", a.tid, 32), lambda: a.put("shared", a.word(s, lane), lane))
    barrier_sync(a.b)

    def produce() -> None:
        if kind == "writes":
            a.put("shared", a.word(s, lane), a.do("add", lane, 7))
        else:
            a.get("shared", a.word(s, lane))
        if synced:
            sync_warp(a.b)
        a.when(a.test("eq", lane, 0), lambda: mbarrier.arrive(a.b, bar))

    def consume() -> None:
        mbarrier.wait(a.b, bar, a.const(0))
        a.put("shared", a.word(s, lane), a.do("add", lane, 9))

    a.when(a.test("lt", a.tid, 32), produce, consume)
    assert found(a.run(z=words(32))) == want


def test_a_lane_releases_what_it_did_itself() -> None:
    """A lane that arrives alone needs no synchronisation for its own accesses."""
    a = Author(THREADS)
    s = a.shared("s", 128)
    bar = make(a, 1)
    barrier_sync(a.b)
    lane = a.do("and", a.tid, 31)
    a.when(a.test("lt", a.tid, 32), lambda: a.put("shared", a.word(s, lane), lane))
    a.when(a.test("eq", a.tid, 3), lambda: mbarrier.arrive(a.b, bar))

    def consume() -> None:
        mbarrier.wait(a.b, bar, a.const(0))
        a.get("shared", a.do("add", s, 12))

    a.when(a.test("ge", a.tid, 32), consume)
    assert found(a.run()) == []


@pytest.mark.parametrize("kind", ["reads", "writes"])
@pytest.mark.parametrize(("relaxed", "want"), [(False, []), (True, ["race"])])
def test_relaxed_arrivals_order_no_accesses(kind: str, relaxed: bool, want: list[str]) -> None:
    """An ordinary load may still be on its way when the thread has arrived without a release."""
    a = Author(THREADS)
    s = a.shared("s", 128)
    bar = make(a, 32)
    lane = a.do("and", a.tid, 31)
    a.when(a.test("lt", a.tid, 32), lambda: a.put("shared", a.word(s, lane), lane))
    barrier_sync(a.b)

    def touch() -> None:
        if kind == "reads":
            a.get("shared", a.word(s, lane))
        else:
            a.put("shared", a.word(s, lane), a.const(3))
        mbarrier.arrive(a.b, bar, relaxed=relaxed)

    def overwrite() -> None:
        mbarrier.wait(a.b, bar, a.const(0))
        a.put("shared", a.word(s, lane), a.const(4))

    a.when(a.test("lt", a.tid, 32), touch, overwrite)
    assert found(a.run()) == want


def test_lanes_meet_again_after_one_has_waited() -> None:
    """A warp waits for its lane that waits at an mbarrier, before an instruction of all lanes."""
    a = Author(THREADS)
    bar = make(a, 1)
    barrier_sync(a.b)
    a.when(a.test("eq", a.tid, 0), lambda: mbarrier.wait(a.b, bar, a.const(0)))
    a.when(a.test("eq", a.tid, 40), lambda: mbarrier.arrive(a.b, bar))
    barrier_sync(a.b)
    for options in ({}, *({"order": "shuffle", "seed": seed} for seed in range(4))):
        assert found(a.run(), **options) == []
