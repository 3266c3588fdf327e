"""`kdsl tune`: from the command line to the table that a dispatch reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kdsl_runtime import driver
from kdsl_runtime.cli import main
from kdsl_runtime.dispatch import Dispatch
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Journal

SPACE = f"{Path(__file__).parent / 'tune' / 'scaling.py'}:SPACE"
H200 = "NVIDIA H200"


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """The user's directory of tables."""
    monkeypatch.setenv("KDSL_TABLES", str(tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "own"


def run(*arguments: str, code: int = 0) -> str:
    """What the command prints."""
    result = CliRunner().invoke(main, ["tune", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_tunes_and_remembers(own, tmp_path):
    """A bar, a table, reasons; winners go where they are told to, records to the journal."""
    shapes = ("--shapes", "n=4096,dtype=f32", "--shapes", "n=8192,dtype=f32")
    told = run(SPACE, *shapes, "--predict", H200, "--points", "5", "--tables", str(tmp_path / "t"))
    assert "threads=32 step=1" in told and "predicted" in told
    assert "1 cannot be: 4096 elements are no multiple of 8192" in told
    with Journal(own / "scaled.jsonl") as journal:
        assert len(journal) == 10
    found = Dispatch("scaled", tmp_path / "t").find(H200, Problem.of(n=5000, dtype="f32"))
    assert (found.how, found.config) == ("nearest", {"threads": 32, "step": 1})
    assert not list(own.glob("*.json"))  # predictions stay out of the user's tables


def test_nothing_right(own):
    """Exit code 1 when some problem has no winner."""
    told = run(SPACE, "--shapes", "n=4096,dtype=f32", "--predict", H200, "--budget", "0", code=1)
    assert "none is right" in told


def test_errors_are_paragraphs(own, monkeypatch):
    """A wrong word is named, without a stack trace."""
    assert "K760" in run(SPACE, "--shapes", "4096", "--predict", H200, code=1)
    assert "K763" in run("nothing", "--shapes", "n=1", code=1)
    assert "K764" in run(SPACE, "--shapes", "n=1", "--predict", "a toaster", code=1)
    words = (SPACE, "--shapes", "n=1", "--predict", H200)
    assert "90s, 5m or 1h" in run(*words, "--budget", "soon", code=2)
    assert "dask://HOST:PORT" in run(*words, "--executor", "threads", code=2)


def test_measuring_needs_a_device(own, monkeypatch):
    """Without a driver the command says so, and what to do."""
    monkeypatch.setattr(driver, "_LIBRARY", "libkdsl-no-such-driver.so.1")
    driver.require_driver.cache_clear()
    told = run(SPACE, "--shapes", "n=4096,dtype=f32", code=1)
    driver.require_driver.cache_clear()
    assert "K801" in told
