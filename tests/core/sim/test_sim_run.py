"""Kernels compute what they say: grids, divergence, loops, registers, memory, atomics."""

from __future__ import annotations

import numpy as np
import pytest

from core.sim.author import Author, codes
from kdsl_core.dtypes import boolean, f32, u32
from kdsl_core.errors import ArgumentError, HazardError
from kdsl_core.ir import Const
from kdsl_core.isa import atomic, control, register, warp
from kdsl_core.isa.barrier import barrier_sync
from kdsl_core.isa.special import special
from kdsl_core.sim import run


def numbers(n: int, start: int = 0) -> np.ndarray:
    """Words start, start + 1, …"""
    return np.arange(start, start + n, dtype=np.uint32)


def global_index(a: Author, threads: int) -> object:
    """ctaid.x · threads + tid.x."""
    return a.do("add", a.do("mul", a.block, threads), a.tid)


@pytest.mark.parametrize(("n", "threads"), [(1, 32), (33, 32), (1000, 96), (70000, 128)])
def test_vector_add(n: int, threads: int) -> None:
    """Guarded element-wise addition over partly filled blocks and several batches."""
    a = Author(threads, x="u32", y="u32", z="u32")
    limit = a.scalar("n")
    i = global_index(a, threads)

    def body() -> None:
        x = a.get("global", a.address("x", i, 4))
        y = a.get("global", a.address("y", i, 4))
        a.put("global", a.address("z", i, 4), a.do("add", x, y))

    a.when(a.test("lt", i, limit), body)
    x, y, z = numbers(n), numbers(n, 7), np.zeros(n, np.uint32)
    result = a.run(-(-n // threads), {"n": n}, x=x, y=y, z=z)()
    assert not result.hazards
    np.testing.assert_array_equal(z, x + y)


def test_three_dimensions() -> None:
    """Thread and block coordinates count x fastest."""
    a = Author((4, 2, 3), z="u32")
    b = a.b
    parts = [special(b, f"{kind}.{axis}") for kind in ("ctaid", "tid") for axis in "zyx"]
    sizes = (5, 3, 2, 3, 2, 4)
    linear = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        linear = a.do("add", a.do("mul", linear, size), part)
    a.put("global", a.address("z", linear, 4), linear)
    z = np.zeros(int(np.prod(sizes)), np.uint32)
    a.run((2, 3, 5), z=z)()
    np.testing.assert_array_equal(z, numbers(z.size))


def test_divergent_branches_meet_again() -> None:
    """Both sides of a branch inside a warp run, and the lanes are together afterwards."""
    a = Author(64, z="u32")
    v = register.declare(a.b, u32, Const(u32, 0))
    odd = a.test("eq", a.do("and", a.tid, 1), 1)
    a.when(
        odd,
        lambda: register.assign(a.b, v, a.do("mul", a.tid, 3)),
        lambda: register.assign(a.b, v, a.do("add", a.tid, 100)),
    )
    votes = warp.ballot(a.b, odd)
    a.put("global", a.address("z", a.tid, 4), a.do("add", v, a.do("and", votes, 0)))
    z = np.zeros(64, np.uint32)
    result = a.run(z=z)()
    assert codes(result) == []
    t = numbers(64)
    np.testing.assert_array_equal(z, np.where(t % 2 == 1, t * 3, t + 100))
    assert result.profile.totals["divergent_branches"] == 2


def test_loops_of_different_length() -> None:
    """Each lane runs its own number of iterations, some leave early by break."""
    a = Author(64, z="u32")
    total = register.declare(a.b, u32, Const(u32, 0))

    def body(i: object) -> None:
        a.when(a.test("eq", i, 40), lambda: a.b.append(control.BreakOp()))
        a.when(a.test("eq", a.do("rem", i, 5), 0), lambda: a.b.append(control.ContinueOp()))
        register.assign(a.b, total, a.do("add", total, i))

    a.loop(a.tid, body)
    a.put("global", a.address("z", a.tid, 4), total)
    z = np.zeros(64, np.uint32)
    assert not a.run(z=z)().hazards
    want = [sum(i for i in range(min(t, 40)) if i % 5) for t in range(64)]
    np.testing.assert_array_equal(z, want)


def test_early_return() -> None:
    """Lanes that returned write nothing more."""
    a = Author(64, z="u32")
    a.when(a.test("ge", a.tid, 10), lambda: a.b.append(control.ReturnOp()))
    a.put("global", a.address("z", a.tid, 4), a.do("add", a.tid, 1))
    z = np.zeros(64, np.uint32)
    a.run(z=z)()
    np.testing.assert_array_equal(z, np.where(numbers(64) < 10, numbers(64) + 1, 0))


def test_partial_write_leaves_aliases_alone() -> None:
    """A register copied before a masked write keeps its value."""
    a = Author(32, y="u32", z="u32")
    v = register.declare(a.b, u32, a.tid)
    before = register.snapshot(a.b, v)
    a.when(a.test("lt", a.tid, 5), lambda: register.assign(a.b, v, Const(u32, 99)))
    a.put("global", a.address("y", a.tid, 4), before)
    a.put("global", a.address("z", a.tid, 4), v)
    y, z = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    a.run(y=y, z=z)()
    np.testing.assert_array_equal(y, numbers(32))
    np.testing.assert_array_equal(z, np.where(numbers(32) < 5, 99, numbers(32)))


@pytest.mark.parametrize("space", ["global", "shared"])
def test_histogram_by_atomics(space: str) -> None:
    """Atomic additions of all blocks add up, and are no race."""
    a = Author(64, x="u32", z="u32")
    x = a.get("global", a.address("x", global_index(a, 64), 4))
    if space == "global":
        atomic.reduce(a.b, "global", a.address("z", x, 4), "add", Const(u32, 1))
    else:
        s = a.shared("bins", 32)
        few = a.test("lt", a.tid, 8)
        a.when(few, lambda: a.put("shared", a.word(s, a.tid), a.const(0)))
        barrier_sync(a.b)
        atomic.reduce(a.b, "shared", a.word(s, x), "add", Const(u32, 1))
        barrier_sync(a.b)

        def flush() -> None:
            count = a.get("shared", a.word(s, a.tid))
            atomic.reduce(a.b, "global", a.address("z", a.tid, 4), "add", count)

        a.when(few, flush)
    x_array = np.random.default_rng(1).integers(0, 8, 256).astype(np.uint32)
    z = np.zeros(8, np.uint32)
    result = a.run(4, x=x_array, z=z)()
    assert not result.hazards
    np.testing.assert_array_equal(z, np.bincount(x_array, minlength=8))


def test_atomic_gives_the_old_value_once_each() -> None:
    """Tickets drawn by atomic addition are all different."""
    a = Author(96, c="u32", z="u32")
    ticket = atomic.atomic(a.b, "global", a.pointers["c"], "add", Const(u32, 1))
    a.put("global", a.address("z", ticket, 4), a.tid)
    c, z = np.zeros(1, np.uint32), np.zeros(96, np.uint32)
    a.run(c=c, z=z)()
    assert c[0] == 96
    np.testing.assert_array_equal(np.sort(z), numbers(96))


def test_views_share_memory() -> None:
    """Two views of one array are one memory; bytes between a view's elements stay."""
    base = np.arange(64, dtype=np.float32)
    x, y = base[::2], base[1:33]
    a = Author(32, x="f32", y="f32")
    value = a.get("global", a.address("y", a.tid, 4), f32)
    a.put("global", a.address("x", a.do("mul", a.tid, 2), 4), value)
    want = base.copy()
    want[::2] = base[1:33]
    a.run(x=x, y=y)(on_hazard="collect", checks=())
    np.testing.assert_array_equal(base, want)


def test_shuffled_orders_agree() -> None:
    """Whatever order blocks and warps take, a kernel without hazards gives the same result."""
    a = Author(128, x="u32", z="u32")
    s = a.shared("s", 512)
    i = global_index(a, 128)
    total = register.declare(a.b, u32, Const(u32, 0))

    def body(step: object) -> None:
        x = a.get("global", a.address("x", i, 4))
        a.put("shared", a.word(s, a.tid), a.do("add", x, step))
        barrier_sync(a.b)
        other = a.do("rem", a.do("add", a.do("mul", step, 33), a.tid), 128)
        got = a.get("shared", a.word(s, other))
        register.assign(a.b, total, a.do("add", total, got))
        barrier_sync(a.b)

    a.loop(5, body)
    a.put("global", a.address("z", i, 4), total)
    results = []
    for seed in (None, 1, 2, 3):
        x, z = numbers(512), np.zeros(512, np.uint32)
        options = {} if seed is None else {"order": "shuffle", "seed": seed}
        assert not a.run(4, x=x, z=z)(**options).hazards
        results.append(z)
    for z in results[1:]:
        np.testing.assert_array_equal(z, results[0])


def test_a_loop_without_end_is_stopped() -> None:
    """The instruction budget ends a run that would never end."""
    a = Author(32, z="u32")
    a.b.append(control.LoopOp(condition=a.const(1, boolean)))
    with pytest.raises(HazardError, match="may never end") as caught:
        a.run(z=np.zeros(1, np.uint32))(max_instructions=100_000)
    assert caught.value.code == "K510"


@pytest.mark.parametrize(
    "options", [{"checks": {"rice"}}, {"on_hazard": "ignore"}, {"order": "x"}, {"numerics": "?"}]
)
def test_unknown_words_are_refused(options: dict) -> None:
    """Options are words from a list; others are argument errors that say which."""
    a = Author(32)
    with pytest.raises(ArgumentError, match="got"):
        run(a.kernel, (1, 1, 1), {}, [], **options)
