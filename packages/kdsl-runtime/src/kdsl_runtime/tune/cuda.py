"""The back end on a GPU: CUDA graphs on rotating buffers, timed by events, replayed by turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kdsl_core.errors import DriverError, KdslError
from kdsl_core.lang.spec import ArraySpec
from kdsl_runtime import driver
from kdsl_runtime.arrays import ArrayInfo
from kdsl_runtime.device_array import DeviceArray, to_device
from kdsl_runtime.dispatch import Config
from kdsl_runtime.graphs import Graph
from kdsl_runtime.problem import Problem
from kdsl_runtime.streams import Event, Stream
from kdsl_runtime.tune.candidate import Workload, run, workload
from kdsl_runtime.tune.measure import REFUSED, Effort, Place, Trial
from kdsl_runtime.tune.space import Call, Space, brief

FEWEST_SETS = 3
L2_TIMES = 3  # all sets of buffers together, against the L2 cache
LEAST_US = 250.0  # of a graph, against the 0.5 µs of an event
LONG_US = 3000.0  # against the 10 µs in which the host enqueues a graph
FEWEST_TURNS = 3
SOAK_SECONDS = 0.3  # until the chip's clock has settled


@dataclass(frozen=True)
class CudaEvents:
    """Measurements on device `index` of the process that measures."""

    index: int = 0
    rungs: tuple[int, ...] = (4, 16, 64)

    name = "cuda"

    def place(self) -> Place:
        device = driver.device(self.index)
        return Place(device.name, device.target)

    def measure(
        self, space: Space, problem: Problem, configs: Sequence[Config], effort: Effort
    ) -> list[Trial]:
        bench = Bench(space, problem, self.index)
        found = [bench.prepared(config) for config in configs]
        sides = [side for side in found if isinstance(side, Side)]
        if effort.turns > self.rungs[0]:
            soak(sides)
        times = interleaved(sides, effort)
        trials = (Trial.timed(*pair) for pair in zip(times, (s.error for s in sides), strict=True))
        return [next(trials) if isinstance(side, Side) else side for side in found]


@dataclass(frozen=True)
class Side:
    """A right candidate as a graph of `launches` launches, and its error."""

    graph: Graph
    launches: int
    error: float = 0.0
    lead_in: bool = True

    def us(self) -> float:
        """Microseconds of one launch in one replay.

        With `lead_in` an untimed replay goes ahead: meanwhile the host enqueues the timed one.
        """
        stream, index = self.graph.stream.handle, self.graph.index
        begin, end = Event(index), Event(index)
        if self.lead_in:
            self.graph.replay()
        begin.record(stream)
        self.graph.replay()
        end.record(stream)
        end.wait()
        return 1e3 * end.milliseconds_since(begin) / self.launches


class Bench:
    """A problem's arguments on a device, so many times that the L2 cache forgets each set."""

    def __init__(self, space: Space, problem: Problem, index: int) -> None:
        self.space, self.problem, self.index = space, problem, index
        self.work = workload(space, problem)
        self.stream = Stream(index)
        once = sum(array.nbytes for array in self.work.arrays.values())
        count = max(FEWEST_SETS, -(-L2_TIMES * l2_bytes(index) // once))
        self.sets = [copied(self.work, index) for _ in range(count)]

    def prepared(self, config: Config) -> Side | Trial:
        """A candidate that was seen to be right, ready to be timed; or what else it is.

        Raises: DriverError.
        """
        try:
            calls = self._calls(config)
            error = self._error(calls[0])
            return Trial.judged(error, self.space.bound) or self._side(calls, error)
        except DriverError:
            raise
        except KdslError as refusal:
            return Trial(REFUSED, reason=brief(refusal))

    def _calls(self, config: Config) -> list[Sequence[Call]]:
        """The candidate's launches for each set of buffers, on this bench's stream."""
        specs = self.space.scratch(self.problem, config)
        scratch = {name: View.of(spec, self.index) for name, spec in specs.items()}
        return [
            [
                replace(call, launch=call.launch.on(self.stream.handle))
                for call in self.space.calls(self.problem, config, {**arrays, **scratch})
            ]
            for arrays in self.sets
        ]

    def _error(self, calls: Sequence[Call]) -> float:
        """The error of one run on the first set of buffers, which is written anew before."""
        arrays, stream = self.sets[0], self.stream.handle
        for name, values in self.work.arrays.items():
            arrays[name].write(values, stream)
        run(calls)
        return self.work.error({name: arrays[name].read(stream) for name in self.work.expected})

    def _side(self, calls: Sequence[Sequence[Call]], error: float) -> Side:
        """A graph that uses every set alike and is long against the timer's resolution."""
        sets = len(calls)
        for each in calls:  # what a first launch loads and encodes
            run(each)
        self.stream.wait()
        once = Side(self._graph(calls, 1), sets)
        us = once.us() * sets
        rounds = int(-(-LEAST_US // us))
        graph = once.graph if rounds <= 1 else self._graph(calls, rounds)
        return Side(graph, sets * max(rounds, 1), error, lead_in=us < LONG_US)

    def _graph(self, calls: Sequence[Sequence[Call]], rounds: int) -> Graph:
        def enqueue() -> None:
            for _ in range(rounds):
                for each in calls:
                    run(each)

        return Graph(enqueue, self.stream, self.index)


@dataclass(frozen=True)
class View:
    """Memory seen with strides of its own."""

    memory: DeviceArray
    spec: ArraySpec

    @classmethod
    def of(cls, spec: ArraySpec, index: int) -> View:
        """New memory for an array described by a spec."""
        size = 1 + sum((n - 1) * step for n, step in zip(spec.shape, spec.strides, strict=True))
        return cls(DeviceArray((size,), spec.dtype, index), spec)

    def __kdsl_array__(self) -> ArrayInfo:
        """Where and what this array is, for a launch."""
        info = self.memory.__kdsl_array__()
        return replace(info, shape=self.spec.shape, strides=self.spec.strides)


def copied(work: Workload, index: int) -> dict[str, DeviceArray]:
    """A problem's arguments on a device."""
    return {
        name: to_device(array, index, dtype=work.specs[name].dtype)
        for name, array in work.arrays.items()
    }


def l2_bytes(index: int) -> int:
    """Size of a device's L2 cache."""
    attribute = driver.require_driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    return int(driver.call("cuDeviceGetAttribute", attribute, driver.call("cuDeviceGet", index)))


def soak(sides: Sequence[Side]) -> None:
    """Keep the chip busy until its clock has settled."""
    end = time.monotonic() + SOAK_SECONDS
    while sides and time.monotonic() < end:
        for side in sides:
            side.us()


def interleaved(sides: Sequence[Side], effort: Effort) -> list[list[float]]:
    """Microseconds of each side in each turn, replayed A B A B …; a few turns at least."""
    end = time.monotonic() + effort.seconds
    by_turn: list[list[float]] = []
    while len(by_turn) < effort.turns:
        if len(by_turn) >= FEWEST_TURNS and time.monotonic() > end:
            break
        by_turn.append([side.us() for side in sides])
    return [list(samples) for samples in zip(*by_turn, strict=True)]
