"""Every example runs as a program and checks its own result."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from porting import NAMES
from scripts import EXAMPLES, scripts

FIRST = sorted(EXAMPLES.glob("*.py"))
PORTS = [EXAMPLES / "porting" / f"{name}.py" for name in ("tiled_copy", *NAMES)]


@pytest.mark.parametrize("path", [*FIRST, *PORTS], ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example ends without an error and says something."""
    with scripts(path.parent.name, root=path.parents[1]):  # its folder is where Python looks first
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
