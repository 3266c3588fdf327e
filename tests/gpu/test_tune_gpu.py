"""The tuner on a GPU: times that are plausible, candidates that break the device, a whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_runtime import driver
from kdsl_runtime.graphs import Graph
from kdsl_runtime.problem import Problem
from kdsl_runtime.streams import Stream
from kdsl_runtime.tune import (
    Budget,
    Call,
    CudaEvents,
    Effort,
    Inline,
    LocalProcesses,
    Space,
    find_best,
    load_space,
)

pytestmark = pytest.mark.gpu
SCALING = Path(__file__).parents[1] / "runtime" / "tune" / "scaling.py"
PROBLEM = Problem.of(n=1 << 22, dtype="f32")


def test_graph_replays_its_launches():
    """Recorded once without being run, then as often as it is replayed."""
    from kdsl_runtime.device_array import to_device

    space = load_space(f"{SCALING}:SPACE")
    x, y = (to_device(np.full(4096, value, np.float32)) for value in (3.0, 0.0))
    (call,) = space.calls(Problem.of(n=4096), {"threads": 32, "step": 1}, {"x": x, "y": y})
    stream = Stream()
    launch = call.launch.kernel.configure(grid=128, block=32, stream=stream.handle)
    launch(*call.args, **call.statics)
    y.write(np.zeros(4096, np.float32), stream.handle)
    graph = Graph(lambda: launch(*call.args, **call.statics), stream)
    assert not y.read(stream.handle).any()
    graph.replay()
    assert np.all(y.read(stream.handle) == 6.0)


def test_strided_accesses_are_slower():
    """32 MiB take at least what memory needs for them; the error is recorded."""
    configs = [{"threads": 64, "step": step} for step in (1, 4)]
    trials = CudaEvents().measure(load_space(f"{SCALING}:SPACE"), PROBLEM, configs, Effort(8))
    assert [(trial.status, trial.error, trial.turns) for trial in trials] == [("right", 0.0, 8)] * 2
    assert 2 < trials[0].us < 1000
    assert trials[0].low <= trials[0].us <= trials[0].high


@kd.kernel
def astray(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], far: kd.Static):
    """y = x, written `far` elements behind y."""
    i = kd.block_idx()[0] * kd.block_dim()[0] + kd.thread_idx()[0]
    y[i + far] = x[i]


def tensors(problem):
    """x and y."""
    return {name: kd.spec("f32", problem.size("n")) for name in "xy"}


def calls(problem, config, a):
    """One launch."""
    n = problem.size("n")
    return [Call(astray[n // 64, 64], (a["x"], a["y"]), {"far": config["far"]})]


def reference(problem, arrays):
    """y = x."""
    return {"y": arrays["x"]}


def test_a_candidate_that_breaks_the_device_costs_only_itself():
    """It writes 1 GiB away; the worker that ran it is replaced, and the right one wins."""
    space = load_space(f"{__file__}:ASTRAY")
    executor = LocalProcesses.of_devices([0])
    try:
        (outcome,) = find_best(
            space, [Problem.of(n=4096)], CudaEvents(), executor=executor, builders=Inline()
        )
    finally:
        executor.close()
    assert outcome.winner.config == {"far": 0}
    assert {r.trial.status for r in outcome.records} == {"right", "broken"}


ASTRAY = Space("astray", {"far": (1 << 28, 0)}, tensors, calls, reference, bound=0.0)


def test_hopper_gemm_is_tuned():
    """A short run over the Hopper GEMM: what wins is right, and later rungs were reached."""
    if driver.device(0).target != "sm_90a":
        pytest.skip("needs sm_90a")
    problem = Problem.parse("m=512,n=512,k=512,dtype=bf16")
    (outcome,) = find_best(
        load_space("kdsl_fuse.kernels.gemm_sm90_space:SPACE"), [problem], CudaEvents(),
        executor=Inline(), budget=Budget(points=6),
    )  # fmt: skip
    assert outcome.winner.rung == 2 and 1.5 < outcome.winner.trial.us < 50
