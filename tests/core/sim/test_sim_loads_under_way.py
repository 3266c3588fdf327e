"""Loads that an arrival passes: TMA must not overwrite what they may still be reading."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.sim.hazards import Hazard

WORDS = 4 * 32  # of a turn: four for each reader


@kd.kernel
def two_turns(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], how: kd.Static):
    """y = 2 x in two turns through one stage: warp 1 copies, warp 0 reads and releases it."""
    stage = kd.smem(kd.f32, WORDS, align=128, name="stage")
    spare = kd.smem(kd.f32, 32, name="spare")
    full, empty = kd.mbarrier(name="full"), kd.mbarrier(name="empty")
    lane, reads = kd.lane_idx(), kd.warp_idx() == 0
    if kd.thread_rank() == 0:
        full.init()
        empty.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    if reads:
        for turn in kd.range(2):
            full.wait(turn % 2)
            values = stage.load_vector(4 * lane, 4)
            total = values[0] + values[1]
            match how:
                case "fence":
                    kd.fence_proxy_async()
                case "fence of one lane":
                    if lane == 0:
                        kd.fence_proxy_async()
                case "fence of global memory":
                    kd.fence_proxy_async("global")
                case "memory fence":
                    kd.fence("cta")
                case "barrier":
                    kd.named_barrier(1, 32).sync()
                case "store":
                    spare[lane] = values[3]
                case "store of a sum":
                    spare[lane] = total
                case "branch":
                    if total > 1.0:
                        spare[lane] = 1.0
                case "shuffle":
                    values[0] = kd.shfl_xor(values[0], 1)
                case _:
                    pass
            kd.sync_warp()
            if lane == 0:
                empty.arrive()
            for i in range(4):
                y[turn * WORDS + 4 * lane + i] = 2.0 * values[i]
            if how == "store":
                y[turn * WORDS + 4 * lane] = y[turn * WORDS + 4 * lane] + 0.0 * total
    elif lane == 0:
        for turn in kd.range(2):
            empty.wait((turn + 1) % 2)
            full.arrive_expect(WORDS * 4)
            kd.bulk_load(x.tile((WORDS,), (turn,)), stage, WORDS, full)


def run(kernel: Any, how: str, block: int = 64, words: int = 2 * WORDS) -> kd.Simulated:
    """The kernel on `words` numbers, with what was found."""
    x, y = np.arange(words, dtype=np.float32), np.zeros(words, np.float32)
    return kd.simulate(kernel, grid=1, block=block, args=(x, y, how), on_hazard="collect")


ORDERS = ("fence", "memory fence", "barrier", "store", "store of a sum", "branch")
LEAVES_OPEN = ("nothing", "fence of one lane", "fence of global memory", "shuffle")


@pytest.mark.parametrize("how", ORDERS)
def test_what_waits_for_a_load(how: str) -> None:
    """Fences, barriers, and what acts on the value, although only one of four words is needed."""
    result = run(two_turns, how)
    assert result.hazards == ()
    assert np.array_equal(result.outputs[1], 2 * result.outputs[0])


@pytest.mark.parametrize("how", LEAVES_OPEN)
def test_what_does_not(how: str) -> None:
    """The warp's synchronisation alone, arithmetic and shuffles, other spaces, other lanes."""
    (hazard,) = run(two_turns, how).hazards
    assert hazard.code == "inflight"
