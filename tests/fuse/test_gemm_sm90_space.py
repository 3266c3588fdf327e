"""The Hopper GEMM's space: what it lists, launches and finds right, without a GPU."""

from __future__ import annotations

import math

import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels import gemm_sm90_plan as plans
from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90_space import SPACE, plan_of
from kdsl_runtime import dispatch
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Effort, Predicted, load_space
from kdsl_runtime.tune.candidate import build_candidate

SMALL = Problem.parse("m=72,n=48,k=512,dtype=f16")
ONE_PART = {"tile": (64, 48, 64), "stages": 3, "consumers": 1}


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 6144, 4096), (128, 128, 65536)])
def test_listed_plans(shape):
    """The model's first choice is among them, each is there once and fits the chip."""
    m, n, k = shape
    problem = Problem.of(m=m, n=n, k=k, dtype="bf16")
    points = SPACE.points(problem)
    first = plans.candidates(m, n, k, kd.bf16, limit=1)[0]
    found = [plan_of(problem, point) for point in points]
    names = [str(plan) for plan in found]
    assert str(first) in names and len(set(names)) == len(names) >= 60
    times = [SPACE.model(problem, point) for point in points]
    assert times == sorted(times) and all(map(math.isfinite, times))
    for plan in found:
        side = plan.problem.swapped if plan.swap else plan.problem
        assert plans.model.shared_bytes(plan.config, side) <= plans.model.SHARED_BYTES


@pytest.mark.parametrize("text", ["m=64,n=64,k=100,dtype=bf16", "m=64,n=64,k=64,dtype=e4m3"])
def test_products_that_it_does_not_tune(text):
    """Pitches that need a copy, and types that need scales."""
    with pytest.raises(ArgumentError, match=r"multiple of 16|e4m3 is not one of") as caught:
        SPACE.points(Problem.parse(text))
    assert caught.value.code == "K762"


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("splits", [1, 2])
def test_candidates_build_and_are_right(swap, splits):
    """Whole and in parts, either way round: assembled for sm_90a, and right in the simulator."""
    config = {**ONE_PART, **({"splits": splits} if splits > 1 else {}), "swap": swap}
    built = build_candidate(SPACE, SMALL, config, "sm_90a")
    assert built.code and not built.reason
    (trial,) = Predicted("NVIDIA H200").measure(SPACE, SMALL, [config], Effort(1))
    assert trial.status == "right" and 0 < trial.error < SPACE.bound / 2


def test_options_are_read_back():
    """`chosen_by` is the inverse of `options_of`."""
    for point in SPACE.points(SMALL):
        assert table.options_of(*table.chosen_by(point)) == point


def test_users_entry_is_chosen(tmp_path, monkeypatch):
    """What `kdsl tune` wrote decides, for f16 and bf16 alike; `explain` names the file."""
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    assert load_space("gemm_sm90").shape_class(SMALL)["dtype"] == "bf16"
    path = tmp_path / dispatch.file_name(SPACE.name, plans.DEVICE)
    entry = dispatch.Entry(SPACE.shape_class(SMALL), {**ONE_PART, "swap": True}, 3.0)
    assert dispatch.put(path, plans.DEVICE, entry)
    for dtype in (kd.f16, kd.bf16):
        plan = plans.choose(72, 48, 512, dtype)
        assert (plan.config.stages, plan.swap) == (3, True)
    assert f"exact, 3 µs measured, {path}" in plans.explain(72, 48, 512, kd.f16)
    assert "model, no table of NVIDIA H200" in plans.explain(73, 48, 512, kd.f16)
