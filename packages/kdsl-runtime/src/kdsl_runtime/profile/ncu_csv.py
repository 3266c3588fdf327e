"""Reading what Nsight Compute prints with `--csv`: metrics of launches, and counters of lines."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator

LineCounts = dict[tuple[str, int], dict[str, float]]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of the tables; what ncu and the program say besides is left out."""
    return csv.reader(line for line in text.splitlines() if line.startswith('"'))


def number(text: str) -> float | None:
    """A value, with or without thousands' commas; None for "n/a" and "-"."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def metrics(text: str) -> dict[str, float]:
    """Metric → value of `ncu --csv --print-units base --metrics …`, summed over launches."""
    found: dict[str, float] = defaultdict(float)
    header: list[str] = []
    for row in rows(text):
        if "Metric Name" in row:
            header = row
        elif len(row) == len(header):
            fields = dict(zip(header, row, strict=True))
            value = number(fields["Metric Value"])
            if value is not None:
                found[fields["Metric Name"]] += value
    return dict(found)


def lines(text: str) -> LineCounts:
    """(file, line) → column → value of `ncu --csv --page source --print-source cuda,sass`.

    A table of a file begins with its path and has a row for each line of source, in which the
    instructions that follow it are summed already. Files are named without their folders.
    """
    found: LineCounts = {}
    header: list[str] = []
    file = ""
    for row in rows(text):
        if row[0] == "File Path":
            file, header = os.path.basename(row[1]), []
        elif row[0] == "Line No":
            header = row
        elif header and len(row) >= len(header) and row[0].isdigit():
            counted = found.setdefault((file, int(row[0])), {})
            for name, cell in zip(header, row, strict=False):
                value = number(cell)
                if value is not None and name not in ("Line No", "Source", "Address"):
                    counted[name] = counted.get(name, 0) + value
    return found
