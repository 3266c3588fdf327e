"""`mma.sync` of Ada: 8-bit floating point, one warp per instruction.

Source: PTX ISA, "Matrix fragments for mma.m16n8k32" (8.4).
"""

from __future__ import annotations

from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.atoms.sm80.mma import A8_16x32, B8_8x32, C_16x8, warp_mma
from kdsl_core.dtypes import DType, e4m3, e5m2, f32
from kdsl_core.ir.target import Need

_NEED = Need(sm=89, ptx=(8, 4))


def _row(name: str, a: DType, b: DType) -> MmaAtom:
    return warp_mma(name, (16, 8, 32), (f32, a, b, f32), (A8_16x32, B8_8x32, C_16x8), _NEED)


SM89_16x8x32_F32E4M3E4M3F32_TN = _row("SM89_16x8x32_F32E4M3E4M3F32_TN", e4m3, e4m3)
SM89_16x8x32_F32E4M3E5M2F32_TN = _row("SM89_16x8x32_F32E4M3E5M2F32_TN", e4m3, e5m2)
SM89_16x8x32_F32E5M2E4M3F32_TN = _row("SM89_16x8x32_F32E5M2E4M3F32_TN", e5m2, e4m3)
SM89_16x8x32_F32E5M2E5M2F32_TN = _row("SM89_16x8x32_F32E5M2E5M2F32_TN", e5m2, e5m2)

MMA_ATOMS = (
    SM89_16x8x32_F32E4M3E4M3F32_TN,
    SM89_16x8x32_F32E4M3E5M2F32_TN,
    SM89_16x8x32_F32E5M2E4M3F32_TN,
    SM89_16x8x32_F32E5M2E5M2F32_TN,
)
