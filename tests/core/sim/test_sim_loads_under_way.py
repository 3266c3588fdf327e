"""Loads that an arrival passes: TMA must not overwrite what they may still be reading."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd

WORDS = 4 * 32  # of a turn: four for each reader


@kd.func
def between(how, values, spare, lane):
    """What is done between a lane's load of four values and the release."""
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


@kd.kernel
def two_turns(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], how: kd.Static):
    """y = 2 x in two turns through one stage: warp 1 copies, warp 0 reads and releases it."""
    stage = kd.smem(kd.f32, WORDS, align=128, name="stage")
    spare = kd.smem(kd.f32, 32, name="spare")
    full, empty = kd.mbarrier(name="full"), kd.mbarrier(name="empty")
    lane, reads = kd.lane_idx(), kd.warp_idx() == 0
    kd.collective.init_together(full, empty)
    if reads:
        for turn in kd.range(2):
            full.wait(turn % 2)
            values = stage.load_vector(4 * lane, 4)
            between(how, values, spare, lane)
            kd.sync_warp()
            if lane == 0:
                empty.arrive()
            for i in range(4):
                y[turn * WORDS + 4 * lane + i] = 2.0 * values[i]
    elif lane == 0:
        for turn in kd.range(2):
            empty.wait((turn + 1) % 2)
            full.arrive_expect(WORDS * 4)
            kd.bulk_load(x.tile((WORDS,), (turn,)), stage, WORDS, full)


def run(kernel: Any, *statics: Any, turns: int = 2, **options: Any) -> kd.Simulated:
    """The kernel on some turns' numbers, with what was found."""
    x, y = np.arange(turns * WORDS, dtype=np.float32), np.zeros(turns * WORDS, np.float32)
    args = x, y, *statics
    return kd.simulate(kernel, grid=1, block=64, args=args, on_hazard="collect", **options)


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


def test_what_is_said() -> None:
    """The copy, the load and the arrival have their lines, and the fix names the fence."""
    (hazard,) = run(two_turns, "nothing").hazards
    assert hazard.count == 32 and hazard.place is not None and hazard.place.tensor == "stage"
    assert hazard.who is not None and hazard.who.warp == 1
    assert hazard.other is not None and hazard.other.warp == 0
    assert hazard.loc is not None and "kd.bulk_load(" in hazard.loc.excerpt()
    assert hazard.other_loc is not None and "stage.load_vector(" in hazard.other_loc.excerpt()
    (note,) = hazard.notes
    assert "the arrival" in note and "empty.arrive()" in note
    assert hazard.fix is not None and "kd.fence_proxy_async()" in hazard.fix


def test_only_where_it_is_asked_for() -> None:
    """The check is that for data in flight."""
    assert run(two_turns, "nothing", checks=("race", "proxy")).hazards == ()
    assert len(run(two_turns, "nothing", checks=("inflight",)).hazards) == 1


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order(seed: int) -> None:
    """Whichever warp comes first."""
    options: dict[str, Any] = {"order": "shuffle", "seed": seed}
    assert run(two_turns, "fence", **options).hazards == ()
    assert len(run(two_turns, "nothing", **options).hazards) == 1


