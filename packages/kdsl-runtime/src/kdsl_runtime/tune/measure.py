"""What a back end of the tuner does, and what it finds out about one candidate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune.space import Space

RIGHT, WRONG, REFUSED, BROKEN = "right", "wrong", "refused", "broken"


@dataclass(frozen=True)
class Trial:
    """What one run of a candidate showed.

    `status` is "right" (it has times), "wrong" (its results are out of bound), "refused" (it could
    not be built or launched) or "broken" (its process died or hung, or the device failed).
    `error` is the largest difference from the reference, against its largest element.

    Units: microseconds of one run of all launches: median, 10th and 90th percentile.
    """

    status: str
    us: float = 0.0
    low: float = 0.0
    high: float = 0.0
    turns: int = 0
    error: float | None = None
    reason: str = ""

    @classmethod
    def timed(cls, samples: Sequence[float], error: float) -> Trial:
        """Of a right candidate, from microseconds."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
        return cls(RIGHT, statistics.median(ordered), low, high, len(ordered), error)

    @classmethod
    def judged(cls, error: float, bound: float) -> Trial | None:
        """Of a candidate whose error is out of bound; None if it is not."""
        if error <= bound:
            return None
        return cls(WRONG, error=error, reason=f"error {error:.2e}, allowed {bound:.2e}")


@dataclass(frozen=True)
class Place:
    """A device by the name that its driver gives it, and what code for it is written for."""

    device: str
    target: str


@dataclass(frozen=True)
class Effort:
    """How much a measurement may take: at most so many turns, and fewer when `seconds` are over."""

    turns: int
    seconds: float = math.inf


class Backend(Protocol):
    """A way to find out how long candidates take. It is sent to the process that measures."""

    @property
    def name(self) -> str:
        """ "cuda" for measurements, "predicted" for predictions."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Turns of each rung of successive halving, the quick look at all candidates first."""

    def place(self) -> Place:
        """The device that it speaks of.

        Raises: DriverError, ArgumentError when there is none.
        """

    def measure(
        self, space: Space, problem: Problem, configs: Sequence[Config], effort: Effort
    ) -> list[Trial]:
        """Run candidates, check their results, and time the right ones by turns: A B A B …

        Raises: DriverError when the device failed; the process must then be given up.
        """
