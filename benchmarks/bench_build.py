"""From a Python function to a cubin: the bf16 GEMM of the README, traced anew at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kdsl_core as kd

SIZE = 256
TILE = (128, 128, 64)


def matmul_kernel() -> Any:
    """A new kernel object, so that nothing of an earlier trace is remembered."""

    @kd.kernel
    def matmul(
        A: kd.Tensor["bf16", "m k"],
        B: kd.Tensor["bf16", "n k"],
        C: kd.Tensor["bf16", "m n"],
        tile: kd.Static = TILE,
    ):
        BM, BN, BK = tile
        bm, bn, _ = kd.block_idx()
        mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN, warps=(2, 2))
        gA = kd.local_tile(A, (BM, BK), (bm, None))
        gB = kd.local_tile(B, (BN, BK), (bn, None))
        acc = mma.make_fragment_C((BM, BN)).fill(0)
        for k in kd.range(kd.size(gA, 2)):
            kd.collective.mma_tile(mma, gA[..., k], gB[..., k], acc)
        kd.collective.store_tile(mma, acc, kd.local_tile(C, (BM, BN), (bm, bn)))

    return matmul


def specs() -> list[Any]:
    """The three arguments, described and not allocated."""
    return [kd.spec("bf16", (SIZE, SIZE)) for _ in range(3)]


class Build:
    """Tracing, emitting and assembling, for an old and a new target."""

    params = ("sm_80", "sm_90a")
    param_names = ("target",)
    timeout = 300

    def setup(self, target: str) -> None:
        """Skip where this version cannot express the kernel or there is no ptxas."""
        try:
            self.text = matmul_kernel().ptx(*specs(), target=target)
        except AttributeError as missing:
            raise NotImplementedError(f"not in this version: {missing}") from missing

    def time_trace(self, target: str) -> None:
        """Python function → IR."""
        matmul_kernel().ir(*specs())

    def time_trace_and_emit(self, target: str) -> None:
        """Python function → PTX."""
        matmul_kernel().ptx(*specs(), target=target)

    def time_assemble(self, target: str) -> None:
        """PTX → cubin, one ptxas process."""
        _assemble()(self.text, target)

    def track_ptx_bytes(self, target: str) -> int:
        """The size of the PTX."""
        return len(self.text.encode())

    def track_registers(self, target: str) -> int:
        """Registers per thread that ptxas gives it."""
        return int(_assemble()(self.text, target).report.registers)

    def track_spill_bytes(self, target: str) -> int:
        """Bytes that ptxas spills, stores and loads."""
        report = _assemble()(self.text, target).report
        return int(report.spill_stores + report.spill_loads)

    track_ptx_bytes.unit = "bytes"
    track_registers.unit = "registers"
    track_spill_bytes.unit = "bytes"


def _assemble() -> Callable[..., Any]:
    from kdsl_runtime.assemble import assemble

    return assemble


for _benchmark in vars(Build).values():
    if getattr(_benchmark, "__name__", "").startswith(("time_", "track_")):
        _benchmark.version = "1"
del _benchmark
