"""What the first page shows: kernels on devices over commits, and where they became worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import findings
from findings import Finding
from records import Record, Shape, best_peer, geomean, known_at, last_of_each, ratio

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Regression:
    """A finding, and the commit at which it came."""

    commit: str
    finding: Finding

    def within(self, name: str) -> str:
        """The regression in words, for a place that names the subject, or its first part."""
        what = self.finding.subject.removeprefix(name).strip() or self.finding.figure
        return f"{self.commit[:8]}: {what} {self.finding.growth}"


@dataclass(frozen=True)
class Kernel:
    """A kernel on a device: ratios to the best peer, commit by commit, and the last shapes.

    A ratio above 1 says that kdsl is faster; `geomeans` are of all shapes of a record.
    """

    name: str
    device: str
    commits: tuple[str, ...]
    geomeans: tuple[float, ...]
    shapes: tuple[Shape, ...]
    last_regression: Regression | None

    @property
    def worst(self) -> float:
        """The least ratio of the last record."""
        return min(filter(None, map(ratio, self.shapes)), default=float("nan"))

    @property
    def peers(self) -> list[str]:
        """The programs that are the best peer of some shape."""
        found = [peer[0] for shape in self.shapes if (peer := best_peer(shape))]
        return sorted(set(found), key=lambda name: -found.count(name))


def measured(kept: Iterable[Record], commits: Sequence[str]) -> dict[str, str]:
    """When, of which commit and with what each device was measured last, in words."""
    found = {}
    for record in known_at(kept, commits):
        content = record.content
        tools = (f"{name} {version}" for name, version in content.get("toolchain", {}).items())
        day = str(content.get("date", ""))[:10]
        words = f"{day} commit {record.commit[:10]}".strip(), f"driver {content['driver']}", *tools
        found[record.device] = f"Last measured: {', '.join(words)}"
    return found


def kernels(kept: Iterable[Record], commits: Sequence[str]) -> list[Kernel]:
    """Every kernel on every device of the records; `commits` are newest first."""
    known = known_at(kept, commits)
    pairs = dict.fromkeys((s["kernel"], r.device) for r in known for s in r.shapes)
    return [_kernel(name, device, known) for name, device in pairs]


def _kernel(name: str, device: str, known: Sequence[Record]) -> Kernel:
    of_device = [record for record in known if record.device == device]
    of_it = []
    for i, record in enumerate(of_device, 1):
        if any(s["kernel"] == name for s in record.shapes):
            shapes = [s for s in last_of_each(of_device[:i]) if s["kernel"] == name]
            of_it.append((record.commit, shapes))
    last = None
    for (_, before), (commit, after) in pairwise(of_it):
        for finding in findings.of_shapes(device, before, after):
            last = Regression(commit, finding)
    return Kernel(
        name, device, tuple(commit for commit, _ in of_it),
        tuple(geomean(filter(None, map(ratio, shapes))) for _, shapes in of_it),
        tuple(of_it[-1][1]), last,
    )  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A subject of `facts.py`: its last figures, one of them over commits."""

    name: str
    figures: Mapping[str, float]
    course: tuple[float, ...]
    last_regression: Regression | None


COURSE = "sass_instructions"


def subjects(collected: Sequence[tuple[str, Facts]]) -> Iterator[Subject]:
    """Every subject of the last commit's facts; commits oldest first."""
    if not collected:
        return
    last: dict[str, Regression] = {}
    for (_, before), (commit, after) in pairwise(collected):
        last |= {f.subject: Regression(commit, f) for f in findings.of_facts(before, after)}
    for name, figures in collected[-1][1]["subjects"].items():
        course = [f["subjects"].get(name, {}).get(COURSE) for _, f in collected]
        yield Subject(name, figures, tuple(n for n in course if n is not None), last.get(name))
