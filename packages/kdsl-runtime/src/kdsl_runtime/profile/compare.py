"""Counters of the simulator beside those of the hardware: in total, and line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kdsl_core.sim import METRICS, Profile
from kdsl_runtime.profile.ncu_csv import LineCounts

Row = dict[str, Any]
EQUAL, DIFFERS, ESTIMATE, NOT_MEASURED = "equal", "differs", "estimate", "not measured"


def verdict(exact: bool, ours: float, theirs: float | None) -> str:
    """What a pair of numbers means; an estimate that is equal is "equal"."""
    if theirs is None:
        return NOT_MEASURED
    if ours == theirs:
        return EQUAL
    return DIFFERS if exact else ESTIMATE


def totals(profile: Profile, measured: Mapping[str, float]) -> list[Row]:
    """Each comparison of the table for a whole kernel, without those where both are 0.

    `measured` has ncu's metrics by name.
    """
    found = []
    for metric in METRICS:
        ours = sum(profile.totals[name] for name in metric.names)
        values = [measured[name] for name in metric.ncu if name in measured]
        theirs = sum(values) if len(values) == len(metric.ncu) else None
        if ours or theirs:
            word = verdict(metric.binds(profile.totals), ours, theirs)
            found.append({"names": metric.names, "ncu": metric.ncu, "ours": ours, "theirs": theirs,
                          "verdict": word, "why": metric.why})  # fmt: skip
    return found


def by_line(profile: Profile, measured: LineCounts) -> list[Row]:
    """The comparisons that ncu has a column for, line by line; none where it found no source."""
    if not measured:
        return []
    ours = {(Path(row.file).name, row.line): row for row in profile.lines if row.file}
    found = []
    for metric in METRICS:
        for place in sorted({*ours, *measured}) if metric.page else ():
            counts = ours[place].counts if place in ours else {}
            mine = sum(counts.get(name, 0.0) for name in metric.names)
            theirs = measured.get(place, {}).get(metric.page, 0.0)
            if mine or theirs:
                word = verdict(metric.binds_by_line(counts, profile.totals), mine, theirs)
                found.append({"file": place[0], "line": place[1], "column": metric.page,
                              "ours": mine, "theirs": theirs, "verdict": word})  # fmt: skip
    return found


def is_wrong(rows: Sequence[Row]) -> bool:
    """Whether a counter differs that must be equal."""
    return any(row["verdict"] == DIFFERS for row in rows)
