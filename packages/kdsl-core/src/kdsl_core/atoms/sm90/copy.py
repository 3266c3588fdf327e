"""`stmatrix` of Hopper: the way back of `ldmatrix`.

Source: PTX ISA, "stmatrix" (7.8).
"""

from __future__ import annotations

from kdsl_core.atoms.copy_atom import CopyAtom
from kdsl_core.atoms.sm80.copy import COLUMN_PAIRS, PAIRS, ROWS, WARP
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir.target import Need


def _stmatrix(name: str, matrices: int, transposed: bool) -> CopyAtom:
    fragment = (COLUMN_PAIRS if transposed else PAIRS)[matrices]
    mnemonic = f"stmatrix.sync.aligned.m8n8.x{matrices}{'.trans' if transposed else ''}.shared.b16"
    return CopyAtom(
        name,
        "stmatrix",
        128,
        WARP,
        src=fragment,
        dst=ROWS[matrices],
        ref=fragment,
        mnemonic=mnemonic,
        matrices=matrices,
        transposed=transposed,
        need=Need(sm=90, ptx=(7, 8)),
    )


SM90_U32x1_STSM_N = _stmatrix("SM90_U32x1_STSM_N", 1, transposed=False)
SM90_U32x2_STSM_N = _stmatrix("SM90_U32x2_STSM_N", 2, transposed=False)
SM90_U32x4_STSM_N = _stmatrix("SM90_U32x4_STSM_N", 4, transposed=False)
SM90_U16x2_STSM_T = _stmatrix("SM90_U16x2_STSM_T", 1, transposed=True)
SM90_U16x4_STSM_T = _stmatrix("SM90_U16x4_STSM_T", 2, transposed=True)
SM90_U16x8_STSM_T = _stmatrix("SM90_U16x8_STSM_T", 4, transposed=True)

COPY_ATOMS = (
    SM90_U32x1_STSM_N,
    SM90_U32x2_STSM_N,
    SM90_U32x4_STSM_N,
    SM90_U16x2_STSM_T,
    SM90_U16x4_STSM_T,
    SM90_U16x8_STSM_T,
)


def stmatrix(matrices: int, transposed: bool = False) -> CopyAtom:
    """The warp's store of 1, 2 or 4 matrices of 8 × 8 16-bit elements to shared memory.

    Raises: TypeMismatch for another number of matrices.
    """
    for atom in COPY_ATOMS:
        if (atom.matrices, atom.transposed) == (matrices, transposed):
            return atom
    raise TypeMismatch(
        f"stmatrix stores 1, 2 or 4 matrices, not {matrices}", code="K244", fix="use 4 or 2"
    )