@kd.kernel
def refills_itself(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], fenced: kd.Static):
    """y = x in two turns, where the warp that reads also starts the copies."""
    stage, full = kd.smem(kd.f32, WORDS, align=128, name="stage"), kd.mbarrier(name="full")
    lane = kd.lane_idx()
    kd.collective.init_together(full)
    if kd.warp_idx() == 0:
        values = []
        for turn in range(2):
            if lane == 0:
                full.arrive_expect(WORDS * 4)
                kd.bulk_load(x.tile((WORDS,), (turn,)), stage, WORDS, full)
            full.wait(turn)
            values += stage.load_vector(4 * lane, 4)
            if fenced:
                kd.fence_proxy_async()
            kd.sync_warp()
        for i, value in enumerate(values):
            y[i // 4 * WORDS + 4 * lane + i % 4] = value


@pytest.mark.parametrize("fenced", [True, False])
def test_a_copy_of_the_same_warp(fenced: bool) -> None:
    """Nobody arrives: the copy itself passes the loads."""
    hazards = run(refills_itself, fenced).hazards
    assert [hazard.code for hazard in hazards] == ([] if fenced else ["inflight"])
    assert all(hazard.notes == () for hazard in hazards)


@kd.kernel
def one_turn_ahead(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """y = x by a ring of two stages: a turn's values are loaded before the last one's are stored.

    A stage is released when its values have been stored, while loads of the next one are under way.
    """
    ring = kd.smem(kd.f32, kd.Layout((WORDS, 2)), align=128, name="ring")
    full, empty = kd.mbarrier(count=2, name="full"), kd.mbarrier(count=2, name="empty")
    lane, turns = kd.lane_idx(), x.shape[0] // WORDS
    kd.collective.init_together(full, empty)
    if kd.warp_idx() == 0:
        values = kd.rmem(kd.f32, 4).fill(0.0)
        for turn in kd.range(turns + 1):
            held = [values[i] + 0.0 for i in range(4)]
            if turn < turns:
                full[turn % 2].wait(turn // 2 % 2)
                for i, value in enumerate(ring[None, turn % 2].load_vector(4 * lane, 4)):
                    values[i] = value
            if turn > 0:
                for i in range(4):
                    y[(turn - 1) * WORDS + 4 * lane + i] = held[i]
                kd.sync_warp()
                if lane == 0:
                    empty[(turn - 1) % 2].arrive()
    elif lane == 0:
        for turn in kd.range(turns):
            empty[turn % 2].wait((turn // 2 + 1) % 2)
            full[turn % 2].arrive_expect(WORDS * 4)
            stage = ring[None, turn % 2]
            kd.bulk_load(x.tile((WORDS,), (turn,)), stage, WORDS, full[turn % 2])


def test_loads_of_another_stage_may_be_under_way() -> None:
    """Each arrival passes loads, but not those of the stage that it releases."""
    result = run(one_turn_ahead, turns=5)
    assert result.hazards == ()
    assert np.array_equal(*result.outputs)


@kd.kernel
def multiplies(a: kd.Tensor["bf16", "n"], y: kd.Tensor["f32", "m"], how: kd.Static):
    """y = A · Aᵀ for two tiles A of 16×8 one after the other in one stage."""
    stage = kd.smem(kd.bf16, kd.Layout((16, 16), (16, 1)), align=128, name="stage")
    full, empty = kd.mbarrier(name="full"), kd.mbarrier(name="empty")
    lane = kd.lane_idx()
    kd.collective.init_together(full, empty)
    if kd.warp_idx() == 0:
        mma = kd.tiled_mma(kd.atoms.find(arch="sm_80", a="bf16", acc="f32"))
        fragment = mma.make_fragment_A((16, 16))
        acc = mma.make_fragment_C((16, 8)).fill(0.0)
        source = stage.with_layout(kd.Layout(8), lane % 16 * 16 + lane // 16 * 8)
        for turn in kd.range(2):
            full.wait(turn % 2)
            kd.copy(source, fragment.with_layout(kd.Layout(8)), atom=kd.atoms.ldmatrix(4))
            kd.gemm(mma, fragment, fragment.with_layout(kd.Layout((4, 1, 1))), acc)
            if how == "fence":
                kd.fence_proxy_async()
            kd.sync_warp()
            if lane == 0:
                empty.arrive()
        for i in range(4):
            y[4 * lane + i] = acc.with_layout(kd.Layout(4))[i]
    elif lane == 0:
        for turn in kd.range(2):
            empty.wait((turn + 1) % 2)
            full.arrive_expect(512)
            kd.bulk_load(a.tile((256,), (turn,)), stage.with_layout(kd.Layout(256)), 256, full)


@pytest.mark.parametrize("how", ["fence", "mma.sync alone"])
def test_matrices_for_mma(how: str) -> None:
    """`ldmatrix` loads, and the product is no wait: its instruction comes behind the arrival."""
    a, y = np.ones(512, ml_dtypes.bfloat16), np.zeros(128, np.float32)
    result = kd.simulate(multiplies, grid=1, block=64, args=(a, y, how), on_hazard="collect")
    assert [h.code for h in result.hazards] == ([] if how == "fence" else ["inflight"])
    assert (y == 32).all()
