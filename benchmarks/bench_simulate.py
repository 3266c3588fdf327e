"""The simulator: its time on kernels of each kind, and the work that a GEMM does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from launches import CHECKS, LAUNCHES

import kdsl_core as kd
from kdsl_core.lang.simulate import Simulated
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity

SIZE = 256
CONFIG = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (128, 128, 32), (2, 2), 3)


class Launched:
    """One launch of each kind, with all checks and with none."""

    params = (tuple(LAUNCHES), tuple(CHECKS))
    param_names = ("launch", "checks")
    timeout = 300

    def setup(self, name: str, checks: str) -> None:
        """The arguments, and the trace, which is remembered."""
        self.launch = LAUNCHES[name]()
        self.launch.run(checks)

    def time_run(self, name: str, checks: str) -> None:
        """The simulated launch."""
        self.launch.run(checks)

    def track_instructions(self, name: str, checks: str) -> float:
        """Instructions of all warps."""
        return self.launch.run(checks, profile=True).profile.totals["instructions"]

    track_instructions.unit = "instructions"  # type: ignore[attr-defined] # how asv learns of it


class Gemm:
    """A bf16 GEMM of 256×256×256 with all checks and with none."""

    params = ("all", "none")
    param_names = ("checks",)
    timeout = 300

    def setup(self, checks: str) -> None:
        """The operands, and the trace, which is remembered."""
        rng = np.random.default_rng(0)
        sizes = (SIZE, SIZE)
        self.a, self.b = (rng.standard_normal(sizes).astype(ml_dtypes.bfloat16) for _ in range(2))
        self.c = np.empty(sizes, ml_dtypes.bfloat16)
        self.run(checks)

    def run(self, checks: str) -> Simulated:
        """One simulated launch."""
        looked_for: Any = "all" if checks == "all" else ()
        return kd.simulate(
            gemm_sm80,
            grid=(SIZE // CONFIG.tile[0]) * (SIZE // CONFIG.tile[1]),
            block=CONFIG.threads,
            args=(self.a, self.b, self.c),
            kwargs={"epilogue": identity, "config": CONFIG},
            checks=looked_for,
        )

    def time_run(self, checks: str) -> None:
        """The launch."""
        self.run(checks)

    def track_instructions(self, checks: str) -> float:
        """Instructions of all warps."""
        return self.run(checks).profile.totals["instructions"]

    def track_wavefronts(self, checks: str) -> float:
        """Passes through shared memory."""
        return self.run(checks).profile.totals["wavefronts"]

    def track_bank_conflicts(self, checks: str) -> int:
        """Wavefronts beyond those without conflicts."""
        return self.run(checks).profile.bank_conflicts

    def track_sectors(self, checks: str) -> float:
        """32-byte pieces of global memory that were moved."""
        return self.run(checks).profile.totals["sectors"]

    track_instructions.unit = "instructions"  # type: ignore[attr-defined] # how asv learns of it
    track_wavefronts.unit = "wavefronts"  # type: ignore[attr-defined] # the same
    track_bank_conflicts.unit = "wavefronts"  # type: ignore[attr-defined] # the same
    track_sectors.unit = "sectors"  # type: ignore[attr-defined] # the same


for _benchmark in (*vars(Launched).values(), *vars(Gemm).values()):
    if getattr(_benchmark, "__name__", "").startswith(("time_", "track_")):
        _benchmark.version = "1"
del _benchmark
