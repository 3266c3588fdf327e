"""The sample on other Pythons: which interpreters count, and that its floor holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from house import census, pythons


def interpreter(folder: Path, name: str, says: str) -> str:
    """A program that states a version, or fails."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_pythons_that_start_and_are_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old ones, broken ones and pyenv's empty shims are left out; the first of a version stays."""
    stated = {"python3.11": "echo 3 11", "python3.12": "exit 127", "python3.13": "echo 3 13"}
    paths = {name: interpreter(tmp_path, name, says) for name, says in stated.items()}
    other = interpreter(tmp_path, "other", "echo 3 13")
    old = interpreter(tmp_path, "old", "echo 3 9")
    monkeypatch.setattr(pythons, "candidates", lambda: iter([old, *paths.values(), other, "gone"]))
    assert pythons.found() == {(3, 11): paths["python3.11"], (3, 13): paths["python3.13"]}


def test_this_python_is_among_them() -> None:
    """The one that runs the tests is found first."""
    assert pythons.version_of(next(pythons.candidates())) == sys.version_info[:2]
    assert pythons.OLDEST == (3, 11)  # what the packages state, see test_wheels


def test_both_ends_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest always; the oldest, unless all tests run on it anyway."""
    monkeypatch.setattr(pythons, "version_of", lambda path: (3, 12))
    assert pythons.ends([(3, 11), (3, 12), (3, 13)]) == [(3, 11), (3, 13)]
    assert pythons.ends([(3, 12), (3, 13)]) == [(3, 13)]
    assert pythons.ends([(3, 12)]) == [(3, 12)]


def test_the_sample_is_there() -> None:
    """Every path of it exists."""
    assert [path for path in pythons.SAMPLE if not (census.ROOT / path).exists()] == []


@pytest.mark.parametrize(("tests", "report", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 2)])
def test_failures_and_too_little_coverage_fail(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tests: int,
    report: int,
    status: int,
) -> None:
    """The sample runs under coverage, the floor is asked for, and either may fail the gate."""
    asked: list[list[str]] = []

    def run(argv: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(argv[1:])
        return subprocess.CompletedProcess(argv, report if "report" in argv else tests, "74%", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert pythons.covered(Path("python")) == status
    assert asked[0][:2] == ["-m", "pytest"] and {"--cov", *pythons.SAMPLE} <= set(asked[0])
    assert f"--fail-under={pythons.FLOOR}" in asked[1]
    assert "74%" in capsys.readouterr().out
