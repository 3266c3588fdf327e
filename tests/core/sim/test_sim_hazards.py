"""Hazards are found with both lines, and kernels without hazards raise none."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, codes, found
from kdsl_core.dtypes import boolean, u8, u16, u32, u64
from kdsl_core.errors import HazardError
from kdsl_core.ir import Const
from kdsl_core.isa import atomic, control, convert, memory, register
from kdsl_core.isa.barrier import barrier_arrive, barrier_sync, fence, sync_warp
from kdsl_core.isa.matrix_copy import ldmatrix


def numbers(n: int) -> np.ndarray[Any, Any]:
    """Words 0, 1, …"""
    return np.arange(n, dtype=np.uint32)


def reversed_through_shared(order: str) -> Author:
    """Thread t gives its word to thread 63 − t; `order` is what stands between write and read."""
    a = Author(64, z="u32")
    s = a.shared("s", 256)
    a.put("shared", a.word(s, a.tid), a.tid)
    if order == "barrier":
        barrier_sync(a.b)
    elif order == "warp":
        sync_warp(a.b)
    got = a.get("shared", a.word(s, a.do("sub", a.const(63), a.tid)))
    a.put("global", a.address("z", a.tid, 4), got)
    return a


@pytest.mark.parametrize(
    ("order", "want"), [("barrier", []), ("warp", ["race"]), ("nothing", ["race"])]
)
def test_race_between_warps(order: str, want: list[str]) -> None:
    """Only a barrier orders two warps, in whatever order they ran."""
    a = reversed_through_shared(order)
    for options in ({}, {"order": "shuffle", "seed": 5}):
        assert found(a.run(z=np.zeros(64, np.uint32)), **options) == want


@pytest.mark.parametrize(("synced", "want"), [(True, []), (False, ["race"])])
def test_race_between_lanes(synced: bool, want: list[str]) -> None:
    """Lanes of a warp need sync_warp between a write and another lane's read."""
    a = Author(32, z="u32")
    s = a.shared("s", 128)
    a.put("shared", a.word(s, a.tid), a.tid)
    if synced:
        sync_warp(a.b)
    got = a.get("shared", a.word(s, a.do("xor", a.tid, 1)))
    a.put("global", a.address("z", a.tid, 4), got)
    assert found(a.run(z=np.zeros(32, np.uint32))) == want


@pytest.mark.parametrize(("barriers", "want"), [(2, []), (1, ["race"])])
def test_write_after_read(barriers: int, want: list[str]) -> None:
    """A loop that refills shared memory needs a barrier after its readers as well."""
    a = Author(64, z="u32")
    s = a.shared("s", 256)
    total = register.declare(a.b, u32, Const(u32, 0))

    def body(i: Any) -> None:
        a.put("shared", a.word(s, a.tid), i)
        barrier_sync(a.b)
        got = a.get("shared", a.word(s, a.do("xor", a.tid, 32)))
        register.assign(a.b, total, a.do("add", total, got))
        if barriers == 2:
            barrier_sync(a.b)

    a.loop(3, body)
    a.put("global", a.address("z", a.tid, 4), total)
    assert found(a.run(z=np.zeros(64, np.uint32))) == want


def test_readers_do_not_race() -> None:
    """Everybody may read one word; the thread that wrote it may write it again after a barrier."""
    a = Author(64, z="u32")
    s = a.shared("s", 16)
    first = a.test("eq", a.tid, 0)
    for value in (1, 2):
        a.when(first, lambda value=value: a.put("shared", s, a.const(value)))
        barrier_sync(a.b)
        got = a.get("shared", s)
        barrier_sync(a.b)
    a.put("global", a.address("z", a.tid, 4), got)
    z = np.zeros(64, np.uint32)
    assert found(a.run(z=z)) == []
    assert (z == 2).all()


@pytest.mark.parametrize(("value", "want"), [("same", []), ("own", ["race"])])
def test_lanes_that_write_one_word_at_once(value: str, want: list[str]) -> None:
    """Lanes of one instruction may write one word when all write the same value."""
    a = Author(32)
    s = a.shared("s", 16)
    a.put("shared", s, a.const(7) if value == "same" else a.tid)
    assert found(a.run()) == want


