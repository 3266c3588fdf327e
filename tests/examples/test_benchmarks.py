"""The benchmarks follow the packages: each can be imported and says which version it is."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FILES = sorted([*FOLDER.glob("bench_*.py"), FOLDER / "figures.py"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_benchmark_is_importable_and_versioned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `time_…` and `track_…` has a version, so that a change of meaning shows."""
    monkeypatch.syspath_prepend(FOLDER)  # as for scripts
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for _, group in inspect.getmembers(module, inspect.isclass):
        if group.__module__ == path.stem:
            found = [f for name, f in vars(group).items() if name.startswith(("time_", "track_"))]
            assert all(isinstance(f.version, str) for f in found)
