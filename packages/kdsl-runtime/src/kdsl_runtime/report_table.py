"""A report of `kd.inspect` for the terminal."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from kdsl_core.inspect import Report
from kdsl_core.inspect.heat import bar
from kdsl_core.inspect.report import Column, Line, Source

_NUMBER, _BAR, _GAP = 4, 8, 2  # letters
_WIDE = 150  # columns where standard output is no terminal


def show(report: Report) -> None:
    """Print the source with its counters, the hazards, and the roofline."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_WIDE)
    sizes = " × ".join(map(str, report.grid))
    shared = f", {report.shared_bytes:,} bytes of shared memory" if report.shared_bytes else ""
    console.print(Text(report.launch, style="bold"), soft_wrap=True)
    console.print(f"grid {sizes}, {report.threads} threads a block{shared}", highlight=False)
    for source in report.sources:
        console.print()
        console.print(_table(report, source, console.width))
    for hazard in report.hazards:
        console.print(Text(f"\n{hazard}", style="red"))
    console.print()
    if report.build:
        console.print(report.build, highlight=False)
    console.print(str(report.roofline), highlight=False, soft_wrap=True)


def _table(report: Report, source: Source, width: int) -> Table:
    cells = [max(len(c.title), len(c.text(report.totals)) + 2) for c in report.columns]
    heat = max(len(report.heat_of), _BAR)
    code = width - sum(cells) - heat - _NUMBER - _GAP * (len(cells) + 2)
    table = Table(box=None, pad_edge=False, header_style="dim", footer_style="bold")
    own = source is report.sources[0]
    table.show_footer = own
    table.add_column("", justify="right", style="dim", no_wrap=True, width=_NUMBER)
    table.add_column(report.heat_of, no_wrap=True, width=heat)
    table.add_column(escape(source.name), "in all" if own else "", no_wrap=True, max_width=code)
    for column, wide in zip(report.columns, cells, strict=True):
        footer = _cell(column, report.totals) if own else ""
        table.add_column(column.title, footer, justify="right", no_wrap=True, width=wide)
    paint = Syntax("", "python", theme="ansi_dark", background_color="default")
    for number, function in enumerate(source.functions):
        if number:
            table.add_row()
        for line in function:
            counts = [_cell(column, line.counts) for column in report.columns]
            text = paint.highlight(line.text)
            text.rstrip()
            table.add_row(str(line.number), _heat(line), text, *counts)
            for below in _below(report, source, line):
                table.add_row("", "", Text(f"    {below}", style="dim"))
    return table


def _below(report: Report, source: Source, line: Line) -> list[str]:
    place = source.file, line.number
    return [text for listing in report.listings.values() for text in listing.get(place, ())]


def _heat(line: Line) -> Text:
    style = "red" if line.heat >= 0.25 else "yellow" if line.heat >= 0.05 else "blue"
    return Text(bar(line.heat, _BAR), style=style)


def _cell(column: Column, counts: Any) -> Text:
    text, _, excess = column.text(counts).partition(" ×")
    return Text.assemble(text, (f" ×{excess}", "red") if excess else "")