def test_neighbouring_bytes_are_no_race() -> None:
    """The shadow tells single bytes apart once somebody accesses single bytes."""
    a = Author(64)
    s = a.shared("s", 64)
    memory.store(a.b, "shared", a.do("add", s, a.tid), (a.const(1, u8),))
    assert found(a.run()) == []


@pytest.mark.parametrize(
    ("how", "want"), [("plain", ["race"]), ("atomic", []), ("own", []), ("fenced", [])]
)
def test_race_between_blocks(how: str, want: list[str]) -> None:
    """Blocks of one launch are ordered by fences with atomics only."""
    a = Author(32, x="u32", flag="u32", z="u32")
    mine = a.do("add", a.do("mul", a.block, 32), a.tid)
    if how == "atomic":
        atomic.reduce(a.b, "global", a.address("x", a.tid, 4), "add", Const(u32, 1))
    else:
        a.put("global", a.address("x", a.tid if how == "plain" else mine, 4), a.tid)
    if how == "fenced":
        fence(a.b, "gpu")
        ticket = atomic.atomic(a.b, "global", a.pointers["flag"], "add", Const(u32, 1))

        def last() -> None:
            fence(a.b, "gpu")
            a.put("global", a.address("z", a.tid, 4), a.get("global", a.address("x", a.tid, 4)))

        a.when(a.test("eq", ticket, 2 * 32 - 1), last)
    run = a.run(
        2, x=np.zeros(64, np.uint32), flag=np.zeros(1, np.uint32), z=np.zeros(64, np.uint32)
    )
    assert found(run) == want


def test_global_race_within_a_block() -> None:
    """A global word written by one warp and read by another needs a barrier, as shared ones do."""
    for synced in (True, False):
        a = Author(64, x="u32", z="u32")
        a.put("global", a.address("x", a.tid, 4), a.tid)
        if synced:
            barrier_sync(a.b)
        got = a.get("global", a.address("x", a.do("xor", a.tid, 63), 4))
        a.put("global", a.address("z", a.tid, 4), got)
        run = a.run(x=np.zeros(64, np.uint32), z=np.zeros(64, np.uint32))
        assert found(run) == ([] if synced else ["race"])


def test_race_names_both_parties() -> None:
    """The error shows the line that completed the race, the other line, threads and the tensor."""
    a = Author(64, z="u32")
    s = a.shared("tile", 256)
    write = inspect.currentframe().f_lineno + 1
    memory.store(a.b, "shared", a.word(s, a.tid), (a.tid,))
    read = inspect.currentframe().f_lineno + 1
    memory.load(a.b, "shared", a.word(s, a.do("sub", a.const(63), a.tid)), u32)
    with pytest.raises(HazardError) as caught:
        a.run(3, z=np.zeros(64, np.uint32))()
    hazard = caught.value.hazard
    assert [line for _, line in hazard.lines] == [read, write]
    assert (hazard.code, hazard.thread, hazard.block) == ("race", (0, 0, 0), (0, 0, 0))
    text = str(caught.value)
    for part in (
        "K501",
        "byte 252 of shared tile",
        "thread (63, 0, 0) in warp 1 of the same block",
        "fix:",
    ):
        assert part in text


@pytest.mark.parametrize("write", [False, True])
def test_out_of_bounds(write: bool) -> None:
    """An access behind a tensor names the tensor and how far behind; nothing is touched."""
    a = Author(32, x="u32", z="u32")
    address = a.address("x", a.tid, 4)
    if write:
        a.put("global", address, a.tid)
    else:
        a.put("global", a.address("z", a.tid, 4), a.get("global", address))
    x, z = numbers(30), numbers(32)
    result = a.run(x=x, z=z)(on_hazard="collect")
    (hazard,) = result.hazards
    assert (hazard.code, hazard.thread) == ("oob", (30, 0, 0))
    assert "4 bytes at x[30], 0 bytes behind x(30)" in hazard.message
    np.testing.assert_array_equal(x, numbers(30))
    np.testing.assert_array_equal(z[:30], numbers(30))


