"""The Python code of the pages runs, in the simulator, as a reader would run it."""

from __future__ import annotations

import linecache
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from house.census import ROOT, short
from house.test_docs import pages

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
    return space


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block that is not marked as a sketch runs after those above it."""
    parts = blocks(page.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("KDSL_CACHE_DIR", str(Path(folder) / "cache"))
        run(str(page), parts)


def test_the_pages_that_promise_code_have_some() -> None:
    """The pages that a newcomer reads first have code that runs."""
    first = ("README.md", "docs/language.md", "docs/machine.md")
    for page in (ROOT / name for name in first):
        assert blocks(page.read_text(encoding="utf-8")), short(page)
