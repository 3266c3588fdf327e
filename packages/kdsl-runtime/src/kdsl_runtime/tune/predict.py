"""The back end for machines without a GPU: the simulator's counters put through a roofline.

It orders candidates by what they move and issue. It knows no latency and no tensor-core rate, so
its microseconds are a lower bound, and its choices a first guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kdsl_core.errors import KdslError
from kdsl_core.lang.launch import extent
from kdsl_core.lang.simulate import simulate
from kdsl_core.lang.spec import ArraySpec
from kdsl_runtime.dispatch import PREDICTED, Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune.candidate import workload
from kdsl_runtime.tune.chips import Chip, chip_of
from kdsl_runtime.tune.measure import REFUSED, Effort, Place, Trial
from kdsl_runtime.tune.space import Call, Space, brief

LAUNCH_US = 2.0
_SECTOR_BYTES = 32
_WARPS_PER_CYCLE = 4  # that a multiprocessor issues instructions of
_WAVEFRONTS_PER_CYCLE = 1  # through the shared memory of a multiprocessor


@dataclass(frozen=True)
class Predicted:
    """Predictions for the device of that name (`tune/chips.py` lists them). Deterministic.

    Raises: ArgumentError K764 for an unknown device.
    """

    device: str

    name = PREDICTED
    rungs = (1,)

    def __post_init__(self) -> None:
        chip_of(self.device)

    def place(self) -> Place:
        return Place(self.device, chip_of(self.device).target)

    def measure(
        self, space: Space, problem: Problem, configs: Sequence[Config], effort: Effort
    ) -> list[Trial]:
        return [self._predict(space, problem, config) for config in configs]

    def _predict(self, space: Space, problem: Problem, config: Config) -> Trial:
        work = workload(space, problem)
        scratch = {name: _empty(spec) for name, spec in space.scratch(problem, config).items()}
        arrays = {**work.copies(), **scratch}
        try:
            calls = space.calls(problem, config, arrays)
            us = sum(_simulated_us(call, chip_of(self.device)) for call in calls)
        except KdslError as error:
            return Trial(REFUSED, reason=brief(error))
        error_found = work.error(arrays)
        return Trial.judged(error_found, space.bound) or Trial.timed([us], error_found)


def roofline_us(counters: Mapping[str, float], blocks: int, chip: Chip) -> float:
    """Microseconds of a launch whose simulation counted `counters`: of its busiest resource.

    Blocks are dealt out evenly: what a multiprocessor issues and moves through shared memory takes
    as many rounds as the fullest one has blocks.
    """
    rounds = -(-blocks // chip.multiprocessors)
    issue = counters.get("instructions", 0) / _WARPS_PER_CYCLE
    shared = counters.get("wavefronts", 0) / _WAVEFRONTS_PER_CYCLE
    inside = max(issue, shared) / blocks * rounds / chip.clock_hz
    memory = counters.get("sectors", 0) * _SECTOR_BYTES / chip.memory_bytes_per_s
    return LAUNCH_US + 1e6 * max(inside, memory)


def _simulated_us(call: Call, chip: Chip) -> float:
    launch = call.launch
    grid = launch.grid(*call.args, **call.statics) if callable(launch.grid) else launch.grid
    found = simulate(
        launch.kernel,
        grid=grid,
        block=launch.block,
        cluster=launch.cluster,
        args=call.args,
        kwargs=call.statics,
        numerics="fast",
    )
    blocks = int(np.prod(extent(grid, "grid")))
    return roofline_us(found.profile.totals, blocks, chip)


def _empty(spec: ArraySpec) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """An array with the strides of a spec."""
    item = spec.dtype.bytes
    size = 1 + sum((n - 1) * step for n, step in zip(spec.shape, spec.strides, strict=True))
    steps = [step * item for step in spec.strides]
    return np.ndarray(spec.shape, spec.dtype.numpy, bytearray(size * item), 0, steps)
