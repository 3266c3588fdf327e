"""What a launch brings with it: registers to hand out, a launch ahead, outputs to be filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, codes, found
from kdsl_core.isa import bulk, launch, mbarrier
from kdsl_core.isa.barrier import barrier_sync

THREADS = 384  # three warp groups, each thread with 168 registers at entry
Values = np.ndarray[Any, Any]


# -- registers -------------------------------------------------------------------------------------
def roles(give: int | None, take: int | None, *, least: int = 256) -> Author:
    """Threads from `least` on give registers back, the others ask for more."""
    a = Author(THREADS)

    def change(count: int | None, increase: bool) -> None:
        if count is not None:
            launch.set_max_registers(a.b, count, increase)

    a.when(a.test("ge", a.tid, least), lambda: change(give, False), lambda: change(take, True))
    return a


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ((40, 232), []),
        ((40, None), []),
        ((48, 232), ["deadlock"]),
        ((40, 240), ["deadlock"]),
        ((None, 232), ["deadlock"]),
        ((176, None), ["value"]),
        ((None, 160), ["value"]),
    ],
)
@pytest.mark.parametrize("order", ["linear", "shuffle"])
def test_registers_of_a_block(change: tuple[Any, Any], want: list[str], order: str) -> None:
    """Nobody gets registers that nobody gave back; 128·(168 − 40) make 256·(232 − 168)."""
    assert found(roles(*change).run(), order=order) == want


def test_registers_that_are_missing_are_named() -> None:
    """The report says who waits for how many."""
    result = roles(48, 232).run(2)(on_hazard="collect")
    assert "232 registers a thread, of which it has 168 and the block" in str(result.hazards[0])


@pytest.mark.parametrize("least", [288, 352])
def test_registers_of_half_a_warp_group(least: int) -> None:
    """All four warps of a warp group change their registers, or none."""
    assert "barrier" in found(roles(40, None, least=least).run())


def test_registers_of_a_warp_alone() -> None:
    """A warp group has four warps."""
    a = Author(160)
    a.when(a.test("ge", a.tid, 128), lambda: launch.set_max_registers(a.b, 40, False))
    assert found(a.run()) == ["barrier"]


# -- a launch ahead --------------------------------------------------------------------------------
def behind(waits: str, *, by_copy: bool = False) -> Author:
    """z = x after "all" threads, the "first", or "none" waited for the launch ahead."""
    a = Author(64, x="u32", z="u32")
    first = a.test("eq", a.tid, 0)
    if waits == "all":
        launch.wait_for_dependencies(a.b)
    elif waits != "none":
        a.when(first, lambda: launch.wait_for_dependencies(a.b))
    if waits == "first, then all meet":
        barrier_sync(a.b)
    if by_copy:
        tile, bar = a.shared("tile", 256), a.shared("full", 8)

        def copy() -> None:
            mbarrier.init(a.b, bar, a.const(1))
            mbarrier.fence_init(a.b)
            mbarrier.arrive(a.b, bar, expect_bytes=a.const(256))
            bulk.bulk_load(a.b, tile, a.pointers["x"], a.const(256), bar)
            mbarrier.wait(a.b, bar, a.const(0))

        a.when(first, copy)
    else:
        got = a.get("global", a.address("x", a.tid, 4))
        a.put("global", a.address("z", a.tid, 4), got)
    return a


@pytest.mark.parametrize("by_copy", [False, True])
@pytest.mark.parametrize(
    ("waits", "want"),
    [("all", []), ("first, then all meet", []), ("first", ["race"]), ("none", ["race"])],
)
def test_memory_of_the_launch_ahead(waits: str, want: list[str], by_copy: bool) -> None:
    """It is touched only by those who know that the launch has ended, whoever waited for it."""
    x, z = (np.zeros(64, np.uint32) for _ in range(2))
    run = behind(waits, by_copy=by_copy).run(x=x, z=z)
    assert found(run) == []
    if by_copy and waits == "first":
        want = []  # the thread that copies has waited
    assert found(run, overlap=["x"]) == want


def test_writing_where_the_launch_ahead_reads() -> None:
    """Writes have to wait, too; arrays that are not named are free."""
    x, z = (np.zeros(64, np.uint32) for _ in range(2))
    result = behind("none").run(x=x, z=z)(overlap=["z"], on_hazard="collect")
    assert codes(result) == ["race"]
    assert "writes z[0], which the launch ahead of this one may still use" in str(result.hazards[0])


# -- outputs ---------------------------------------------------------------------------------------
def partly(count: int) -> Author:
    """The first `count` threads write their element of z, and thread 0 reads x."""
    a = Author(32, x="u32", z="u32")
    got = a.get("global", a.pointers["x"])
    a.when(a.test("lt", a.tid, count), lambda: a.put("global", a.address("z", a.tid, 4), got))
    return a


@pytest.mark.parametrize("checks", ["all", ("all", "unwritten"), "unwritten"])
def test_elements_that_nobody_wrote(checks: Any) -> None:
    """They are found on request, with their number and the first one's place."""
    x, base = np.zeros(32, np.uint32), np.zeros((4, 16), np.uint32)
    z = base[:, :8]
    assert found(partly(32).run(x=x, z=x.copy()), checks=checks) == []
    result = partly(20).run(x=x, z=z)(checks=checks, on_hazard="collect")
    assert codes(result) == ([] if checks == "all" else ["unwritten"])
    if checks != "all":
        # Threads 0 to 19 wrote words 0 to 19 of the base: row 0, the gap behind it, half of row 1.
        assert "20 of 32 elements of z were never written, z[1, 4] first" in str(result.hazards[0])
