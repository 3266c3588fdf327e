"""What the recipe cache costs and saves: the bf16 sm_80 GEMM, with and without an earlier process.

As a script, `python3 benchmarks/bench_recipes.py` prints each figure: processor time, best of five.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import timeit

import kdsl_core as kd
from kdsl_core.ir import target_of
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.fingerprint import digests
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity
from kdsl_runtime.cache import layers

SIZE = 8192
CONFIG = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (128, 128, 64), (2, 2), 3)
STATICS = {"epilogue": identity, "config": CONFIG}
TARGET = "sm_90a"


class Recipes:
    """PTX for a launch, from nothing, from the trace alone, and from what another process kept."""

    timeout = 300

    def setup(self) -> None:
        """An empty cache, then one with the kernel in it."""
        self.folder = tempfile.mkdtemp()
        os.environ["KDSL_CACHE_DIR"] = self.folder
        specs = [kd.spec("bf16", (SIZE, SIZE)) for _ in range(3)]
        self.needed = gemm_sm80.specialisation(*specs, block=CONFIG.threads, **STATICS)
        self.time_kept()
        self.read = Dependencies(gemm_sm80.staged.function, STATICS.values())

    def teardown(self) -> None:
        """Remove the cache."""
        shutil.rmtree(self.folder)

    def time_kept(self) -> None:
        """The PTX from the disk: everything that the kernel reads is digested."""
        gemm_sm80.clear()
        layers._caches.clear()
        gemm_sm80.lowered(self.needed, TARGET)

    def time_first(self) -> None:
        """The PTX from a trace that is observed and kept."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.time_kept()

    def time_trace(self) -> None:
        """The PTX from a trace, with nothing kept."""
        gemm_sm80.clear()
        traced = gemm_sm80.traced(self.needed)
        gemm_sm80.built(traced, target_of(TARGET))

    def time_walk(self) -> None:
        """Finding what the kernel could read, and its digests."""
        digests(Dependencies(gemm_sm80.staged.function, STATICS.values()))

    def time_unchanged(self) -> None:
        """The check at each launch that nothing of it was rebound."""
        self.read.unchanged()


for _benchmark in vars(Recipes).values():
    if getattr(_benchmark, "__name__", "").startswith("time_"):
        _benchmark.version = "1"
del _benchmark

if __name__ == "__main__":
    recipes = Recipes()
    recipes.setup()
    for name in ("time_trace", "time_first", "time_kept", "time_walk", "time_unchanged"):
        number = 1 if name in ("time_trace", "time_first") else 20
        run = getattr(recipes, name)
        best = min(timeit.repeat(run, timer=time.process_time, number=number, repeat=5)) / number
        print(f"{name.removeprefix('time_'):10} {best * 1e3:9.3f} ms")
    recipes.teardown()
