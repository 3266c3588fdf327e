"""Runs without checks take shorter ways; they give the bits of the long ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.dtypes import f32
from kdsl_core.ir import Var
from kdsl_core.ir.protocols import Sum
from kdsl_core.isa import arith, compare
from kdsl_core.isa.linear import rule
from kdsl_core.sim.groups import LANES, Group
from kdsl_core.sim.registers import RegisterFile

THREADS = 128
BLOCKS = 40  # enough warps for sums to be kept
ROWS = 6
LINEAR = [row for row in (*arith.INSTRUCTIONS, *compare.INSTRUCTIONS) if rule(row)]


def parts(rng: np.random.Generator, dtype: Any, kind: int) -> Sum:
    """A sum of numbers as addresses have, of any numbers, or one number."""
    info = np.iinfo(dtype)
    any_number = {"low": info.min, "high": info.max, "endpoint": True}
    if kind == 0:
        column, row = rng.integers(0, 90, (ROWS, 1)) * 32, np.arange(LANES)[None]
    elif kind == 1:
        column, row = (rng.integers(**any_number, size=s, dtype=dtype) for s in ((ROWS, 1), 32))
    else:
        column, row = rng.integers(0, 9, (1, 1)), np.zeros((1, 1))
    return Sum(column.astype(dtype), row.astype(dtype).reshape(1, -1))


@pytest.mark.parametrize("instruction", LINEAR, ids=repr)
def test_rules_for_sums(instruction: Any) -> None:
    """Where a rule gives something, it is what the instruction makes of all numbers."""
    rng, used = np.random.default_rng(0), 0
    for kinds in np.ndindex(*(3,) * len(instruction.operands)):
        for _ in range(20):
            sums = [
                parts(rng, dtype.numpy, kind)
                for dtype, kind in zip(instruction.operands, kinds, strict=True)
            ]
            with np.errstate(all="ignore"):
                found = rule(instruction)(*sums)
                whole = instruction.run(*(x.whole for x in sums))
            if found is not None:
                used += 1
                got = found.whole if isinstance(found, Sum) else found
                np.testing.assert_array_equal(np.broadcast_to(got, whole.shape), whole)
    assert used


@kd.kernel
def strides(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], each: kd.Static):
    """Each thread copies some neighbours; the last ones lie behind the end."""
    first = (kd.block_idx()[0] * THREADS + kd.thread_idx()[0]) * each
    for i in range(each):
        if first + i < x.shape[0]:
            y[first + i] = x[first + i] + 1.0


@kd.kernel
def backwards(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """Lanes in falling order, through shared memory."""
    tile = kd.smem(kd.f32, THREADS, name="tile")
    thread, first = kd.thread_idx()[0], kd.block_idx()[0] * THREADS
    tile[THREADS - 1 - thread] = x[first + thread]
    kd.sync_threads()
    y[first + THREADS - 1 - thread] = tile[thread] * 2.0


@kd.kernel
def parting(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """An index that some warps change, and some lanes of others."""
    index = kd.as_scalar(kd.block_idx()[0] * THREADS + kd.thread_idx()[0])
    if kd.thread_idx()[0] // 32 == 1:
        index = index ^ 5
    if kd.thread_idx()[0] > 100:
        index = index ^ 1
    y[index] = x[index]


@kd.kernel
def in_halves(x: kd.Tensor["f16", "n"], y: kd.Tensor["f16", "n"]):
    """Two halves a lane, read with a condition."""
    first = (kd.block_idx()[0] * THREADS + kd.thread_idx()[0]) * 2
    if kd.thread_idx()[0] % 3 != 1:
        y[first] = x[first + 1]
    y[first + 1] = x[first]


CASES = {
    "one": (strides, {"each": 1}, np.float32, THREADS * BLOCKS - 7),
    "three": (strides, {"each": 3}, np.float32, 3 * THREADS * BLOCKS - 100),
    "eight": (strides, {"each": 8}, np.float32, 8 * THREADS * BLOCKS),
    "backwards": (backwards, {}, np.float32, THREADS * BLOCKS),
    "parting": (parting, {}, np.float32, THREADS * BLOCKS),
    "halves": (in_halves, {}, np.float16, 2 * THREADS * BLOCKS),
}


@pytest.mark.parametrize("name", CASES)
def test_same_results(name: str) -> None:
    """Results with all checks, with none, and with none but counters."""
    kernel, statics, dtype, size = CASES[name]
    found = []
    for options in ({}, {"checks": (), "profile": False}, {"checks": ()}):
        x, y = np.arange(size).astype(dtype), np.zeros(size, dtype)
        kd.simulate(kernel, grid=BLOCKS, block=THREADS, args=(x, y), kwargs=statics, **options)
        found.append(y)
    assert found[0].any()
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_accesses_outside_are_dropped() -> None:
    """What lies outside is read as 0 and not written, as with hazards that are collected."""

    @kd.kernel
    def shifted(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
        i = kd.block_idx()[0] * THREADS + kd.thread_idx()[0]
        y[i + 40] = x[i + 50]

    found = []
    for options in ({"on_hazard": "collect"}, {"checks": (), "profile": False}):
        x, y = (np.arange(1, THREADS * BLOCKS + 1, dtype=np.float32) for _ in range(2))
        kd.simulate(shifted, grid=BLOCKS, block=THREADS, args=(x, y), **options)
        found.append(y)
    np.testing.assert_array_equal(found[0], found[1])


def test_accumulators_of_two_groups() -> None:
    """Matrices stand for the registers of each group by itself, until somebody reads these."""
    registers, file = (Var(f32), Var(f32)), RegisterFile(4)
    both, first, second = (Group(np.array(rows), None, 0, 4, 0) for rows in (range(4), [0, 2], [1]))
    spreads = []

    def spread(matrices: Any) -> list[Any]:
        spreads.append(len(matrices))
        return [np.repeat(matrices[:, :1] + i, LANES, axis=1) for i in range(2)]

    for group, value in ((first, 1.0), (second, 5.0), (first, 2.0)):
        matrices = np.full((group.size, 3), value, np.float32)
        file.write_matrices(registers, matrices, spread, group)
    assert not spreads  # nobody wants a register yet
    assert file.matrices(registers, first)[0, 0] == 2.0
    assert file.matrices(registers, both) is None
    assert file.read(registers[1], second)[0, 0] == 6.0
    assert file.matrices(registers, second) is None and spreads == [1]
    file.write(registers[0], np.full((2, LANES), 9.0, np.float32), first, None)
    assert [float(file.read(registers[0], both)[row, 0]) for row in range(3)] == [9.0, 5.0, 9.0]
    assert [float(file.read(registers[1], both)[row, 0]) for row in range(3)] == [3.0, 6.0, 3.0]


def test_what_groups_write_stays_theirs() -> None:
    """A group reads its own value in the form it had; who has other warps, too, reads all of it."""
    register, file = Var(f32), RegisterFile(4)
    both, first, second, later = (
        Group(np.array(rows), None, 0, 4, 0) for rows in (range(4), [0, 2], [1, 3], [2, 3])
    )
    one, two = (np.full((1, 1), value, np.float32) for value in (1.0, 2.0))
    file.write(register, one, first, None)
    assert file.undefined(register, first) is None
    np.testing.assert_array_equal(file.undefined(register, second), np.ones((2, LANES), bool))
    file.write(register, one, first, None)
    file.write(register, two, second, None)
    again = Group(np.array([0, 2]), None, 7, 4, 0)
    assert file.read(register, again) is one and file.read(register, second) is two
    file.write(register, one + two, later, None)
    assert file.read(register, both)[:, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    file.write(register, two, first, np.arange(LANES)[None] < 5)
    assert file.read(register, both)[:, 4].tolist() == [2.0, 2.0, 2.0, 3.0]
    assert file.read(register, both)[:, 5].tolist() == [1.0, 2.0, 3.0, 3.0]


def test_what_lanes_write_stays_theirs() -> None:
    """So it is for the same lanes of the same warps; who has other lanes, too, reads all of it."""
    register, file = Var(f32), RegisterFile(2)
    masks = [np.tile(np.arange(LANES) == lane, (2, 1)) for lane in (3, 4)]
    elected, other, again = (Group(np.arange(2), masks[i], 0, 2, 0) for i in (0, 1, 0))
    everybody = Group(np.arange(2), None, 0, 2, 0)
    zero, one, two = (np.full((1, 1), value, np.float32) for value in (0.0, 1.0, 2.0))
    file.write(register, one, elected, None)
    assert file.undefined(register, again) is None
    np.testing.assert_array_equal(file.undefined(register, other), masks[1])
    file.write(register, zero, everybody, None)
    file.write(register, one, elected, None)
    assert file.read(register, again) is one
    file.write(register, two, other, None)
    assert file.read(register, everybody)[1, :6].tolist() == [0.0, 0.0, 0.0, 1.0, 2.0, 0.0]
    assert file.undefined(register, everybody) is None


@kd.kernel
def by_turns(x: kd.Tensor["f32", "n"]):
    """Halves of a block at barriers of their own and of both, one by one and at once."""
    tile = kd.smem(kd.f32, THREADS, name="tile")
    thread, first = kd.thread_idx()[0], kd.block_idx()[0] * THREADS
    half = thread // 64
    for i in range(3):
        tile[thread] = x[first + thread] + i
        kd.named_barrier(1 + half, 64).sync()
        x[first + thread] = tile[half * 64 + (thread * 7 + 1) % 64]
        kd.named_barrier(1 + half, 64).sync()
        if half == 0:
            kd.named_barrier(3, THREADS).sync()
            x[first + thread] = x[first + thread] * 2.0
        else:
            x[first + thread] = x[first + thread] + 1.0
            kd.named_barrier(3, THREADS).sync()


def test_barriers_that_nobody_watches() -> None:
    """Warps that come at once, and such that wait for others, with checks and without."""
    found = []
    for checks in ("all", ()):
        x = np.arange(3 * THREADS, dtype=np.float32)
        kd.simulate(by_turns, grid=3, block=THREADS, args=(x,), checks=checks, profile=False)
        found.append(x)
    assert not np.array_equal(found[0], np.arange(3 * THREADS))
    np.testing.assert_array_equal(found[1], found[0])


def test_steps_wait_for_one_another() -> None:
    """Steps that go on with a sum are evaluated with it, when somebody reads or writes it."""
    registers = [(Var(f32),) for _ in range(2)]
    file, asked = RegisterFile(2), []
    group, other = (Group(np.array(rows), None, 0, 2, 0) for rows in ([0, 1], [1]))

    def evaluate(many: Any) -> Any:
        asked.append([len(one.steps) for one in many])
        return [[sum((step[0][0] for step in one.steps), one.start[0])] for one in many]

    def add(number: int, to: Any, value: float, who: Group = group) -> None:
        inputs = [[np.full((who.size, LANES), value, np.float32)]]
        file.write_later(registers[number], to, inputs, evaluate, who)

    def now(number: int) -> list[float]:
        return file.read(registers[number][0], group)[:, 0].tolist()

    for (register,) in registers:
        file.write(register, np.zeros((1, 1), np.float32), group, None)
    add(0, registers[0], 1.0)
    add(1, registers[1], 2.0)
    add(0, registers[0], 4.0)
    assert not asked and now(1) == [2.0, 2.0] and asked == [[2, 1]] and now(0) == [5.0, 5.0]
    add(0, registers[0], 8.0)
    add(1, registers[0], 16.0)  # begins with what the first gives
    assert asked[1:] == [[1]] and now(1) == [29.0, 29.0]
    add(0, registers[0], 1.0, other)
    assert now(0) == [13.0, 14.0] and now(1) == [29.0, 29.0]
