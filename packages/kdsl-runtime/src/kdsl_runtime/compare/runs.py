"""Runs of a kernel on recorded arguments: in the simulator in several orders, or on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdsl_core.errors import HazardError
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.simulate import simulate
from kdsl_core.sim import Hazard
from kdsl_core.sim.writers import Writers
from kdsl_core.testing.copies import copied
from kdsl_runtime.compare.recording import Array, Recording

Stated = Callable[[Mapping[str, Any]], dict[str, Any]]
"""The launch, as keyword arguments of kd.simulate, for arguments by name."""


@dataclass(frozen=True)
class Runs:
    """What a kernel left in its outputs, by the name of the run.

    `hazards` and `writers` are those of the simulator; `writers` is None where it did not finish.
    """

    outputs: Mapping[str, Mapping[str, Array]]
    hazards: tuple[Hazard, ...] = ()
    writers: Writers | None = None

    def of(self, name: str) -> dict[str, Array]:
        """The runs of one output."""
        return {run: outputs[name] for run, outputs in self.outputs.items()}


def simulated(
    kernel: KernelFunction, stated: Stated, recording: Recording, seeds: Iterable[int]
) -> Runs:
    """Runs in linear order and in one shuffled order for each seed, with every check."""
    outputs: dict[str, dict[str, Array]] = {}
    hazards: dict[tuple[Any, ...], Hazard] = {}
    writers = None
    orders: dict[str, dict[str, Any]] = {"the simulator": {}}
    orders |= {f"order {seed}": {"order": "shuffle", "seed": seed} for seed in seeds}
    for run, order in orders.items():
        arguments = copied(dict(recording.arguments))
        try:
            done = simulate(
                kernel, **stated(arguments), **order, on_hazard="collect", writers=not outputs
            )
            found = done.hazards
            outputs[run] = {name: arguments[name] for name in recording.outputs}
            writers = writers or done.writers
        except HazardError as error:
            hazard = getattr(error, "hazard", None)
            found = (hazard,) if isinstance(hazard, Hazard) else ()
        hazards |= {(hazard.code, hazard.loc, hazard.other_loc): hazard for hazard in found}
    return Runs(outputs, tuple(hazards.values()), writers)


def on_gpu(kernel: KernelFunction, stated: Stated, recording: Recording, count: int) -> Runs:
    """So many launches on the first GPU, each on arrays of its own.

    Raises: KdslError of the build or of the driver.
    """
    from kdsl_runtime.device_copy import DeviceCopy

    outputs = {}
    for number in range(count):
        launch = stated(recording.arguments)
        held = {id(x): DeviceCopy(x) for x in _arrays(launch)}
        sizes = {key: launch[key] for key in ("grid", "block", "cluster") if key in launch}
        kwargs = {name: held.get(id(x), x) for name, x in launch.get("kwargs", {}).items()}
        kernel.configure(**sizes)(*[held.get(id(x), x) for x in launch["args"]], **kwargs)
        outputs[f"launch {number + 1}"] = {
            name: held[id(recording.arguments[name])].read() for name in recording.outputs
        }
    return Runs(outputs)


def _arrays(launch: Mapping[str, Any]) -> list[Array]:
    values = (*launch["args"], *launch.get("kwargs", {}).values())
    return [value for value in values if isinstance(value, np.ndarray)]
