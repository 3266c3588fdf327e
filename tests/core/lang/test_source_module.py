"""Modules made from files count what the files hold now."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path

import pytest

from kdsl_core.lang.source_module import module_of_file


def test_an_edit_counts_although_bytecode_looks_current(tmp_path: Path) -> None:
    """The same size and the same second of change: Python itself would take the kept bytecode."""
    path = tmp_path / "sign.py"
    path.write_text("VALUE = +1\n")
    py_compile.compile(str(path), doraise=True)
    changed = path.stat()
    path.write_text("VALUE = -1\n")
    os.utime(path, (changed.st_atime, changed.st_mtime))
    assert module_of_file(path, "kdsl_test_sign").VALUE == -1


def test_a_missing_file(tmp_path: Path) -> None:
    """What the system says of the path is passed on."""
    with pytest.raises(FileNotFoundError, match=r"absent\.py"):
        module_of_file(tmp_path / "absent.py", "kdsl_test_absent")