def test_shared_out_of_bounds() -> None:
    """An address outside the block's shared memory is found, also address 0."""
    for offset in (64, -0x400):
        a = Author(32)
        s = a.shared("s", 64)
        a.put("shared", a.do("add", s, a.const(offset)), a.tid)
        assert found(a.run()) == ["oob"]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_misaligned(space: str) -> None:
    """A vector access must be aligned to its size."""
    a = Author(1, x="u32")
    if space == "global":
        base = a.do("add", a.pointers["x"], Const(u64, 4))
    else:
        base = a.do("add", a.shared("s", 32), 4)
    memory.store(a.b, space, base, (a.tid, a.tid))
    result = a.run(x=numbers(8))(on_hazard="collect")
    assert codes(result) == ["misaligned"]
    assert "8 does not divide" in result.hazards[0].message


def test_uninitialised_shared_memory() -> None:
    """Bytes that no thread wrote are found when they are read."""
    a = Author(32)
    s = a.shared("s", 128)
    a.when(a.test("lt", a.tid, 31), lambda: a.put("shared", a.word(s, a.tid), a.tid))
    sync_warp(a.b)
    a.get("shared", a.word(s, a.tid))
    result = a.run()(on_hazard="collect")
    assert codes(result) == ["uninit"]
    assert result.hazards[0].thread == (31, 0, 0)
    assert "byte 124 of shared s" in result.hazards[0].message


def test_uninitialised_register() -> None:
    """A register variable that only some lanes wrote is found when the others read it."""
    a = Author(32, z="u32")
    v = register.declare(a.b, u32, hint="acc")
    a.when(a.test("lt", a.tid, 20), lambda: register.assign(a.b, v, a.tid))
    a.put("global", a.address("z", a.tid, 4), v)
    result = a.run(z=np.zeros(32, np.uint32))(on_hazard="collect")
    assert codes(result) == ["uninit"]
    assert result.hazards[0].thread == (20, 0, 0)
    assert "acc" in result.hazards[0].message


def test_deadlock_shows_who_waits_for_what() -> None:
    """A barrier that expects more warps than come: the report counts who arrived."""
    a = Author(96)
    wait = a.test("lt", a.tid, 64)
    a.when(wait, lambda: barrier_sync(a.b, 3, 96))
    with pytest.raises(HazardError) as caught:
        a.run(2)()
    assert caught.value.code == "K506"
    text = str(caught.value)
    assert "barrier 3 misses 1 warp, and no other warp gets there" in text
    assert "warps 0, 1 wait" in text
    assert "barrier 3 (2 of 3 warps arrived); could still arrive: nobody" in text
    assert "warp 2 ended" in text


def test_barrier_in_divergent_code() -> None:
    """A block barrier that only some lanes of a warp reach is found, and the run goes on."""
    a = Author(64, z="u32")
    a.when(a.test("lt", a.tid, 10), lambda: barrier_sync(a.b))
    assert "barrier" in found(a.run(z=np.zeros(1, np.uint32)))


def test_barrier_after_some_threads_ended() -> None:
    """A barrier of the whole block needs threads that have returned."""
    a = Author(64)
    a.when(a.test("ge", a.tid, 32), lambda: a.b.append(control.ReturnOp()))
    barrier_sync(a.b)
    assert found(a.run()) == ["barrier"]


def test_barrier_counts_that_disagree() -> None:
    """Warps that expect different numbers of threads at one barrier are found."""
    a = Author(64)
    a.when(
        a.test("lt", a.tid, 32), lambda: barrier_sync(a.b, 1, 64), lambda: barrier_sync(a.b, 1, 32)
    )
    assert "barrier" in found(a.run())


def test_arriving_twice() -> None:
    """A warp that arrives at a barrier again before it completed is found."""
    a = Author(64)

    def twice() -> None:
        barrier_arrive(a.b, 1, 64)
        barrier_arrive(a.b, 1, 64)

    a.when(a.test("lt", a.tid, 32), twice, lambda: barrier_sync(a.b, 1, 64))
    assert "barrier" in found(a.run())


@pytest.mark.parametrize(("other", "want"), [(2, []), (1, ["barrier"])])
def test_two_pairs_of_warps_at_barriers(other: int, want: list[str]) -> None:
    """Two pairs that sync by themselves must not take one barrier: their phases could mix."""
    a = Author(128)
    low = a.test("lt", a.tid, 64)
    a.when(low, lambda: barrier_sync(a.b, 1, 64), lambda: barrier_sync(a.b, other, 64))
    assert found(a.run()) == want


