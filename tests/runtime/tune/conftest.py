"""The example space, and a back end whose times the test decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kdsl_runtime.tune import Problem, Space, Trial, load_space
from kdsl_runtime.tune.measure import Place

SCALING = Path(__file__).with_name("scaling.py")


@pytest.fixture
def spaces() -> Callable[[str], Space]:
    """A space of scaling.py by its name."""
    return lambda name: load_space(f"{SCALING}:{name}")


@pytest.fixture
def problem() -> Problem:
    """What the example is tuned for."""
    return Problem.of(n=4096, dtype="f32")


@dataclass
class Stated:
    """A back end that gives the times of a table, by (threads, step); what is not there is wrong.

    `calls` has the configurations and turns of each measurement.
    """

    us: Mapping[tuple[int, int], float]
    rungs: tuple[int, ...] = (4, 16)
    name: str = "cuda"
    calls: list[tuple[list[tuple[int, int]], int]] = field(default_factory=list)

    def place(self):
        """A device that is not here."""
        return Place("Stated", "sm_80")

    def measure(self, space, problem, configs, effort):
        """The stated times."""
        keys = [(config["threads"], config["step"]) for config in configs]
        self.calls.append((keys, effort.turns))
        return [
            Trial.timed([self.us[key]] * effort.turns, 0.0)
            if key in self.us
            else Trial("wrong", error=1.0, reason="error 1.00, allowed 0")
            for key in keys
        ]


@pytest.fixture
def stated() -> type[Stated]:
    """The back end."""
    return Stated
