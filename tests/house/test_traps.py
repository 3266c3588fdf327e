"""After a trap of the GPU the remaining tests run in a new process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUITE = """
import os, pathlib

def test_traps():
    pathlib.Path("first").write_text(str(os.getpid()))
    raise RuntimeError("answered CUDA_ERROR_ILLEGAL_INSTRUCTION: it is over")

def test_next():
    assert pathlib.Path("first").read_text() != str(os.getpid())

def test_fails():
    assert False, "no trap"
"""


def test_next_test_has_a_new_process(tmp_path: Path) -> None:
    """One test traps, the next one runs elsewhere; a plain failure ends nothing."""
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n1", "-p", "traps", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH')}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.search(r"3 failed, 1 passed", done.stdout), done.stdout
    assert "crashed while running 'test_suite.py::test_traps'" in done.stdout
