"""The counters of a run, per source line and in total."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from kdsl_core.ir.cost import Cost
from kdsl_core.ir.flat import loc_of
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass
from kdsl_core.sim.counters import Counters

COLUMNS = (
    "instructions",
    "requests",
    "sectors",
    "ideal_sectors",
    "bytes",
    "wavefronts",
    "ideal_wavefronts",
    "branches",
    "divergent_branches",
    "mma",
    "wgmma",
    "tma_boxes",
    "tma_bytes",
)
"""The columns of `str(profile)`; everything else is in `totals`."""


Row: TypeAlias = "tuple[Loc | None, Mapping[str, float]]"
"""An instruction's location, and its counters."""


@dataclass(frozen=True)
class LineCounts:
    """The counters of one source line."""

    file: str
    line: int
    counts: dict[str, float]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.counts.get(name, 0)


class Profile:
    """Counters of a run: per source line, and in total.

    Instructions count warps; requests are warp-wide global accesses; sectors are 32 bytes;
    wavefronts are passes through shared memory, `ideal_wavefronts` those without conflicts. These
    are sums over all kinds of accesses; `global_load_sectors` and its like have them apart, and
    `METRICS` lists all. What nobody looks at is not computed.
    """

    def __init__(self, rows: Callable[[], Sequence[Row]] = tuple) -> None:
        self._rows = rows

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Each instruction's location and counters, in the order of the program."""
        return tuple(self._rows())

    def __add__(self, other: Profile) -> Profile:
        """The counters of two runs together."""
        return Profile(lambda: (*self.rows, *other.rows))

    @cached_property
    def lines(self) -> tuple[LineCounts, ...]:
        """The counters of each line that has some, in file and line order."""
        return self.by(lambda loc: (loc.file, loc.line))

    def by(self, place: Callable[[Loc], tuple[str, int]]) -> tuple[LineCounts, ...]:
        """The counters summed by the (file, line) that `place` says of a location."""
        found: dict[tuple[str, int], dict[str, float]] = {}
        for loc, counts in self.rows:
            line = found.setdefault(place(loc) if loc else ("", 0), defaultdict(float))
            for name, amount in counts.items():
                line[name] += amount
        return tuple(LineCounts(*key, dict(found[key])) for key in sorted(found))

    @cached_property
    def totals(self) -> dict[str, float]:
        """Every counter, summed over the kernel; 0 for what did not happen."""
        found: dict[str, float] = defaultdict(float)
        for _, counts in self.rows:
            for name, amount in counts.items():
                found[name] += amount
        return found

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts beyond those that conflict-free accesses would take."""
        return int(self.totals["wavefronts"] - self.totals["ideal_wavefronts"])

    @property
    def sector_efficiency(self) -> float:
        """Least sectors for the distinct bytes asked for ÷ sectors moved; 1 for no traffic."""
        moved = self.totals["sectors"]
        return self.totals["ideal_sectors"] / moved if moved else 1.0

    def at(self, line: int) -> dict[str, float]:
        """The summed counters of a line number, over files."""
        found: dict[str, float] = defaultdict(float)
        for row in self.lines:
            if row.line == line:
                for name, amount in row.counts.items():
                    found[name] += amount
        return found

    def __str__(self) -> str:
        used = [name for name in COLUMNS if self.totals[name]]
        rows = [["line", *(name.replace("_", " ") for name in used)]]
        for line in self.lines:
            where = f"{os.path.basename(line.file)}:{line.line}" if line.file else "(no line)"
            rows.append([where, *(_number(line.counts.get(name, 0)) for name in used)])
        rows.append(["total", *(_number(self.totals[name]) for name in used)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            ).rstrip()
            for row in rows
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def profile_of(counters: Counters, costs: Callable[[], Sequence[Cost]] | None = None) -> Profile:
    """What was counted, and what executing each instruction costs."""
    return Profile(lambda: tuple(_rows(counters, costs() if costs else None)))


def _rows(counters: Counters, costs: Sequence[Cost] | None) -> Iterator[Row]:
    for index, instruction in enumerate(counters.instructions):
        counts: dict[str, float] = defaultdict(float)
        for what, amount in counters.counts[index].items():
            if isinstance(what, tuple):
                counts["_".join(what)] += amount
                if not what[0].startswith("cluster"):  # the sums are those of global memory
                    counts[what[1]] += amount
            else:
                counts[what] += amount
        warps = counters.steps[index]
        if warps:
            counts["instructions"] = warps
            counts["threads"] = warps * 32 - counters.idle[index]
        if warps and costs is not None:
            for name, each in costs[index].warp.items():
                counts[name] += each * warps
            for name, each in costs[index].lane.items():
                counts[name] += each * counts["threads"]
        if counts:
            yield loc_of(instruction), counts
    if counters.footprint is not None:
        read, written = counters.footprint.bytes_read, counters.footprint.bytes_written
        yield None, {"footprint_read_bytes": read, "footprint_written_bytes": written}
