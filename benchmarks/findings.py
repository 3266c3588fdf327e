"""What the gate finds between two commits, and how it says so. Pure: no process, no clock.

Which growth is a regression is `kdsl_runtime.pins.limits`, as for `kdsl check`.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kdsl_runtime.pins.limits import SLOWER, Measured, compared

Facts = Mapping[str, Any]
BROKEN = "build"


@dataclass(frozen=True)
class Finding:
    """A figure that is worse beyond its limit; `before` and `after` are texts where it is none."""

    subject: str
    figure: str
    before: Any
    after: Any
    limit: str

    @property
    def growth(self) -> str:
        """In percent, where there was something."""
        if not isinstance(self.before, (int, float)) or not self.before:
            return "new"
        return f"{self.after / self.before - 1:+.1%}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        return (
            self.subject, self.figure, _text(self.before), _text(self.after), self.growth,
            self.limit,
        )  # fmt: skip


# -- figures that never vary -----------------------------------------------------------------------
def of_facts(before: Facts, after: Facts) -> Iterator[Finding]:
    """Figures of `facts.py` beyond their limits, and subjects that cannot be had any more."""
    for subject, problem in after["problems"].items():
        was = "built" if subject in before["subjects"] else "new"
        yield Finding(subject, BROKEN, was, problem.splitlines()[0], "none")
    for subject, figures in before["subjects"].items():
        for change in compared(figures, after["subjects"].get(subject, {})):
            if change.regression:
                yield Finding(subject, change.name, change.before, change.after, str(change.limit))


def better(before: Facts, after: Facts) -> list[str]:
    """Figures that would be regressions the other way round."""
    back = of_facts({**after, "problems": {}}, {**before, "problems": {}})
    return [f"{f.subject}: {f.figure} {_text(f.after)} → {_text(f.before)}" for f in back]


def news(before: Facts, after: Facts) -> list[str]:
    """Subjects that only one side has."""
    here, there = before["subjects"], after["subjects"]
    added = [f"new: {name}" for name in there if name not in here]
    gone = [f"gone: {name}" for name in here if name not in {**there, **after["problems"]}]
    unlisted = [f"no row in kernels.py: {name}" for name in after.get("without_row", ())]
    return added + gone + unlisted


# -- figures that vary -----------------------------------------------------------------------------
def of_times(step: str, before: Sequence[float], after: Sequence[float]) -> Finding | None:
    """A step that takes longer, beyond what pairs of runs, taken by turns, differ by.

    The noise is four standard errors of the median of the logarithms of the pairs' ratios, from
    their median absolute deviation, and `SLOWER` at least.
    """
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(x - middle) for x in logs)
    noise = math.expm1(4 * 1.2533 * deviation / math.sqrt(len(logs)))
    limit = max(noise, SLOWER)
    if math.expm1(middle) <= limit:
        return None
    old, new = 1e3 * statistics.median(before), 1e3 * statistics.median(before) * math.exp(middle)
    return Finding(step, "CPU ms", old, new, f"+{limit:.1%}")


def of_shapes(
    device: str, before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Shapes of two records of a device that take longer, beyond 3 % and beyond both spreads."""
    old = _ours(before)
    for name, new in _ours(after).items():
        if name in old and new.slower_than(old[name]):
            limit = f"+{SLOWER:.0%} and ±{old[name].spread_us + new.spread_us:.3g} µs"
            yield Finding(name, f"µs on {device}", old[name].us, new.us, limit)


def _ours(shapes: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    sides = ((f"{s['kernel']} {s['shape']}", s["sides"].get("kdsl")) for s in shapes)
    return {name: Measured(side["us"], side["spread_us"]) for name, side in sides if side}


# -- what was accepted -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Accepted:
    """A growth that somebody had a reason for: figures by patterns, up to a number."""

    subject: str
    figure: str
    up_to: float
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is accepted."""
        named = fnmatchcase(finding.subject, self.subject) and finding.figure == self.figure
        return named and isinstance(finding.after, (int, float)) and finding.after <= self.up_to


def accepted_in(path: Path) -> list[Accepted]:
    """The rows of `accepted.toml`; none without the file.

    Raises: TypeError for a row with other names, tomllib.TOMLDecodeError.
    """
    if not path.exists():
        return []
    return [Accepted(**row) for row in tomllib.loads(path.read_text()).get("accepted", ())]


def sorted_out(
    found: Iterable[Finding], accepted: Sequence[Accepted]
) -> tuple[list[Finding], list[tuple[Finding, Accepted]]]:
    """Findings that count, and those that were accepted, each with its row."""
    counted, excused = [], []
    for finding in found:
        row = next((row for row in accepted if row.covers(finding)), None)
        if row is None:
            counted.append(finding)
        else:
            excused.append((finding, row))
    return counted, excused


# -- the table -------------------------------------------------------------------------------------
TITLES = ("subject", "figure", "before", "after", "change", "limit")


def table(findings: Sequence[Finding]) -> str:
    """One line a finding, columns aligned; numbers to the right."""
    rows = [TITLES, *(finding.cells for finding in findings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 1 < i < len(TITLES) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _text(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)[:60]
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
