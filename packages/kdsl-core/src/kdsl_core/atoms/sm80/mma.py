"""`mma.sync` of Ampere: f16, bf16, tf32 and 8-bit integers, one warp per instruction.

Source: PTX ISA, "Matrix fragments for mma.m16n8k*" (7.0).
"""

from __future__ import annotations

from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.dtypes import DType, bf16, f16, f32, i8, i32, tf32, u8
from kdsl_core.ir.target import BASELINE, Need
from kdsl_core.layout import Layout

WARP = Layout(32, 1)

# Every fragment: lane = 4·row + column group, so lanes split as (T4 along K or N, T8 along rows).
C_16x8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))  # (T32,V4) -> (M16,N8)
# 16-bit elements: two neighbours along K share a register.
A16_16x8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))  # (T32,V4) -> (M16,K8)
B16_8x8 = Layout(((4, 8), 2), ((16, 1), 8))  # (T32,V2) -> (N8,K8)
A16_16x16 = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))  # (T32,V8) -> (M16,K16)
B16_8x16 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))  # (T32,V4) -> (N8,K16)
# 32-bit elements: one a register.
A32_16x8 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))  # (T32,V4) -> (M16,K8)
B32_8x8 = Layout(((4, 8), 2), ((8, 1), 32))  # (T32,V2) -> (N8,K8)
# 8-bit elements: four neighbours along K share a register.
A8_16x32 = Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256)))  # (T32,V16) -> (M16,K32)
B8_8x32 = Layout(((4, 8), (4, 2)), ((32, 1), (8, 128)))  # (T32,V8) -> (N8,K32)


def warp_mma(
    name: str,
    shape_mnk: tuple[int, int, int],
    types: tuple[DType, DType, DType, DType],
    fragments: tuple[Layout, Layout, Layout],
    need: Need = BASELINE,
) -> MmaAtom:
    """The row of one `mma.sync`: A in rows along K, B in columns along K."""
    shape = "m{}n{}k{}".format(*shape_mnk)
    mnemonic = ".".join(["mma.sync.aligned", shape, "row.col", *[t.ptx for t in types]])
    return MmaAtom(name, shape_mnk, *types, WARP, *fragments, mnemonic, need)


_HALF_K8 = (16, 8, 8), (A16_16x8, B16_8x8, C_16x8)
_HALF_K16 = (16, 8, 16), (A16_16x16, B16_8x16, C_16x8)
_TF32_K8 = (16, 8, 8), (A32_16x8, B32_8x8, C_16x8)
_BYTE_K32 = (16, 8, 32), (A8_16x32, B8_8x32, C_16x8)

_Form = tuple[tuple[int, int, int], tuple[Layout, Layout, Layout]]


def _row(name: str, form: _Form, d: DType, a: DType, b: DType) -> MmaAtom:
    return warp_mma(name, form[0], (d, a, b, d), form[1])


SM80_16x8x8_F16F16F16F16_TN = _row("SM80_16x8x8_F16F16F16F16_TN", _HALF_K8, f16, f16, f16)
SM80_16x8x16_F16F16F16F16_TN = _row("SM80_16x8x16_F16F16F16F16_TN", _HALF_K16, f16, f16, f16)
SM80_16x8x8_F32F16F16F32_TN = _row("SM80_16x8x8_F32F16F16F32_TN", _HALF_K8, f32, f16, f16)
SM80_16x8x16_F32F16F16F32_TN = _row("SM80_16x8x16_F32F16F16F32_TN", _HALF_K16, f32, f16, f16)
SM80_16x8x8_F32BF16BF16F32_TN = _row("SM80_16x8x8_F32BF16BF16F32_TN", _HALF_K8, f32, bf16, bf16)
SM80_16x8x16_F32BF16BF16F32_TN = _row("SM80_16x8x16_F32BF16BF16F32_TN", _HALF_K16, f32, bf16, bf16)
SM80_16x8x8_F32TF32TF32F32_TN = _row("SM80_16x8x8_F32TF32TF32F32_TN", _TF32_K8, f32, tf32, tf32)
SM80_16x8x32_S32S8S8S32_TN = _row("SM80_16x8x32_S32S8S8S32_TN", _BYTE_K32, i32, i8, i8)
SM80_16x8x32_S32S8U8S32_TN = _row("SM80_16x8x32_S32S8U8S32_TN", _BYTE_K32, i32, i8, u8)
SM80_16x8x32_S32U8S8S32_TN = _row("SM80_16x8x32_S32U8S8S32_TN", _BYTE_K32, i32, u8, i8)
SM80_16x8x32_S32U8U8S32_TN = _row("SM80_16x8x32_S32U8U8S32_TN", _BYTE_K32, i32, u8, u8)

MMA_ATOMS = (
    SM80_16x8x8_F16F16F16F16_TN,
    SM80_16x8x16_F16F16F16F16_TN,
    SM80_16x8x8_F32F16F16F32_TN,
    SM80_16x8x16_F32F16F16F32_TN,
    SM80_16x8x8_F32BF16BF16F32_TN,
    SM80_16x8x16_F32BF16BF16F32_TN,
    SM80_16x8x8_F32TF32TF32F32_TN,
    SM80_16x8x32_S32S8S8S32_TN,
    SM80_16x8x32_S32S8U8S32_TN,
    SM80_16x8x32_S32U8S8S32_TN,
    SM80_16x8x32_S32U8U8S32_TN,
)