@pytest.mark.parametrize("met", [False, True])
def test_a_barrier_that_is_handed_on(met: bool) -> None:
    """Another pair may take a barrier when it knows that the first pair is done with it."""
    a = Author(128)
    low = a.test("lt", a.tid, 64)
    a.when(low, lambda: barrier_sync(a.b, 1, 64))
    if met:
        barrier_sync(a.b)
    a.when(low, lambda: None, lambda: barrier_sync(a.b, 1, 64))
    assert found(a.run()) == ([] if met else ["barrier"])


def test_sync_warp_waits_for_lanes_elsewhere() -> None:
    """Lanes meet at different sync_warps of one warp; memory before them is ordered."""
    a = Author(32, z="u32")
    s = a.shared("s", 128)
    low = a.test("lt", a.tid, 16)

    def side() -> None:
        a.put("shared", a.word(s, a.tid), a.do("mul", a.tid, 2))
        sync_warp(a.b)
        got = a.get("shared", a.word(s, a.do("xor", a.tid, 16)))
        a.put("global", a.address("z", a.tid, 4), got)

    a.when(low, side, side)
    z = np.zeros(32, np.uint32)
    assert found(a.run(z=z)) == []
    np.testing.assert_array_equal(z, (numbers(32) ^ 16) * 2)


def test_sync_warp_that_one_lane_never_reaches() -> None:
    """Lanes that wait for a lane that has ended are found."""
    a = Author(32)
    a.when(a.test("eq", a.tid, 3), lambda: a.b.append(control.ReturnOp()))
    sync_warp(a.b)
    assert found(a.run()) == ["barrier"]


def test_assertion() -> None:
    """A failed assertion of the kernel is a hazard of the first lane that fails."""
    a = Author(64)
    control.assert_that(a.b, a.test("lt", a.tid, 40), "small thread")
    result = a.run()(on_hazard="collect")
    assert codes(result) == ["value"]
    assert result.hazards[0].thread == (40, 0, 0)
    assert "small thread" in result.hazards[0].message


def test_only_asked_checks_report() -> None:
    """`checks` names the hazards looked for."""
    a = reversed_through_shared("nothing")
    z = np.zeros(64, np.uint32)
    assert found(a.run(z=z), checks={"uninit"}) == []
    assert found(a.run(z=z), checks=()) == []
    assert found(a.run(z=z), checks="race") == ["race"]


def test_same_hazards_every_time() -> None:
    """Two runs report the same hazards in the same order."""
    a = reversed_through_shared("nothing")
    runs = [a.run(4, z=np.zeros(64, np.uint32))(on_hazard="collect").hazards for _ in range(2)]
    assert runs[0] == runs[1]


def test_producers_and_consumers_with_named_barriers() -> None:
    """One warp fills a slot while another reads: they meet at two named barriers, without races."""
    for forgotten in (None, "full", "empty"):
        a = Author(64, z="u32")
        s = a.shared("slot", 128)
        lane = a.do("and", a.tid, 31)
        total = register.declare(a.b, u32, Const(u32, 0))

        def produce(a: Author = a, s: Any = s, lane: Any = lane, skip: Any = forgotten) -> None:
            def body(i: Any) -> None:
                if skip != "empty":
                    barrier_sync(a.b, 2, 64)
                a.put("shared", a.word(s, lane), a.do("add", lane, i))
                barrier_arrive(a.b, 1, 64)

            a.loop(6, body)

        def consume(
            a: Author = a, s: Any = s, lane: Any = lane, total: Any = total, skip: Any = forgotten
        ) -> None:
            if skip != "empty":
                barrier_arrive(a.b, 2, 64)

            def body(i: Any) -> None:
                barrier_sync(a.b, 1, 64)
                got = a.get("shared", a.word(s, a.do("sub", a.const(31), lane)))
                register.assign(a.b, total, a.do("add", total, got))
                if skip != "empty":
                    more = a.test("lt", i, 5)
                    a.when(more, lambda: barrier_arrive(a.b, 2, 64))

            if skip == "full":
                a.get("shared", a.word(s, lane))
            a.loop(6, body)
            a.put("global", a.address("z", lane, 4), total)

        a.when(a.test("lt", a.tid, 32), produce, consume)
        z = np.zeros(32, np.uint32)
        hazards = found(a.run(z=z))
        if forgotten is None:
            assert hazards == []
            np.testing.assert_array_equal(z, 6 * (31 - numbers(32)) + 15)
        else:
            assert set(hazards) & {"race", "barrier", "uninit"}


