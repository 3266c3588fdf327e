"""The commands of the workflow's page print what it says, in order, in the example's folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house.census import ROOT, SOURCES
from kdsl_runtime.toolchain import find_toolchain

PAGE = ROOT / "docs/workflow.md"
BLOCK = re.compile(r"^<!-- run and compare -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"kdsl": "-m kdsl_runtime.cli", "python": "", "pytest": "-m pytest -p no:cacheprovider"}


def promises(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) in the order of the page."""
    found = []
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def agrees(promised: str, printed: str) -> bool:
    """Whether a text is what was promised; a line "…" stands for lines, "…" in a line for words."""
    lines = (
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n"
        for line in squeezed(promised).splitlines()
    )
    return re.fullmatch("".join(lines), squeezed(printed)) is not None


def squeezed(text: str) -> str:
    """Lines without runs of blanks: what is padded depends on the width of a terminal."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines()) + "\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The example's folder in `tmp_path/work`, and programs that run this Python."""
    ptxas = find_toolchain().path
    assert ptxas is not None
    (tmp_path / "bin").mkdir()
    for name, words in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    shutil.copytree(ROOT / "examples/production", tmp_path / "work")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    programs = [str(tmp_path / "bin"), os.path.dirname(ptxas)]
    return own | {
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(str(folder.parent) for folder in SOURCES.values()),
        "KDSL_PTXAS": ptxas,
        "KDSL_CACHE_DIR": str(tmp_path / "cache"),
        "NO_COLOR": "1",
        "COLUMNS": "110",
    }


def test_the_page_says_what_the_commands_print(tmp_path: Path, environment: dict[str, str]) -> None:
    """Each command succeeds and prints what stands below it."""
    told = promises(PAGE.read_text(encoding="utf-8"))
    assert len(told) >= 8
    for command, promised in told:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path / "work",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert agrees(promised, done.stdout), f"{command}\n{done.stdout}\n{done.stderr}"


def test_ellipses_stand_for_what_varies() -> None:
    """They match words of a line or whole lines, and nothing else is left open."""
    assert agrees("a … c\n…\nz\n", "a  b b c\n1\n2\nz\n")
    assert agrees("a\n…\nz\n", "a\nz\n")
    assert not agrees("a … c\n", "a b\nc\n")
    assert not agrees("a\n", "a\nb\n")
