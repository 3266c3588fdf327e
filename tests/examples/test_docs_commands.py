"""The commands of the pages run, in a folder of their own, as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house.census import ROOT, SOURCES, short
from house.test_docs import pages
from kdsl_runtime.toolchain import find_toolchain

COMMANDS = re.compile(r"^<!-- run -->\n+^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in pages() if COMMANDS.search(page.read_text(encoding="utf-8"))]


def write_program(path: Path, command: str) -> None:
    """A program that runs this Python with some arguments before its own."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
    path.chmod(0o755)


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Every block of commands that is marked to run succeeds, in the order of the page."""
    ptxas = find_toolchain().path
    assert ptxas is not None
    programs, work = tmp_path / "bin", tmp_path / "work"
    write_program(programs / "kdsl", "-m kdsl_runtime.cli")
    write_program(programs / "python", "")
    work.mkdir()
    for folder in ("examples", "tests"):  # pages are typed at the root of the repository
        (work / folder).symlink_to(ROOT / folder)
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), os.path.dirname(ptxas), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(str(folder.parent) for folder in SOURCES.values()),
        "KDSL_PTXAS": ptxas,
    }
    script = "\n".join(COMMANDS.findall(page.read_text(encoding="utf-8")))
    argv = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(
        argv, cwd=work, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_production_page_has_commands() -> None:
    """The page that promises commands has some that run."""
    assert "docs/production.md" in {short(page) for page in PAGES}
