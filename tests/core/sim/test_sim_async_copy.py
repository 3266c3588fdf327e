"""cp.async: data arrive, and every access before the wait that covers them is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, codes, found
from kdsl_core.dtypes import u32
from kdsl_core.ir import Const
from kdsl_core.isa import memory, register
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait
from kdsl_core.isa.barrier import barrier_sync

THREADS = 64
ROW = THREADS * 16


def data(stages: int) -> np.ndarray[Any, Any]:
    """Words 0, 1, … for some stages of 16 bytes per thread."""
    return np.arange(stages * THREADS * 4, dtype=np.uint32)


def pipeline(
    stages: int = 3, steps: int = 6, *, wait: int = 1, barrier: bool = True, commit: bool = True
) -> Author:
    """Sums words that another warp's threads copied, `stages` buffers deep."""
    a = Author(THREADS, x="u32", z="u32")
    s = a.shared("tile", stages * ROW)
    lane_offset = a.do("mul", a.tid, 16)
    other = a.do("xor", lane_offset, 512)
    total = register.declare(a.b, u32, Const(u32, 0))

    def fetch(step: Any) -> None:
        source = a.address("x", a.do("add", a.do("mul", step, ROW), lane_offset), 1)
        slot = a.do("mul", a.do("rem", step, stages), ROW)
        cp_async(a.b, a.do("add", a.do("add", s, slot), lane_offset), source, 16)

    def close() -> None:
        if commit:
            cp_async_commit(a.b)

    for early in range(stages - 1):
        fetch(a.const(early))
        close()

    def body(step: Any) -> None:
        cp_async_wait(a.b, wait)
        if barrier:
            barrier_sync(a.b)
        slot = a.do("mul", a.do("rem", step, stages), ROW)
        got = a.get("shared", a.do("add", a.do("add", s, slot), other))
        register.assign(a.b, total, a.do("add", total, got))
        ahead = a.do("add", step, stages - 1)
        a.when(a.test("lt", ahead, steps), lambda: fetch(ahead))
        close()

    a.loop(steps, body)
    a.put("global", a.address("z", a.tid, 4), total)
    return a


def test_pipeline_is_clean() -> None:
    """A three-stage pipeline gives the right sums and no hazard, in any order."""
    x = data(6)
    want = x.reshape(6, THREADS, 4)[:, np.arange(THREADS) ^ 32, 0].sum(axis=0)
    for options in ({}, {"order": "shuffle", "seed": 3}):
        z = np.zeros(THREADS, np.uint32)
        assert found(pipeline().run(x=x, z=z), **options) == []
        np.testing.assert_array_equal(z, want)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"wait": 2}, "inflight"),
        ({"barrier": False}, "race"),
        ({"commit": False}, "inflight"),
        ({"stages": 2}, "inflight"),
    ],
)
def test_broken_pipelines(change: dict[str, Any], want: str) -> None:
    """Waiting for too few groups, no barrier, no commit, too few stages: each is found."""
    hazards = found(pipeline(**change).run(x=data(6), z=np.zeros(THREADS, np.uint32)))
    assert want in hazards


def test_own_copy_read_too_early() -> None:
    """Even the thread that started a copy must wait for it; then it needs no barrier."""
    for waits in (False, True):
        a = Author(32, x="u32")
        s = a.shared("s", 512)
        place = a.do("add", s, a.do("mul", a.tid, 16))
        cp_async(a.b, place, a.address("x", a.tid, 16), 16)
        cp_async_commit(a.b)
        if waits:
            cp_async_wait(a.b, 0)
        a.get("shared", place)
        assert found(a.run(x=data(1))) == ([] if waits else ["inflight"])


def test_fill_with_zeros() -> None:
    """`source_bytes` limits what is read; the rest becomes zero and nothing else is touched."""
    a = Author(32, x="u32", z="u32")
    s = a.shared("s", 512)
    place = a.do("add", s, a.do("mul", a.tid, 16))
    limit = a.do("mul", a.do("and", a.tid, 3), 4)
    cp_async(a.b, place, a.address("x", a.tid, 16), 16, source_bytes=limit)
    cp_async_commit(a.b)
    cp_async_wait(a.b, 0)
    got = memory.load(a.b, "shared", place, u32, vector=4)
    memory.store(a.b, "global", a.address("z", a.tid, 16), got)
    x, z = data(1)[: 31 * 4 + 3] + 1, np.full(128, 9, np.uint32)
    result = a.run(x=x, z=z)(on_hazard="collect")
    assert codes(result) == []
    want = np.append(x, 0).reshape(32, 4)
    kept = np.arange(4)[None, :] < (np.arange(32) & 3)[:, None]
    np.testing.assert_array_equal(z.reshape(32, 4), np.where(kept, want, 0))


def test_two_copies_into_one_place() -> None:
    """A copy into bytes that another copy is still writing is found."""
    a = Author(32, x="u32")
    s = a.shared("s", 512)
    place = a.do("add", s, a.do("mul", a.tid, 16))
    for _ in range(2):
        cp_async(a.b, place, a.address("x", a.tid, 16), 16)
        cp_async_commit(a.b)
    cp_async_wait(a.b, 0)
    assert found(a.run(x=data(1))) == ["inflight"]
