"""`cp.async` of Ampere and `ldmatrix` of Turing.

Source: PTX ISA, "cp.async" (7.0) and "ldmatrix" (6.5).
"""

from __future__ import annotations

from kdsl_core.atoms.copy_atom import CopyAtom
from kdsl_core.atoms.universal import ONE_THREAD, one_thread_bits
from kdsl_core.errors import TypeMismatch
from kdsl_core.layout import Layout

WARP = Layout(32, 1)

# Lanes give the addresses of 8-element rows: 8 lanes a matrix, the others repeat them.
ROWS = {
    1: Layout(((8, 4), 128), ((128, 0), 1)),  # (T32,V128) -> bit of 8 rows
    2: Layout(((16, 2), 128), ((128, 0), 1)),  # (T32,V128) -> bit of 16 rows
    4: Layout((32, 128), (128, 1)),  # (T32,V128) -> bit of 32 rows
}
# Lane 4·row + pair holds a pair of neighbours in its row, once per matrix.
PAIRS = {
    1: Layout((32, 32), (32, 1)),  # (T32,V32) -> bit
    2: Layout((32, (32, 2)), (32, (1, 1024))),  # (T32,V64) -> bit
    4: Layout((32, (32, 4)), (32, (1, 1024))),  # (T32,V128) -> bit
}
# Transposed, lane 4·column + pair holds neighbours in its column.
COLUMN_PAIRS = {
    1: Layout(((4, 8), (16, 2)), ((256, 16), (1, 128))),  # (T32,V32) -> bit
    2: Layout(((4, 8), (16, 2, 2)), ((256, 16), (1, 128, 1024))),  # (T32,V64) -> bit
    4: Layout(((4, 8), (16, 2, 4)), ((256, 16), (1, 128, 1024))),  # (T32,V128) -> bit
}


def _ldmatrix(name: str, matrices: int, transposed: bool) -> CopyAtom:
    fragment = (COLUMN_PAIRS if transposed else PAIRS)[matrices]
    mnemonic = f"ldmatrix.sync.aligned.m8n8.x{matrices}{'.trans' if transposed else ''}.shared.b16"
    return CopyAtom(
        name,
        "ldmatrix",
        128,
        WARP,
        src=ROWS[matrices],
        dst=fragment,
        ref=fragment,
        mnemonic=mnemonic,
        matrices=matrices,
        transposed=transposed,
    )


SM75_U32x1_LDSM_N = _ldmatrix("SM75_U32x1_LDSM_N", 1, transposed=False)
SM75_U32x2_LDSM_N = _ldmatrix("SM75_U32x2_LDSM_N", 2, transposed=False)
SM75_U32x4_LDSM_N = _ldmatrix("SM75_U32x4_LDSM_N", 4, transposed=False)
SM75_U16x2_LDSM_T = _ldmatrix("SM75_U16x2_LDSM_T", 1, transposed=True)
SM75_U16x4_LDSM_T = _ldmatrix("SM75_U16x4_LDSM_T", 2, transposed=True)
SM75_U16x8_LDSM_T = _ldmatrix("SM75_U16x8_LDSM_T", 4, transposed=True)


def _cp_async(cache: str, bits: int, zfill: bool = False) -> CopyAtom:
    policy = {"ca": "CACHEALWAYS", "cg": "CACHEGLOBAL"}[cache]
    tv = one_thread_bits(bits)
    return CopyAtom(
        f"SM80_CP_ASYNC_{policy}{'_ZFILL' if zfill else ''}_U{bits}",
        "cp.async",
        bits,
        ONE_THREAD,
        src=tv,
        dst=tv,
        ref=tv,
        mnemonic=f"cp.async.{cache}.shared.global",
        cache=cache,
        zfill=zfill,
    )


SM80_CP_ASYNC_CACHEALWAYS_U32 = _cp_async("ca", 32)
SM80_CP_ASYNC_CACHEALWAYS_U64 = _cp_async("ca", 64)
SM80_CP_ASYNC_CACHEALWAYS_U128 = _cp_async("ca", 128)
SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U32 = _cp_async("ca", 32, zfill=True)
SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U64 = _cp_async("ca", 64, zfill=True)
SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U128 = _cp_async("ca", 128, zfill=True)
SM80_CP_ASYNC_CACHEGLOBAL_U128 = _cp_async("cg", 128)  # .cg moves 16 bytes and nothing else
SM80_CP_ASYNC_CACHEGLOBAL_ZFILL_U128 = _cp_async("cg", 128, zfill=True)

COPY_ATOMS = (
    SM75_U32x1_LDSM_N,
    SM75_U32x2_LDSM_N,
    SM75_U32x4_LDSM_N,
    SM75_U16x2_LDSM_T,
    SM75_U16x4_LDSM_T,
    SM75_U16x8_LDSM_T,
    SM80_CP_ASYNC_CACHEALWAYS_U32,
    SM80_CP_ASYNC_CACHEALWAYS_U64,
    SM80_CP_ASYNC_CACHEALWAYS_U128,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U32,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U64,
    SM80_CP_ASYNC_CACHEALWAYS_ZFILL_U128,
    SM80_CP_ASYNC_CACHEGLOBAL_U128,
    SM80_CP_ASYNC_CACHEGLOBAL_ZFILL_U128,
)


def cp_async(size_bytes: int, cache: str | None = None, zfill: bool = False) -> CopyAtom:
    """The asynchronous copy of 4, 8 or 16 bytes from global to shared memory.

    Without `cache`, 16 bytes go past the first-level cache ("cg") and fewer through it ("ca").

    Raises: TypeMismatch when no cp.async moves as many bytes under that policy.
    """
    policy = cache or ("cg" if size_bytes == 16 else "ca")
    for atom in COPY_ATOMS:
        if atom.kind == "cp.async" and (atom.bytes, atom.cache, atom.zfill) == (
            size_bytes,
            policy,
            zfill,
        ):
            return atom
    raise TypeMismatch(
        f"cp.async moves 4, 8 or 16 bytes (with cache='cg' 16 only), not {size_bytes} with"
        f" cache={policy!r}",
        code="K242",
        fix="change the vector width, or copy through registers with universal_copy",
    )


def ldmatrix(matrices: int, transposed: bool = False) -> CopyAtom:
    """The warp's load of 1, 2 or 4 matrices of 8 × 8 16-bit elements from shared memory.

    Raises: TypeMismatch for another number of matrices.
    """
    for atom in COPY_ATOMS:
        same = atom.kind == "ldmatrix" and atom.transposed == transposed
        if same and atom.matrices == matrices:
            return atom
    raise TypeMismatch(
        f"ldmatrix loads 1, 2 or 4 matrices, not {matrices}", code="K243", fix="use 4 or 2"
    )
