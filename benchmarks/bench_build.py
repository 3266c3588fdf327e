"""From a Python function to a cubin: the bf16 sm_80 GEMM, traced anew at each call."""

from __future__ import annotations

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity
from kdsl_runtime.assemble import Cubin, assemble
from kdsl_runtime.toolchain import default_toolchain

SIZE = 8192
CONFIG = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (128, 128, 64), (2, 2), 3)


def text(target: str) -> str:
    """Python function → PTX, with nothing remembered of an earlier trace."""
    gemm_sm80.clear()
    specs = [kd.spec("bf16", (SIZE, SIZE)) for _ in range(3)]
    return gemm_sm80.ptx(
        *specs, block=CONFIG.threads, target=target, epilogue=identity, config=CONFIG
    )


def cubin(target: str, ptx: str) -> Cubin:
    """PTX → cubin, one ptxas process."""
    return assemble(ptx, target, default_toolchain())


class Build:
    """Tracing, emitting and assembling, for an old and a new target."""

    params = ("sm_80", "sm_90a")
    param_names = ("target",)
    timeout = 300

    def setup(self, target: str) -> None:
        """The PTX that the assembler's benchmarks take."""
        self.text = text(target)

    def time_trace(self, target: str) -> None:
        """Python function → IR, passes included."""
        gemm_sm80.clear()
        specs = [kd.spec("bf16", (SIZE, SIZE)) for _ in range(3)]
        gemm_sm80.ir(*specs, block=CONFIG.threads, epilogue=identity, config=CONFIG)

    def time_trace_and_emit(self, target: str) -> None:
        """Python function → PTX."""
        text(target)

    def time_assemble(self, target: str) -> None:
        """PTX → cubin, one ptxas process."""
        cubin(target, self.text)

    def track_ptx_bytes(self, target: str) -> int:
        """The size of the PTX."""
        return len(self.text.encode())

    def track_registers(self, target: str) -> int:
        """Registers per thread that ptxas gives it."""
        return cubin(target, self.text).report.registers

    def track_spill_bytes(self, target: str) -> int:
        """Bytes that ptxas spills, stores and loads."""
        report = cubin(target, self.text).report
        return report.spill_stores + report.spill_loads

    track_ptx_bytes.unit = "bytes"  # type: ignore[attr-defined] # how asv learns of it
    track_registers.unit = "registers"  # type: ignore[attr-defined] # the same
    track_spill_bytes.unit = "bytes"  # type: ignore[attr-defined] # the same


for _benchmark in vars(Build).values():
    if getattr(_benchmark, "__name__", "").startswith(("time_", "track_")):
        _benchmark.version = "1"
del _benchmark
