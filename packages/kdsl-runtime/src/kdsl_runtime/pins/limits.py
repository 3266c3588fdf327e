"""How much a kernel may come to cost: the one comparison of `kdsl check` and of kdsl's own gate."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple


class Severity(enum.IntEnum):
    """How much a change matters; the number is the exit code of `kdsl check`."""

    CONTAINER = 3
    BINARY = 4
    RESOURCES = 5
    PERFORMANCE = 6
    SPILLS = 7
    NUMERICS = 8
    BROKEN = 9

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Limit:
    """Figures by a pattern of names, and the growth of them that is a regression.

    Units: `growth` as a part of what was; None where no growth is one by itself. With `of_less`,
    less is worse.
    """

    names: str
    severity: Severity
    growth: float | None
    of_less: bool = False

    def __str__(self) -> str:
        if self.growth is None:
            return "none"
        if self.growth:
            return f"+{self.growth:.0%}"
        return "no less" if self.of_less else "no more"

    def exceeded(self, before: float, after: float) -> bool:
        """Whether it is a regression."""
        if self.growth is None:
            return False
        if self.of_less:
            return after < before * (1 - self.growth)
        return after > before * (1 + self.growth)


LIMITS = (
    Limit("spill_bytes", Severity.SPILLS, 0.0),
    Limit("stack_bytes", Severity.RESOURCES, 0.0),
    # Registers and shared memory matter where fewer blocks fit.
    Limit("blocks_per_sm", Severity.RESOURCES, 0.0, of_less=True),
    Limit("registers", Severity.RESOURCES, None),
    Limit("shared_bytes", Severity.RESOURCES, None),
    Limit("ptx_instructions", Severity.BINARY, 0.03),
    Limit("sass_instructions", Severity.BINARY, 0.03),
    Limit("ptx_*", Severity.BINARY, None),
    Limit("sass_*", Severity.BINARY, None),
    Limit("run_instructions", Severity.PERFORMANCE, 0.03),
    Limit("run_ideal_*", Severity.PERFORMANCE, None),
    Limit("run_sectors", Severity.PERFORMANCE, 0.01),
    Limit("run_wavefronts", Severity.PERFORMANCE, 0.01),
    Limit("roofline_us", Severity.PERFORMANCE, 0.01),
    Limit("calls_*", Severity.PERFORMANCE, 0.03),  # Python's function calls
    Limit("*", Severity.PERFORMANCE, 0.0),  # counters that are always the same
)
"""The first whose pattern fits a figure is its limit."""

SLOWER = 0.03  # of a measured time, beyond what repetitions differ by


class FigureChange(NamedTuple):
    """A figure that is not what it was."""

    name: str
    before: float
    after: float
    limit: Limit

    @property
    def regression(self) -> bool:
        """Whether it grew beyond its limit."""
        return self.limit.exceeded(self.before, self.after)


def limit_of(name: str) -> Limit:
    """The limit of a figure."""
    return next(limit for limit in LIMITS if fnmatchcase(name, limit.names))


def compared(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[FigureChange]:
    """Every figure that both have and that changed, in the order of `before`."""
    for name, old in before.items():
        if (new := after.get(name, old)) != old:
            yield FigureChange(name, old, new, limit_of(name))


@dataclass(frozen=True)
class Measured:
    """Throughput on one device. Units: `us` per launch, `spread_us` how far repetitions differ."""

    us: float
    spread_us: float

    def differs(self, other: Measured) -> bool:
        """Whether two measurements differ by more than both spreads."""
        return abs(self.us - other.us) > self.spread_us + other.spread_us

    def slower_than(self, before: Measured) -> bool:
        """Whether it is a regression: beyond the spreads and beyond `SLOWER`."""
        return self.differs(before) and self.us > before.us * (1 + SLOWER)
