"""Matrix and copy instructions as data, and their tilings over threads."""

from __future__ import annotations

from kdsl_core.atoms.copy_atom import (
    CopyAtom,
    CopyKind,
)
from kdsl_core.atoms.find import (
    ALL_COPY_ATOMS,
    ALL_MMA_ATOMS,
    find,
)
from kdsl_core.atoms.mma_atom import (
    MmaAtom,
    Operand,
)
from kdsl_core.atoms.sm80.copy import (
    SM80_CP_ASYNC_CACHEALWAYS_U32,
    SM80_CP_ASYNC_CACHEALWAYS_U64,
    SM80_CP_ASYNC_CACHEALWAYS_U128,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U32,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U64,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U128,
    SM80_CP_ASYNC_CACHEGLOBAL_U128,
    SM80_CP_ASYNC_CACHEGLOBAL_ZFILL_U128,
    SM75_U16x2_LDSM_T,
    SM75_U16x4_LDSM_T,
    SM75_U16x8_LDSM_T,
    SM75_U32x1_LDSM_N,
    SM75_U32x2_LDSM_N,
    SM75_U32x4_LDSM_N,
    cp_async,
    ldmatrix,
)
from kdsl_core.atoms.sm80.mma import (
    SM80_16x8x8_F16F16F16F16_TN,
    SM80_16x8x8_F32BF16BF16F32_TN,
    SM80_16x8x8_F32F16F16F32_TN,
    SM80_16x8x8_F32TF32TF32F32_TN,
    SM80_16x8x16_F16F16F16F16_TN,
    SM80_16x8x16_F32BF16BF16F32_TN,
    SM80_16x8x16_F32F16F16F32_TN,
    SM80_16x8x32_S32S8S8S32_TN,
    SM80_16x8x32_S32S8U8S32_TN,
    SM80_16x8x32_S32U8S8S32_TN,
    SM80_16x8x32_S32U8U8S32_TN,
)
from kdsl_core.atoms.sm89.mma import (
    SM89_16x8x32_F32E4M3E4M3F32_TN,
    SM89_16x8x32_F32E4M3E5M2F32_TN,
    SM89_16x8x32_F32E5M2E4M3F32_TN,
    SM89_16x8x32_F32E5M2E5M2F32_TN,
)
from kdsl_core.atoms.sm90.copy import (
    SM90_U16x2_STSM_T,
    SM90_U16x4_STSM_T,
    SM90_U16x8_STSM_T,
    SM90_U32x1_STSM_N,
    SM90_U32x2_STSM_N,
    SM90_U32x4_STSM_N,
    stmatrix,
)
from kdsl_core.atoms.sm90.mma import (
    WgmmaAtom,
    wgmma,
    wgmma_named,
)
from kdsl_core.atoms.sm90.shared_layouts import (
    descriptor_fields,
    shared_operand,
    smem_atom,
)
from kdsl_core.atoms.tiled_copy import (
    ThrCopy,
    TiledCopy,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
)
from kdsl_core.atoms.tiled_mma import (
    ThrMma,
    TiledMma,
    tiled_mma,
)
from kdsl_core.atoms.universal import (
    UNIVERSAL_COPY_8,
    UNIVERSAL_COPY_16,
    UNIVERSAL_COPY_32,
    UNIVERSAL_COPY_64,
    UNIVERSAL_COPY_128,
    UNIVERSAL_FMA_F32,
    UNIVERSAL_FMA_F64,
    universal_copy,
)

__all__ = [
    "ALL_COPY_ATOMS",
    "ALL_MMA_ATOMS",
    "SM80_CP_ASYNC_CACHEALWAYS_U32",
    "SM80_CP_ASYNC_CACHEALWAYS_U64",
    "SM80_CP_ASYNC_CACHEALWAYS_U128",
    "SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U32",
    "SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U64",
    "SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U128",
    "SM80_CP_ASYNC_CACHEGLOBAL_U128",
    "SM80_CP_ASYNC_CACHEGLOBAL_ZFILL_U128",
    "UNIVERSAL_COPY_8",
    "UNIVERSAL_COPY_16",
    "UNIVERSAL_COPY_32",
    "UNIVERSAL_COPY_64",
    "UNIVERSAL_COPY_128",
    "UNIVERSAL_FMA_F32",
    "UNIVERSAL_FMA_F64",
    "CopyAtom",
    "CopyKind",
    "MmaAtom",
    "Operand",
    "SM75_U16x2_LDSM_T",
    "SM75_U16x4_LDSM_T",
    "SM75_U16x8_LDSM_T",
    "SM75_U32x1_LDSM_N",
    "SM75_U32x2_LDSM_N",
    "SM75_U32x4_LDSM_N",
    "SM80_16x8x8_F16F16F16F16_TN",
    "SM80_16x8x8_F32BF16BF16F32_TN",
    "SM80_16x8x8_F32F16F16F32_TN",
    "SM80_16x8x8_F32TF32TF32F32_TN",
    "SM80_16x8x16_F16F16F16F16_TN",
    "SM80_16x8x16_F32BF16BF16F32_TN",
    "SM80_16x8x16_F32F16F16F32_TN",
    "SM80_16x8x32_S32S8S8S32_TN",
    "SM80_16x8x32_S32S8U8S32_TN",
    "SM80_16x8x32_S32U8S8S32_TN",
    "SM80_16x8x32_S32U8U8S32_TN",
    "SM89_16x8x32_F32E4M3E4M3F32_TN",
    "SM89_16x8x32_F32E4M3E5M2F32_TN",
    "SM89_16x8x32_F32E5M2E4M3F32_TN",
    "SM89_16x8x32_F32E5M2E5M2F32_TN",
    "SM90_U16x2_STSM_T",
    "SM90_U16x4_STSM_T",
    "SM90_U16x8_STSM_T",
    "SM90_U32x1_STSM_N",
    "SM90_U32x2_STSM_N",
    "SM90_U32x4_STSM_N",
    "ThrCopy",
    "ThrMma",
    "TiledCopy",
    "TiledMma",
    "WgmmaAtom",
    "cp_async",
    "descriptor_fields",
    "find",
    "ldmatrix",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "shared_operand",
    "smem_atom",
    "stmatrix",
    "tiled_mma",
    "universal_copy",
    "wgmma",
    "wgmma_named",
]


def __getattr__(name: str) -> WgmmaAtom:
    """The `wgmma` of CuTe's name: kd.atoms.SM90_64x128x16_F32F16F16_SS."""
    atom = wgmma_named(name)
    if atom is None:
        raise AttributeError(f"kdsl_core.atoms has no {name!r}")
    return atom
