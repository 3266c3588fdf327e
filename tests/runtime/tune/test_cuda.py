"""Measuring by graphs and events, with a driver that runs on the host and states the time."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError, DriverError
from kdsl_runtime import driver, graphs, streams
from kdsl_runtime.graphs import Graph
from kdsl_runtime.problem import Problem
from kdsl_runtime.streams import Stream
from kdsl_runtime.tune import Call, CudaEvents, Effort, Space
from kdsl_runtime.tune import cuda as cuda_backend

PATH = Path(__file__).with_name("host_driver.py")
PROBLEM = Problem.of(n=64)


@pytest.fixture
def host(monkeypatch) -> Any:
    """The driver of this test."""
    spec = importlib.util.spec_from_file_location("host_driver", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "host_driver", module)
    spec.loader.exec_module(module)
    host = module.HostDriver()
    monkeypatch.setattr(driver, "require_driver", lambda: host)
    for holder in (graphs, streams):
        monkeypatch.setattr(holder, "require_driver", lambda: host)
    monkeypatch.setattr(driver, "_contexts", {})
    monkeypatch.setattr(cuda_backend, "SOAK_SECONDS", 0.0)
    driver.device.cache_clear()
    yield host
    driver.device.cache_clear()


@dataclass(frozen=True)
class Doubling:
    """Stands for a kernel's launch: y = 2·x on the host's driver, in `us`."""

    host: Any
    us: float
    right: bool = True
    stream: int | None = None

    def on(self, stream):
        """The same on a stream."""
        return replace(self, stream=stream)

    def __call__(self, x, y) -> None:
        """Put it on the stream."""
        assert self.stream == 7
        if math.isnan(self.us):
            raise ArgumentError("this launch fits nothing", code="K621")
        source, goal = (a.__kdsl_array__() for a in (x, y))

        def work() -> None:
            size = source.shape[0] * 4
            values = np.frombuffer(ctypes.string_at(source.pointer, size), np.float32)
            result = (values * (2 if self.right else 3)).tobytes()
            ctypes.memmove(goal.pointer, result, size)
            self.host.clock_us += self.us

        self.host.enqueue(work)


def space_of(host: Any, **more: Any) -> Space:
    """A space whose configurations say how long they take, and whether they are right."""
    return Space(
        "doubling",
        options={"us": (10.0,), "right": (True,)},
        tensors=lambda problem: {name: kd.spec("f32", problem.size("n")) for name in "xy"},
        calls=lambda problem, config, a: [
            Call(Doubling(host, config["us"], config["right"]), (a["x"], a["y"]))
        ],
        reference=lambda problem, arrays: {"y": 2 * arrays["x"]},
        bound=1e-6,
        **more,
    )


def configs(*given: float | tuple[float, bool]) -> list[dict[str, Any]]:
    """Configurations by their microseconds."""
    pairs = [g if isinstance(g, tuple) else (g, True) for g in given]
    return [{"us": us, "right": right} for us, right in pairs]


def test_times_are_those_of_one_launch(host):
    """Median of all turns, the error recorded, for several candidates by turns."""
    trials = CudaEvents().measure(space_of(host), PROBLEM, configs(10.0, 20.0), Effort(5))
    assert [trial.us for trial in trials] == [pytest.approx(10.0), pytest.approx(20.0)]
    assert [(trial.status, trial.turns, trial.error) for trial in trials] == [("right", 5, 0.0)] * 2
    replays = [line for line in host.log if line.startswith("replayed")]
    assert replays[-10:] == ["replayed 0", "replayed 1"] * 5


def test_graphs_use_every_buffer_and_last_long(host):
    """Three times L2 in buffers: 384 sets of 512 bytes; 250 µs at least, by whole rounds."""
    CudaEvents().measure(space_of(host), PROBLEM, configs(0.1), Effort(1))
    sets = 3 * (1 << 16) // 512
    assert [line for line in host.log if line.startswith("captured")] == [
        f"captured {sets}", f"captured {sets * math.ceil(250 / (0.1 * sets))}",
    ]  # fmt: skip
    assert CudaEvents().place().device == "Host" and CudaEvents().place().target == "sm_90a"


def test_long_graphs_have_no_lead_in(host):
    """A replay of three milliseconds hides the host's work by itself."""
    CudaEvents().measure(space_of(host), PROBLEM, configs(100.0), Effort(4))
    assert host.log.count("replayed 0") == 2 + 4
    assert host.log[-1] == "destroyed"


def test_wrong_and_refused_ones_are_not_timed(host):
    """The others are, in their places."""
    found = CudaEvents().measure(
        space_of(host), PROBLEM, configs((1.0, False), 5.0, math.nan), Effort(3)
    )
    assert [trial.status for trial in found] == ["wrong", "right", "refused"]
    assert found[0].error == pytest.approx(0.5)
    assert found[2].reason == "ArgumentError[K621]: this launch fits nothing"


def test_a_lost_device_ends_the_measurement(host):
    """Nothing that such a process says later can be trusted."""
    host.fails = "cuGraphLaunch"
    with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
        CudaEvents().measure(space_of(host), PROBLEM, configs(1.0), Effort(1))


def test_time_limits_turns(host, monkeypatch):
    """A few turns at least, whatever the time."""
    (trial,) = CudaEvents().measure(space_of(host), PROBLEM, configs(9.0), Effort(50, seconds=0.0))
    assert trial.turns == cuda_backend.FEWEST_TURNS


def test_scratch_memory_has_its_strides(host):
    """One piece for all buffer sets, seen as described."""
    seen = []

    def calls(problem, config, a):
        seen.append(a["t"].__kdsl_array__())
        return [Call(Doubling(host, 1.0), (a["x"], a["y"]))]

    scratch = {"t": kd.spec("f32", (4, 3), strides=(1, 7))}
    space = Space(
        "scratching", options={"us": (1.0,)}, calls=calls,
        scratch=lambda problem, config: scratch, bound=0.0,
        tensors=lambda problem: {name: kd.spec("f32", problem.size("n")) for name in "xy"},
        reference=lambda problem, arrays: {"y": 2 * arrays["x"]},
    )  # fmt: skip
    (trial,) = CudaEvents().measure(space, PROBLEM, [{"us": 1.0}], Effort(1))
    assert trial.status == "right"
    assert {(info.pointer, info.shape, info.strides) for info in seen} == {
        (seen[0].pointer, (4, 3), (1, 7))
    }


def test_capture_ends_when_its_work_fails(host):
    """The stream is usable again, and the error is the work's own."""

    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Graph(fails, Stream())
    assert host.capture is None
