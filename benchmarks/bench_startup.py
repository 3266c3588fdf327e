"""What a process costs before its first launch, without a GPU: imports, look-ups, a cold build."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = Path(__file__).with_name("startup_steps.py")
RUNS = 7


def life(cache: str) -> dict[str, float]:
    """The steps of a fresh process with this cache."""
    environment = {**os.environ, "KDSL_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, str(STEPS), str(time.time())]
    steps: dict[str, float] = json.loads(
        subprocess.check_output(words, env=environment, text=True, timeout=120)
    )
    return steps


class Startup:
    """The Hopper GEMM, as `gpu/startup.py` has it: medians of fresh interpreters."""

    timeout = 300

    def setup(self) -> None:
        """A cache with the kernel in it, and Python's files compiled."""
        self.folder = tempfile.mkdtemp()
        life(self.folder)

    def teardown(self) -> None:
        """Remove the cache."""
        shutil.rmtree(self.folder)

    def _median_ms(self, *steps: str, cold: bool = False) -> float:
        found = []
        for _ in range(RUNS):
            if cold:
                shutil.rmtree(self.folder)
                os.mkdir(self.folder, 0o700)
            life_steps = life(self.folder)
            found.append(sum(life_steps[step] for step in steps))
        return statistics.median(found) * 1e3

    def track_kernel_imports_ms(self) -> float:
        """Everything that the GEMM's module imports of kdsl."""
        return self._median_ms("kdsl imports")

    def track_look_up_ms(self) -> float:
        """The plan, and PTX and machine code from the disk."""
        return self._median_ms("plan", "PTX", "machine code")

    def track_cold_build_ms(self) -> float:
        """The plan, and PTX and machine code from nothing."""
        return self._median_ms("plan", "PTX", "machine code", cold=True)

    def track_modules(self) -> float:
        """Modules that are imported in the end."""
        return life(self.folder)["modules"]


for _name, _benchmark in vars(Startup).items():
    if _name.startswith("track_"):
        _benchmark.version = "2"
        _benchmark.unit = "ms" if _name.endswith("_ms") else "modules"
del _name, _benchmark
