"""Shuffles, votes, matches and reductions of a warp."""

from __future__ import annotations

import numpy as np
import pytest

from core.isa.warps import Bench, ptx_of
from kdsl_core.dtypes import DType, bf16, boolean, f32, f64, i32, i64, u32
from kdsl_core.errors import TypeMismatch, VerifyError
from kdsl_core.ir import Const
from kdsl_core.isa.warp import ballot, elect, match, reduce_sync, shuffle, vote

LANES = np.arange(32)


def neighbour(mode: str, lane: int, b: int, width: int) -> int:
    """The lane that is read, by the pseudo code of the PTX ISA's `shfl.sync`."""
    segment, clamp = 32 - width, 0 if mode == "up" else 31
    most = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": least | (b & ~segment)}[mode]
    inside = j >= most if mode == "up" else j <= most
    return j if inside else lane


@pytest.mark.parametrize("width", [32, 16, 4])
@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
def test_shuffles_read_the_lane_of_the_isa(mode: str, width: int) -> None:
    """Each lane reads the lane that the PTX ISA's pseudo code names."""
    for b in (0, 1, 5, 16, 31):
        bench = Bench(1)
        got = shuffle(bench.b, mode, bench.holding(u32, LANES), Const(u32, b), width=width)
        bench.run()
        expected = [neighbour(mode, lane, b, width) for lane in range(32)]
        assert bench.got(got)[0].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "count"), [(f32, 1), (i32, 1), (bf16, 1), (boolean, 1), (f64, 2), (i64, 2)], ids=str
)
def test_every_width_is_shuffled(dtype: DType, count: int) -> None:
    """Any type goes through; 64 bits take two instructions."""
    bench = Bench(2)
    x = bench.random(dtype, 3)
    got = shuffle(bench.b, "xor", x, Const(i32, 1))
    bench.run()
    assert bench.got(got).tobytes() == bench.got(x)[:, LANES ^ 1].tobytes()
    lines = ptx_of(bench.kernel.body)
    assert sum("shfl.sync.bfly.b32" in line for line in lines) == count


def test_reading_a_lane_that_left_is_reported() -> None:
    """The machine is told which lanes are read."""
    bench = Bench(1)
    bench.m.active = LANES[None] < 16
    shuffle(bench.b, "down", bench.holding(u32, LANES), Const(u32, 1))
    assert ("absent lanes",) in bench.run().asked


def test_votes_and_ballots() -> None:
    """All, any and ballot see the lanes that the mask names, and no others."""
    bench = Bench(2)
    b = bench.b
    held = bench.holding(boolean, np.stack([LANES < 8, LANES < 0]))
    low, whole = Const(u32, 0xFF), Const(u32, 0xFFFFFFFF)
    got = [vote(b, mode, held, mask) for mode in ("all", "any") for mask in (low, whole)]
    bits = vote(b, "ballot", held)
    bench.run()
    assert [bench.got(value)[:, 0].tolist() for value in got] == [
        [True, False],
        [False, False],
        [True, False],
        [True, False],
    ]
    assert bench.got(bits)[:, 5].tolist() == [0xFF, 0]


def test_voting_with_lanes_that_left_is_reported() -> None:
    """A mask may not name lanes that are not here."""
    bench = Bench(1)
    bench.m.active = LANES[None] < 16
    vote(bench.b, "all", bench.holding(boolean, True))
    ballot(bench.b, bench.holding(boolean, True), Const(u32, 0xFFFF))
    assert bench.run().asked == [("absent lanes",)]


def test_match_finds_equal_lanes() -> None:
    """Each lane gets the mask of lanes with the same bits."""
    bench = Bench(1)
    got = match(bench.b, bench.holding(f32, LANES % 2))
    bench.run()
    assert bench.got(got)[0, :2].tolist() == [0x55555555, 0xAAAAAAAA]


@pytest.mark.parametrize("dtype", [u32, i32], ids=str)
@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor"])
def test_reductions(op: str, dtype: DType) -> None:
    """The result is NumPy's over the lanes that the mask names, wrapping."""
    bench = Bench(2)
    x = bench.random(dtype, 5)
    whole, half = reduce_sync(bench.b, op, x), reduce_sync(bench.b, op, x, Const(u32, 0xFFFF))
    bench.run()
    name = {"min": "minimum", "max": "maximum"}.get(op, op if op == "add" else f"bitwise_{op}")
    combine = getattr(np, name)
    for got, lanes in ((whole, 32), (half, 16)):
        expected = combine.reduce(bench.got(x)[:, :lanes], axis=1, dtype=dtype.numpy)
        np.testing.assert_array_equal(bench.got(got)[:, 0], expected)


def test_text() -> None:
    """The PTX of each instruction."""
    bench = Bench(1)
    b, x, held = bench.b, bench.b.var(i32), bench.b.var(boolean)
    shuffle(b, "up", x, Const(u32, 1), width=8)
    vote(b, "any", held)
    ballot(b, held)
    match(b, x)
    reduce_sync(b, "max", x)
    reduce_sync(b, "xor", x)
    full = "#4294967295"
    assert ptx_of(bench.kernel.body) == [
        f"shfl.sync.up.b32 b32_3, b32_1, #1, 6144, {full}",
        "mov.b32 b32_2, b32_3",
        f"vote.sync.any.pred pred_4, pred_5, {full}",
        f"vote.sync.ballot.b32 b32_6, pred_5, {full}",
        f"match.any.sync.b32 b32_7, b32_1, {full}",
        f"redux.sync.max.s32 b32_8, b32_1, {full}",
        f"redux.sync.xor.b32 b32_9, b32_1, {full}",
    ]


def test_wrong_operands_are_refused() -> None:
    """Modes, widths, masks and types are checked."""
    bench = Bench(1)
    b, new = bench.b, bench.b.var
    with pytest.raises(VerifyError, match="the mode must be one of 'idx'"):
        shuffle(b, "left", new(u32), new(u32))
    with pytest.raises(VerifyError, match="the width"):
        shuffle(b, "idx", new(u32), new(u32), width=12)
    with pytest.raises(TypeMismatch, match="x must be u32 or i32, got f32"):
        reduce_sync(b, "add", new(f32))
    with pytest.raises(TypeMismatch, match="the mask must be u32, got i32"):
        vote(b, "all", new(boolean), new(i32))


def test_election_chooses_one_lane() -> None:
    """The lowest lane that the mask names is chosen; all of them must be there."""
    bench = Bench(2)
    first, of_some = elect(bench.b), elect(bench.b, Const(u32, 0xF0))
    assert ptx_of(bench.kernel.body)[0] == "elect.sync _|pred_1, #4294967295"
    bench.run()
    assert np.flatnonzero(bench.got(first)[1]).tolist() == [0]
    assert np.flatnonzero(bench.got(of_some)[1]).tolist() == [4]
    bench.m.active = np.broadcast_to(LANES != 5, (2, 32))
    assert ("absent lanes",) in bench.run().asked
    with pytest.raises(TypeMismatch, match="the mask must be u32, got f32"):
        elect(bench.b, Const(f32, 1))
