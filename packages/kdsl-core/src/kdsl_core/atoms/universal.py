"""Atoms of one thread that every chip has: fused multiply-add, and plain loads and stores."""

from __future__ import annotations

from kdsl_core.atoms.copy_atom import CopyAtom
from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.dtypes import DType, f32, f64
from kdsl_core.errors import TypeMismatch
from kdsl_core.layout import Layout

ONE_THREAD = Layout(1, 0)
_ONE = Layout((1, 1), (0, 0))  # (T1,V1) -> (M1,K1)


def _fma(name: str, dtype: DType) -> MmaAtom:
    types = (dtype, dtype, dtype, dtype)
    mnemonic = f"fma.rn.{dtype.ptx}"
    return MmaAtom(name, (1, 1, 1), *types, ONE_THREAD, _ONE, _ONE, _ONE, mnemonic)


UNIVERSAL_FMA_F32 = _fma("UNIVERSAL_FMA_F32", f32)
UNIVERSAL_FMA_F64 = _fma("UNIVERSAL_FMA_F64", f64)


def one_thread_bits(bits: int) -> Layout:
    """(T1, bits) ↦ bit: one thread moves neighbouring bits."""
    return Layout((1, bits), (0, 1))


def _copy(bits: int) -> CopyAtom:
    tv = one_thread_bits(bits)
    return CopyAtom(
        f"UNIVERSAL_COPY_{bits}", "universal", bits, ONE_THREAD, tv, tv, tv, mnemonic="ld, st"
    )


UNIVERSAL_COPY_8 = _copy(8)
UNIVERSAL_COPY_16 = _copy(16)
UNIVERSAL_COPY_32 = _copy(32)
UNIVERSAL_COPY_64 = _copy(64)
UNIVERSAL_COPY_128 = _copy(128)

MMA_ATOMS = (UNIVERSAL_FMA_F32, UNIVERSAL_FMA_F64)
COPY_ATOMS = (
    UNIVERSAL_COPY_8,
    UNIVERSAL_COPY_16,
    UNIVERSAL_COPY_32,
    UNIVERSAL_COPY_64,
    UNIVERSAL_COPY_128,
)


def universal_copy(bits: int) -> CopyAtom:
    """The copy of `bits` bits by one thread through registers, in any memory.

    Raises: TypeMismatch when no single load has this width.
    """
    for atom in COPY_ATOMS:
        if atom.bits == bits:
            return atom
    raise TypeMismatch(
        f"a thread loads 8, 16, 32, 64 or 128 bits at once, not {bits}",
        code="K241",
        fix="choose the next smaller width",
    )
