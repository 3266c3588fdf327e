"""All atoms, and the best matrix atom for a chip and types."""

from __future__ import annotations

from collections.abc import Iterable

from kdsl_core.atoms import universal
from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.atoms.sm80 import copy as sm80_copy
from kdsl_core.atoms.sm80 import mma as sm80
from kdsl_core.atoms.sm89 import mma as sm89
from kdsl_core.atoms.sm90 import copy as sm90_copy
from kdsl_core.atoms.sm90.mma import wgmma
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import TargetError, TypeMismatch
from kdsl_core.ir.target import Target, target_of

ALL_MMA_ATOMS = universal.MMA_ATOMS + sm80.MMA_ATOMS + sm89.MMA_ATOMS
ALL_COPY_ATOMS = universal.COPY_ATOMS + sm80_copy.COPY_ATOMS + sm90_copy.COPY_ATOMS


def find(
    *,
    arch: str | Target,
    a: str | DType,
    b: str | DType | None = None,
    acc: str | DType = "f32",
    k: int | None = None,
    n: int | None = None,
) -> MmaAtom:
    """The atom of the most multiply-adds for these types on a chip; `b` is like `a` if left out.

    With `n` it is the one of a warp group that is 64 × n, operands in shared memory and K-major;
    without, one of a single warp or thread.

    >>> find(arch="sm_80", a="bf16").name
    'SM80_16x8x16_F32BF16BF16F32_TN'
    >>> find(arch="sm_90a", a="bf16", n=256).name
    'SM90_64x256x16_F32BF16BF16_SS'

    Raises: TypeMismatch when no atom has the types (and K), TargetError when the chip lacks it.
    """
    target = target_of(arch)
    wanted = dtype_of(a), dtype_of(a if b is None else b), dtype_of(acc)
    what = "A {}, B {} and accumulator {}".format(*wanted) + (f", K {k}" if k else "")
    candidates = ALL_MMA_ATOMS if n is None else (wgmma(n, *wanted),)
    fitting = [x for x in candidates if (x.a, x.b, x.c) == wanted and k in (None, _k(x))]
    if not fitting:
        raise TypeMismatch(
            f"no matrix atom has {what}",
            code="K245",
            notes=[f"nearest: {_names(_nearest(wanted))}"],
            fix="convert the operands, or choose another accumulator",
        )
    present = [x for x in fitting if x.need.missing(target) is None]
    if not present:
        others = [x for x in _nearest(wanted) if x.need.missing(target) is None]
        raise TargetError(
            f"{fitting[0].name} is not on {target}: {fitting[0].need.missing(target)}",
            code="K440",
            notes=[f"nearest on {target}: {_names(others)}"],
            fix="build for a newer target, or convert the operands",
        )
    return max(present, key=_work)


def _k(atom: MmaAtom) -> int:
    return atom.shape_mnk[2]


def _work(atom: MmaAtom) -> int:
    m, n, k = atom.shape_mnk
    return m * n * k


def _nearest(wanted: tuple[DType, DType, DType]) -> list[MmaAtom]:
    """All atoms, those that share most with the types first."""

    def distance(atom: MmaAtom) -> tuple[int, int]:
        pairs = list(zip((atom.a, atom.b, atom.c), wanted, strict=True))
        other_types = sum(have is not want for have, want in pairs)
        other_kinds = sum((have.kind, have.bits) != (want.kind, want.bits) for have, want in pairs)
        return other_types + other_kinds, -_work(atom)

    return sorted(ALL_MMA_ATOMS, key=distance)


def _names(atoms: Iterable[MmaAtom]) -> str:
    return ", ".join([x.name for x in atoms][:3])
