"""What functions mean: digests of their texts, and the notes that keep them."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from kdsl_core.errors import StagingError
from kdsl_core.lang import meanings, source
from kdsl_core.lang.meanings import meaning_of
from kdsl_core.lang.source import Source

TEXT = """
def f(x):
    return x

def outer():
    def f(y, *, z, **more):
        return y + z
    return f

async def g(x):
    return x

class A:
    @staticmethod
    def f(x): return x * 2
"""


@pytest.fixture(autouse=True)
def _own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(meanings, "library_digest", lambda: "this")
    forget()


def forget() -> None:
    """As in another process."""
    meanings._meanings.cache_clear()
    source.definitions.cache_clear()


def notes(folder: Path) -> int:
    """How many there are."""
    return len(list(folder.glob("cache/v*/notes/*")))


def functions(file: str, text: str = TEXT) -> tuple[list[FunctionType], Source]:
    """Those of a text that could be kernels, and the text."""
    space: dict[str, Any] = {}
    exec(compile(text, file, "exec"), space)
    return [space["f"], space["outer"](), space["A"].f], Source(file, text)


def refuse(*_: Any) -> Any:
    """Stands for what must not be called."""
    raise AssertionError


def test_a_later_process_does_not_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One note has all that a file defines; each function has its own meaning, and keeps it."""
    path = tmp_path / "kernels.py"
    path.write_text(TEXT)
    made, text = functions(str(path))
    first = [meaning_of(function, text) for function in made]
    assert len(set(first)) == 3 and notes(tmp_path) == 1
    forget()
    monkeypatch.setattr(ast, "parse", refuse)
    assert [meaning_of(function, text) for function in made] == first


def test_an_edit_counts_whatever_the_time_says(tmp_path: Path) -> None:
    """A note holds for one text: neither time nor size of the file are asked."""
    path = tmp_path / "kernels.py"
    found = []
    for text in (TEXT, TEXT.replace("x * 2", "x * 3")):
        path.write_text(text)
        os.utime(path, (1, 1))
        made, taken = functions(str(path), text)
        forget()
        found.append([meaning_of(function, taken) for function in made])
    before, after = found
    assert before[:2] == after[:2] and before[2] != after[2] and notes(tmp_path) == 1


@pytest.mark.parametrize("digest", ["another", None])
def test_another_kdsl_looks_itself(
    digest: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may spell a tree in another way; one that was edited while it runs notes nothing."""
    path = tmp_path / "kernels.py"
    path.write_text(TEXT)
    made, text = functions(str(path))
    meaning_of(made[0], text)
    before = [note.read_bytes() for note in tmp_path.glob("cache/v*/notes/*")]
    forget()
    monkeypatch.setattr(meanings, "library_digest", lambda: digest)
    monkeypatch.setattr(meanings, "spelled", lambda node: node.name)
    assert meaning_of(made[0], text) == meaning_of(made[2], text)
    after = [note.read_bytes() for note in tmp_path.glob("cache/v*/notes/*")]
    assert (before == after) is (digest is None)


@pytest.mark.parametrize("change", [("def f(x):", "def f(w):"), ("\ndef f", "\n\ndef f")])
def test_another_text_is_none(change: tuple[str, str], tmp_path: Path) -> None:
    """Code that was not compiled from the text is refused, as a launch refuses it."""
    path = tmp_path / "kernels.py"
    path.write_text(TEXT)
    (function, *_), _ = functions(str(path))
    with pytest.raises(StagingError) as caught:
        meaning_of(function, Source(str(path), TEXT.replace(*change, 1)))
    assert caught.value.code == "K321"


def test_cells_leave_no_notes(tmp_path: Path) -> None:
    """What is no file has a meaning all the same."""
    made, text = functions("<cell 1>")
    assert len({meaning_of(function, text) for function in made}) == 3
    assert notes(tmp_path) == 0


def test_where_it_stands_does_not_count(tmp_path: Path) -> None:
    """Comments, blank lines, docstrings and other definitions are in no meaning."""
    moved = TEXT.replace("def f(x):\n", "# moved\n\n\ndef f(x):\n    'Said.'\n").replace(
        "* 2", "* 7"
    )
    one, other = (functions("<cell>", text) for text in (TEXT, moved))
    assert meaning_of(one[0][0], one[1]) == meaning_of(other[0][0], other[1])
