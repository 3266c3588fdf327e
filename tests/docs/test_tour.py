"""The essays of the tour run as programs, and become pages with what they printed and drew."""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import essay
import pytest

from house.census import ROOT
from kdsl_runtime import frozen

ESSAYS = sorted((ROOT / "docs/tour").glob("*.py"))
NUMBER = re.compile(r"(?<![\w.])\d+\.\d{2,}(?!\w)")  # a measured number, such as 4.26 or 0.125


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache and folders of its own; modules and settings of the essay are gone afterwards."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("app", None)
    frozen.thaw()


def test_the_tour_is_complete() -> None:
    """Eight essays, numbered without a gap."""
    assert [path.name[:3] for path in ESSAYS] == [f"0{number}_" for number in range(1, 9)]


@pytest.mark.usefixtures("own_place")
@pytest.mark.parametrize("path", ESSAYS, ids=lambda path: path.stem)
def test_essay_runs(path: Path) -> None:
    """Every cell ends without an error; the essay prints, draws, and says no number of its own."""
    shown = list(essay.run(path))
    assert sum(bool(part.printed) for part in shown) >= 5
    assert path.stem[:2] == "08" or any(part.pictures for part in shown)
    prose = "\n".join(part.cell.text for part in shown if not part.cell.is_code)
    assert prose.startswith(f"# {path.stem[:2]} · ")
    assert NUMBER.findall(prose) == []


@pytest.mark.parametrize(("path", "following"), list(itertools.pairwise(ESSAYS)))
def test_essays_lead_on(path: Path, following: Path) -> None:
    """The last words of an essay link to the next one."""
    last = essay.cells(path.read_text(encoding="utf-8"))[-1]
    assert not last.is_code and f"]({following.name})" in last.text


SOURCE = """\
before

# %% [markdown]
# # Title
#
# Some *prose*.

# %%
x = 2
print("twice:", 2 * x)

# %%
"<svg><text>of x</text></svg>"
"""


def test_cells_know_their_lines() -> None:
    """Prose loses its marks, code keeps its place in the file."""
    title, code, picture = essay.cells(SOURCE)
    assert (title.is_code, title.text) == (False, "# Title\n\nSome *prose*.")
    assert (code.is_code, code.line, picture.line) == (True, 9, 13)


def test_a_page_shows_what_ran(tmp_path: Path) -> None:
    """Text that was printed and pictures that end a cell stand below the code."""
    path = tmp_path / "01_x.py"
    path.write_text(SOURCE)
    page = essay.page(path)
    assert page.index("x = 2") < page.index("twice: 4") < page.index("<figure")
    assert 'alt="of x"' in page and "base64," in page


def test_an_error_names_the_line_of_the_file(tmp_path: Path) -> None:
    """What fails in a cell is found in the file."""
    path = tmp_path / "01_x.py"
    path.write_text(SOURCE.replace('print("twice:", 2 * x)', "x.y"))
    with pytest.raises(AttributeError) as caught:
        list(essay.run(path))
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(path), 10)


def test_fences_hold_fences() -> None:
    """Code that contains a fence of its own does not end the block."""
    text = essay.fenced("```python\nx\n```", "{code-block} text")
    assert text.startswith("~~~~~{code-block} text\n```python")
