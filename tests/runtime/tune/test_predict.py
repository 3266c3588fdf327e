"""Predictions: the roofline's arithmetic, and what the simulator finds of candidates."""

from __future__ import annotations

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Call, Predicted, Space
from kdsl_runtime.tune.chips import Chip, chip_of
from kdsl_runtime.tune.measure import Effort
from kdsl_runtime.tune.predict import LAUNCH_US, roofline_us

CHIP = Chip("made up", "sm_90a", multiprocessors=10, clock_hz=1e9, memory_bytes_per_s=1e12)


@pytest.mark.parametrize(
    ("counters", "blocks", "us"),
    [
        ({"instructions": 40_000}, 10, 1.0),  # 1000 cycles of four warps in each of ten
        ({"instructions": 40_000}, 1, 10.0),  # one multiprocessor alone
        ({"instructions": 44_000}, 11, 2.0),  # the eleventh block waits for the others
        ({"wavefronts": 10_000}, 10, 1.0),
        ({"sectors": 31_250}, 10, 1.0),
        ({"sectors": 31_250, "instructions": 80_000}, 10, 2.0),
        ({}, 10, 0.0),
    ],
)
def test_busiest_resource_decides(counters, blocks, us):
    """Issue and shared memory of the fullest multiprocessor, or memory of the whole chip."""
    assert roofline_us(counters, blocks, CHIP) == pytest.approx(LAUNCH_US + us)


def test_strided_accesses_cost(spaces, problem):
    """More sectors for the same bytes: predictions grow with the step, and all are right."""
    configs = [{"threads": 64, "step": step} for step in (1, 2, 4)]
    trials = Predicted("NVIDIA H200").measure(spaces("SPACE"), problem, configs, Effort(1))
    assert [trial.status for trial in trials] == ["right"] * 3
    assert trials[0].us < trials[1].us < trials[2].us
    again = Predicted("NVIDIA H200").measure(spaces("SPACE"), problem, configs, Effort(1))
    assert again == trials


def test_wrong_ones_are_found(spaces, problem):
    """The error is against the largest right result."""
    configs = [{"threads": 32, "step": 1, "mishap": "wrong"}]
    (trial,) = Predicted("NVIDIA H200").measure(spaces("MISHAPS"), problem, configs, Effort(1))
    assert (trial.status, trial.us) == ("wrong", 0.0)
    assert trial.error == pytest.approx(0.5)


@kd.kernel
def racing(x: kd.Tensor["f32", "n"]):
    """All threads write one element."""
    x[0] = kd.thread_idx()[0].to(kd.f32)


def test_hazards_refuse():
    """A candidate that the simulator finds a race in cannot win."""
    space = Space(
        "racing",
        options={"threads": (64,)},
        tensors=lambda problem: {"x": kd.spec("f32", problem.size("n"))},
        calls=lambda problem, config, a: [Call(racing[1, config["threads"]], (a["x"],))],
        reference=lambda problem, arrays: {"x": arrays["x"]},
        bound=1.0,
    )
    (trial,) = Predicted("NVIDIA H200").measure(
        space, Problem.of(n=4), [{"threads": 64}], Effort(1)
    )
    assert trial.status == "refused" and trial.reason.startswith("HazardError")


@kd.kernel
def through(x: kd.Tensor["f32", "n"], t: kd.Tensor["f32", "a b"], y: kd.Tensor["f32", "n"]):
    """y = x by way of scratch memory."""
    i = kd.thread_idx()[0]
    t[i % 8, i // 8] = x[i]
    kd.sync_threads()
    y[i] = t[i % 8, i // 8]


def test_scratch_has_its_strides():
    """Memory that one configuration needs besides the arguments, in any layout."""
    space = Space(
        "through",
        options={"pitch": (8, 11)},
        tensors=lambda problem: {name: kd.spec("f32", 64) for name in "xy"},
        scratch=lambda problem, config: {"t": kd.spec("f32", (8, 8), strides=(1, config["pitch"]))},
        calls=lambda problem, config, a: [Call(through[1, 64], (a["x"], a["t"], a["y"]))],
        reference=lambda problem, arrays: {"y": np.array(arrays["x"])},
        bound=0.0,
    )
    problem = Problem.of(n=64)
    trials = Predicted("NVIDIA H200").measure(space, problem, space.points(problem), Effort(1))
    assert [(trial.status, trial.error) for trial in trials] == [("right", 0.0)] * 2


def test_known_devices():
    """Others cannot be predicted."""
    assert Predicted("NVIDIA A100-SXM4-80GB").place().target == "sm_80"
    with pytest.raises(ArgumentError, match="NVIDIA H200") as caught:
        chip_of("a toaster")
    assert caught.value.code == "K764"
