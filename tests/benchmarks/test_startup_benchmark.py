"""The steps of a process's start, as the benchmark measures them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

STEPS = Path(__file__).parents[2] / "benchmarks" / "startup_steps.py"


def life(cache: Path) -> dict[str, float]:
    """The steps of one process without a GPU."""
    environment = {**os.environ, "KDSL_CACHE_DIR": str(cache)}
    words = [sys.executable, str(STEPS), str(time.time())]
    said = subprocess.check_output(words, env=environment, text=True, timeout=120)
    steps: dict[str, float] = json.loads(said)
    return steps


def test_steps_of_a_life(tmp_path: Path) -> None:
    """Each step has a time; a cached kernel needs fewer modules."""
    first, second = life(tmp_path), life(tmp_path)
    names = {"interpreter", "numpy", "kdsl imports", "plan", "PTX", "machine code", "modules"}
    assert first.keys() == second.keys() == names
    assert second["modules"] < first["modules"]
