"""How many instructions a kernel has, in PTX and in machine code, by what they are for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# The first prefix that fits says the kind; what fits none is told by its type.
_PTX = (
    ("tensor", ("mma.", "wgmma.mma_async", "tcgen05.mma")),
    ("matrix_copy", ("ldmatrix", "stmatrix", "movmatrix")),
    ("bulk_copy", ("cp.async.bulk", "cp.reduce.async.bulk")),
    ("async_copy", ("cp.async",)),
    ("shared", ("ld.shared", "st.shared", "atom.shared", "red.shared", "red.async", "st.async")),
    ("local", ("ld.local", "st.local")),
    ("parameter", ("ld.param", "ld.const")),
    ("global", ("ld.", "st.", "ldu.", "atom.", "red.", "prefetch")),
    ("barrier", ("bar.", "barrier", "mbarrier", "fence", "membar", "wgmma.", "griddepcontrol")),
    ("warp", ("shfl", "vote", "match", "redux", "elect", "activemask")),
    ("branch", ("bra", "brx", "call", "ret", "exit", "trap")),
    ("convert", ("cvt",)),
    ("move", ("mov", "selp", "prmt")),
)
_SASS = (
    ("tensor", ("HMMA", "IMMA", "DMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTC")),
    ("matrix_copy", ("LDSM", "STSM", "MOVM")),
    ("bulk_copy", ("UTMA", "UBLKCP", "UBLKRED")),
    ("async_copy", ("LDGSTS", "LDGDEPBAR")),
    ("shared", ("LDS", "STS", "ATOMS", "STAS", "REDAS")),
    ("local", ("LDL", "STL")),
    ("parameter", ("LDC", "ULDC", "LDCU")),
    ("global", ("LDG", "STG", "LD", "ST", "ATOM", "RED", "CCTL")),
    ("barrier", ("BAR", "SYNCS", "DEPBAR", "MEMBAR", "FENCE", "WARPGROUP", "WARPSYNC", "UCGABAR",
                 "ERRBAR", "CGAERRBAR", "ACQBULK", "PREEXIT", "ENDCOLLECTIVE")),
    ("warp", ("SHFL", "VOTE", "MATCH", "REDUX", "ELECT")),
    ("branch", ("BRA", "BRX", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "JMP", "BPT", "KILL",
                "YIELD", "NANOSLEEP")),
    ("convert", ("F2", "I2", "FRND")),
    ("move", ("MOV", "UMOV", "SEL", "USEL", "FSEL", "PRMT", "UPRMT", "R2UR", "S2", "CS2", "P2R",
              "R2P", "USETMAXREG")),
    ("float", ("FADD", "FMUL", "FFMA", "FMNMX", "FSET", "FCHK", "FSWZ", "MUFU", "HADD", "HMUL",
               "HFMA", "HMNMX", "HSET", "DADD", "DMUL", "DFMA", "DSET")),
)  # fmt: skip
_FLOAT = re.compile(r"\.(?:f\d+|bf16|tf32|e4m3|e5m2)")
_GUARD = re.compile(r"@!?\S+\s+")
_NO_INSTRUCTION = (".", "/", "$", "{", "}", "(", ")")


def ptx_counts(text: str) -> dict[str, int]:
    """Instructions of a PTX text by kind; "instructions" are all of them.

    >>> ptx_counts("{\\n  ld.global.b32 %f1, [%rd1];\\n  @%p1 add.f32 %f1, %f1, 0f0;\\n}")
    {'instructions': 2, 'global': 1, 'float': 1}
    """
    lines = (line.strip() for line in text.splitlines())
    codes = (line for line in lines if line.endswith(";") and not line.startswith(_NO_INSTRUCTION))
    return _counted(map(_ptx_kind, codes))


def sass_counts(instructions: Iterable[str]) -> dict[str, int]:
    """Machine instructions by kind, as `nvdisasm` spells them, without those that only fill up.

    >>> sass_counts(["@!P0 LDG.E R2, [R2] ;", "FADD R5, R2, 1 ;", "NOP;"])
    {'instructions': 2, 'global': 1, 'float': 1}
    """
    codes = (_opcode(line) for line in instructions)
    kinds = (_kind(code, _SASS) or "integer" for code in codes if code.split(".")[0] != "NOP")
    return _counted(kinds)


def _counted(kinds: Iterable[str]) -> dict[str, int]:
    found = Counter(kinds)
    return {"instructions": found.total(), **found}


def _opcode(line: str) -> str:
    return _GUARD.sub("", line, count=1).split(maxsplit=1)[0].rstrip(";")


def _ptx_kind(line: str) -> str:
    code = _opcode(line)
    return _kind(code, _PTX) or ("float" if _FLOAT.search(code) else "integer")


def _kind(code: str, kinds: tuple[tuple[str, tuple[str, ...]], ...]) -> str | None:
    return next((kind for kind, prefixes in kinds if code.startswith(prefixes)), None)
