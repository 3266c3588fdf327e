"""The work of `kdsl profile`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.simulate import simulate
from kdsl_runtime import driver
from kdsl_runtime.cli_report import console
from kdsl_runtime.profile import compare, ncu
from kdsl_runtime.profile.ncu_csv import LineCounts
from kdsl_runtime.profile.single import chosen

_SAMPLES = "# Samples"


@dataclass(frozen=True)
class Profiled:
    """One launch: rows of `compare`, and of each line how often a warp was found there.

    Units: `ns` is the kernel's duration in nanoseconds; None where ncu did not measure it.
    """

    kernel: str
    device: str
    ns: float | None
    totals: list[compare.Row]
    lines: list[compare.Row]
    samples: Mapping[tuple[str, int], float]
    text: Mapping[tuple[str, int], str]

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        samples = [{"file": f, "line": n, "samples": s} for (f, n), s in self.samples.items()]
        return {"kernel": self.kernel, "device": self.device, "ns": self.ns,
                "totals": self.totals, "lines": self.lines, "samples": samples}  # fmt: skip


def profile(as_json: bool, **choices: Any) -> None:
    """Profile a launch and print it."""
    found = profiled(choices)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        show(found)


def profiled(choices: Mapping[str, Any]) -> Profiled:
    """The launch of a recipe (see `single.chosen`), in the simulator and under ncu.

    Raises: DriverError K756 without ncu, K757 when it fails, K801 … K804 without a GPU;
    ArgumentError K750 … K753.
    """
    ncu.find()
    device = driver.device()
    kernel, stated = chosen(choices)
    ours = simulate(kernel, **stated, checks=()).profile
    program = [sys.executable, "-m", "kdsl_runtime.profile.single", json.dumps(choices)]
    names = [*ncu.wanted_metrics(device.target), ncu.DURATION]
    values = ncu.totals(names, program, kernel.signature.name)
    folders = {Path(row.file).parent for row in ours.lines if row.file}
    lines = ncu.by_line(sorted(folders), program, kernel.signature.name)
    return Profiled(
        kernel.__name__, device.name, values.get(ncu.DURATION), compare.totals(ours, values),
        compare.by_line(ours, lines), _samples(lines), _text(kernel),
    )  # fmt: skip


def _samples(lines: LineCounts) -> dict[tuple[str, int], float]:
    found = ((place, counts.get(_SAMPLES, 0.0)) for place, counts in lines.items())
    return {place: count for place, count in found if count}


def _text(kernel: KernelFunction) -> dict[tuple[str, int], str]:
    """The lines of the kernel itself, by the file's name."""
    texts, first = inspect.getsourcelines(kernel.__wrapped__)
    name = Path(inspect.getsourcefile(kernel.__wrapped__) or "").name
    return {(name, first + i): text.strip() for i, text in enumerate(texts)}


def show(found: Profiled) -> None:
    """Print lines, then totals: the simulator's number, the hardware's, and what they mean."""
    out = console()
    time = "" if found.ns is None else f": {found.ns / 1e3:,.2f} µs"
    out.print(f"{found.kernel} on {found.device}{time}", highlight=False)
    out.print(_lines(found) if found.lines or found.samples else "ncu showed no source lines")
    out.print(_totals(found))


def _lines(found: Profiled) -> Table:
    """Each line of source, then its counters below each other."""
    table = _table("line", "source and counter")
    places: dict[tuple[str, int], list[compare.Row]] = {place: [] for place in found.samples}
    for row in found.lines:
        places.setdefault((row["file"], row["line"]), []).append(row)
    for (name, number), rows in sorted(places.items()):
        text = found.text.get((name, number), "")
        table.add_row(f"{name}:{number}", Text(text, style="bold"), "", "", "")
        for row in rows:
            table.add_row("", f"  {row['column']}", *_numbers(row))
        samples = found.samples.get((name, number))
        if samples:
            table.add_row("", "  samples of warps that were here", "", _number(samples), "")
    return table


def _totals(found: Profiled) -> Table:
    table = _table("counter of the whole kernel")
    for row in found.totals:
        table.add_row(" + ".join(row["names"]), *_numbers(row))
    return table


def _table(*titles: str) -> Table:
    table = Table(*titles, box=None, pad_edge=False, header_style="dim")
    for title in ("simulator", "ncu"):
        table.add_column(title, justify="right")
    table.add_column("")
    return table


def _numbers(row: compare.Row) -> tuple[str, str, Text]:
    theirs = "" if row["theirs"] is None else _number(row["theirs"])
    why = row.get("why", "") if row["verdict"] == compare.ESTIMATE else ""
    word = row["verdict"] + (f": {why}" if why else "")
    style = "red" if row["verdict"] == compare.DIFFERS else "dim"
    return _number(row["ours"]), theirs, Text(word, style=style)


def _number(value: float) -> str:
    return f"{value:,.0f}"