def test_spinning_warp_lets_others_run() -> None:
    """A warp that spins on shared memory by atomics does not starve the warp it waits for."""
    a = Author(64, z="u32")
    s = a.shared("flag", 16)
    a.when(a.test("eq", a.tid, 0), lambda: a.put("shared", s, a.const(0)))
    barrier_sync(a.b)

    def spin() -> None:
        loop = control.LoopOp(condition=Const(boolean, True))
        with a.b.inside(loop.body):
            now = atomic.atomic(a.b, "shared", s, "add", Const(u32, 0))
            a.when(a.test("ne", now, 0), lambda: a.b.append(control.BreakOp()))
        a.b.append(loop)

    def post() -> None:
        atomic.reduce(a.b, "shared", s, "add", Const(u32, 1))

    a.when(a.test("lt", a.tid, 32), spin, post)
    a.put("global", a.address("z", a.tid, 4), a.tid)
    z = np.zeros(64, np.uint32)
    assert found(a.run(z=z)) == []
    np.testing.assert_array_equal(z, numbers(64))


@pytest.mark.parametrize("reader", [0, 1])
def test_block_reads_what_another_writes(reader: int) -> None:
    """A read and a write of different blocks race, whichever block comes first."""
    a = Author(32, x="u32")

    def read() -> None:
        a.get("global", a.address("x", a.tid, 4))

    def write() -> None:
        a.put("global", a.address("x", a.tid, 4), a.tid)

    a.when(a.test("eq", a.block, reader), read, write)
    result = a.run(2, x=numbers(32))(on_hazard="collect")
    assert codes(result) == ["race"]
    assert "of block (" in result.hazards[0].other_did


def test_writing_to_a_read_only_array() -> None:
    """An array that NumPy protects stays as it is."""
    for write in ("store", "atomic"):
        a = Author(32, x="u32")
        if write == "store":
            a.put("global", a.address("x", a.tid, 4), a.const(5))
        else:
            atomic.reduce(a.b, "global", a.pointers["x"], "add", Const(u32, 1))
        x = numbers(32)
        x.flags.writeable = False
        result = a.run(x=x)(on_hazard="collect")
        assert codes(result) == ["oob"]
        assert "read-only" in result.hazards[0].message
        np.testing.assert_array_equal(x, numbers(32))


def test_more_warps_than_a_barrier_counts() -> None:
    """Three warps at a barrier of two are found: which two would meet is not decided."""
    a = Author(96)
    barrier_sync(a.b, 1, 64)
    assert "barrier" in found(a.run())


def test_filling_in_a_packed_register_is_no_read() -> None:
    """Narrow elements may be put one by one into a register that nobody wrote before."""
    a = Author(32, z="u32")
    v = register.declare(a.b, u32)
    low = convert.convert(a.b, a.tid, u16)
    for index in range(2):
        register.assign(a.b, v, convert.insert(a.b, v, low, index))
    a.put("global", a.address("z", a.tid, 4), v)
    z = np.zeros(32, np.uint32)
    assert found(a.run(z=z)) == []
    np.testing.assert_array_equal(z, numbers(32) * 0x10001)


@pytest.mark.parametrize(("threads", "guard"), [(32, 16), (16, 16)])
def test_matrix_load_in_part_of_a_warp(threads: int, guard: int) -> None:
    """An instruction of the whole warp needs all its lanes."""
    a = Author(threads)
    s = a.shared("s", 128)
    for first in range(0, 32, threads):
        a.put("shared", a.word(s, a.do("add", a.tid, first)), a.tid)
    sync_warp(a.b)
    row = a.do("add", s, a.do("mul", a.do("and", a.tid, 7), 16))
    dst = register.declare(a.b, u32)
    a.when(a.test("lt", a.tid, guard), lambda: ldmatrix(a.b, row, (dst,)))
    assert "barrier" in found(a.run())


def test_print_shows_each_lane(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per active lane, with its place."""
    a = Author(64)
    a.when(a.test("ge", a.tid, 62), lambda: control.print_line(a.b, "t={}", (a.tid,)))
    a.run()()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "block (0, 0, 0) thread (62, 0, 0): t=62",
        "block (0, 0, 0) thread (63, 0, 0): t=63",
    ]
