"""The Python code of the pages runs, in the simulator, as a reader would run it."""

from __future__ import annotations

import linecache
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import kdsl_core as kd
from house.census import ROOT, short
from house.test_docs import pages
from scripts import EXAMPLES, scripts

FENCE = re.compile(
    r"^(?P<mark><!-- not run -->\n+)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks(text: str) -> list[str]:
    """The blocks to run, each behind as many empty lines as stand above it in the page."""
    found = []
    for match in FENCE.finditer(text):
        if not match["mark"] and not match["code"].startswith(">>>"):  # doctests run elsewhere
            above = text.count("\n", 0, match.start("code"))
            found.append("\n" * above + match["code"])
    return found


PAGES = [page for page in pages() if blocks(page.read_text(encoding="utf-8"))]


def overlaid(parts: list[str]) -> str:
    """One text with every block at its own lines."""
    lines: list[str] = []
    for part in parts:
        rows = part.splitlines()
        lines += rows[len(lines) :]
    return "\n".join(lines) + "\n"


def run(name: str, parts: list[str]) -> dict[str, Any]:
    """Execute blocks that share a namespace; errors show the page's lines."""
    source = overlaid(parts)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "page"}
    for part in parts:
        exec(compile(part, name, "exec"), space)
    for test in [held for word, held in space.items() if word.startswith("test_")]:
        test(kd.testing.simulate)  # as pytest would with its fixture
    return space


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block that is not marked as a sketch runs after those above it."""
    parts = blocks(page.read_text(encoding="utf-8"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with tempfile.TemporaryDirectory() as folder, scripts("porting", root=EXAMPLES):
        monkeypatch.setenv("KDSL_CACHE_DIR", str(Path(folder) / "cache"))
        run(str(page), parts)


def test_the_hazard_of_the_page_is_what_is_said(tmp_path: Path) -> None:
    """docs/machine.md quotes a report word for word."""
    page = (ROOT / "docs/machine.md").read_text(encoding="utf-8")
    text = str(run(str(tmp_path / "reverse.py"), [blocks(page)[0].lstrip()])["result"])
    assert text.partition("\n\n")[2] in page


def test_the_pages_that_promise_code_have_some() -> None:
    """The pages that a newcomer reads first have code that runs."""
    first = ("README.md", "docs/language.md", "docs/machine.md", "docs/testing.md")
    for page in (ROOT / name for name in first):
        assert blocks(page.read_text(encoding="utf-8")), short(page)
