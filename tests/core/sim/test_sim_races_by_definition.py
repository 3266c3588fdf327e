"""The shadow memory finds a race exactly when the definition says that there is one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.sim.author import Author, found
from kdsl_core.dtypes import u8, u16, u32, u64
from kdsl_core.ir import Const
from kdsl_core.isa import convert, memory
from kdsl_core.isa.barrier import barrier_sync, sync_warp

WARPS = 2
BYTES = 512
WORDS = np.zeros(BYTES // 4, np.uint32)
_TYPES = {1: u8, 2: u16, 4: u32, 8: u64}


@dataclass(frozen=True)
class Step:
    """One instruction: an access of one warp's lanes, or a synchronisation.

    Lane l accesses `size` bytes at (start + l·stride) mod 256, in units of `size`.
    """

    kind: str
    warp: int
    size: int = 4
    start: int = 0
    stride: int = 1
    lanes: int = 32

    def offset(self, lane: int) -> int:
        """The first byte that a lane accesses."""
        return (self.start + lane * self.stride) * self.size % 256

    def bytes(self, lane: int) -> set[int]:
        """The bytes that a lane accesses."""
        return set(range(self.offset(lane), self.offset(lane) + self.size))


steps = st.builds(
    Step,
    st.sampled_from(["load", "store", "load", "store", "warp", "block"]),
    st.integers(0, WARPS - 1),
    st.sampled_from(list(_TYPES)),
    st.sampled_from([0, 1, 32, 5]),
    st.sampled_from([0, 1, 1, 2]),
    st.sampled_from([1, 3, 32]),
)


def ordered(program: list[Step], i: int, j: int, same_warp: bool) -> bool:
    """Whether every lane's step i happens before every lane's step j of another thread."""
    between = program[i + 1 : j]
    if any(step.kind == "block" for step in between):
        return True
    return same_warp and any(s.kind == "warp" and s.warp == program[i].warp for s in between)


def races(program: list[Step]) -> bool:
    """Whether two threads access a byte, one of them writing, and nothing orders the two."""
    accesses = [
        (i, step, lane, step.bytes(lane))
        for i, step in enumerate(program)
        if step.kind in ("load", "store")
        for lane in range(step.lanes)
    ]
    for n, (i, a, lane_a, bytes_a) in enumerate(accesses):
        for j, b, lane_b, bytes_b in accesses[n + 1 :]:
            if "store" not in (a.kind, b.kind) or not bytes_a & bytes_b:
                continue
            same_warp = a.warp == b.warp
            if same_warp and lane_a == lane_b:
                continue
            if i == j or not ordered(program, i, j, same_warp):
                return True
    return False


def kernel_of(program: list[Step], space: str = "shared") -> Author:
    """The kernel that does the steps; all shared bytes are written before the first one."""
    a = Author(32 * WARPS, x="u32")
    s: Any = a.pointers["x"]
    if space == "shared":
        s = a.shared("s", BYTES)
        memory.store(a.b, "shared", a.word(s, a.tid, 8), (Const(u32, 0), Const(u32, 0)))
        barrier_sync(a.b)
    lane, warp = a.do("and", a.tid, 31), a.do("shr", a.tid, 5)
    for step in program:
        if step.kind == "block":
            barrier_sync(a.b)
            continue
        a.when(a.test("eq", warp, step.warp), lambda step=step: _emit(a, space, s, lane, step))
    return a


def _emit(a: Author, space: str, s: Any, lane: Any, step: Step) -> None:
    if step.kind == "warp":
        sync_warp(a.b)
        return
    unit = a.do("add", a.do("mul", lane, step.stride), step.start)
    offset = a.do("and", a.do("mul", unit, step.size), 255)
    place = a.do("add", s, convert.convert(a.b, offset, s.dtype))
    pred = a.test("lt", lane, step.lanes)
    dtype = _TYPES[step.size]
    if step.kind == "load":
        memory.load(a.b, space, place, dtype, pred=pred)
    else:
        value = lane if dtype is u32 else convert.convert(a.b, lane, dtype)
        memory.store(a.b, space, place, (value,), pred=pred)


@settings(max_examples=80, deadline=None)
@given(st.lists(steps, min_size=1, max_size=7))
def test_races_are_found_exactly(program: list[Step]) -> None:
    """Random accesses, sizes and synchronisations, in two orders of execution."""
    run = kernel_of(program).run(x=WORDS)
    want = {"race"} if races(program) else set()
    assert set(found(run)) == want
    assert set(found(run, order="shuffle", seed=len(program))) == want


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=5))
def test_global_races_are_real(program: list[Step]) -> None:
    """Global memory remembers two readers only: it may miss a race, and never invents one."""
    hazards = set(found(kernel_of(program, "global").run(x=WORDS)))
    assert hazards <= ({"race"} if races(program) else set())
    if sum(step.kind == "load" for step in program) < 2:
        assert bool(hazards) == races(program)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=1, max_size=6), st.lists(steps, min_size=1, max_size=6))
def test_a_barrier_separates_what_is_around_it(before: list[Step], after: list[Step]) -> None:
    """Two race-free parts with a barrier between them are race-free together."""
    parts = [p for p in (before, after) if not races(p)]
    joined: list[Step] = []
    for part in parts:
        joined += [*part, Step("block", 0)]
    assert found(kernel_of(joined).run(x=WORDS)) == []


def test_the_definition_itself() -> None:
    """The definition used above says what it should for the smallest cases."""
    write, read = Step("store", 0), Step("load", 1)
    assert races([write, read])
    assert not races([write, Step("block", 0), read])
    assert races([write, Step("warp", 0), read])
    assert races([write, Step("load", 0, start=1)])
    assert not races([write, Step("warp", 0), Step("load", 0, start=1)])
    assert not races([read, Step("load", 0)])
    assert all(not races([step]) for step in (write, read))
    offsets = np.array([write.offset(lane) for lane in range(32)])
    assert all(b - a == 4 for a, b in pairwise(offsets))
