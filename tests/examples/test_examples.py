"""Every example runs as a program and checks its own result."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example ends without an error and says something."""
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
