"""`--agreement-json FILE`: what the tests compared between simulator and GPU, family by family.

Tests note outcomes as a property of their reports, so that they travel from the workers of
pytest-xdist to the process that writes the file, and into junit XML.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.agreement.comparison import PROPERTY, Outcome, summed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(
        "--agreement-json",
        metavar="FILE",
        help="write what was compared between simulator and GPU: a row for each family",
    )


class Table:
    """Collects the outcomes of all tests and writes them in the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcomes that a test noted."""
        if report.when == "call":
            for name, records in report.user_properties:
                if name == PROPERTY:
                    self.outcomes += map(Outcome.of_record, records)

    def pytest_sessionfinish(self) -> None:
        """Write the table."""
        rows = [outcome.record() for outcome in summed(self.outcomes)]
        self.path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the table."""
        terminalreporter.write_line("family                cases       lanes  differ  payloads")
        for row in summed(self.outcomes):
            terminalreporter.write_line(
                f"{row.family:<20} {row.cases:>6} {row.lanes:>11,} {row.differ:>7}"
                f" {row.payloads:>9}"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that has the file to write, not in its workers."""
    path = config.getoption("--agreement-json")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(Path(path)))
