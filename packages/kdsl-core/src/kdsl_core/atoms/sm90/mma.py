"""`wgmma` of Hopper: one warp group multiplies operands that lie in shared memory.

Source: PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of `wgmma` (8.0).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, TypeAlias

from kdsl_core.atoms.mma_atom import MmaAtom
from kdsl_core.dtypes import DType, dtype_of, f32, i32
from kdsl_core.errors import TypeMismatch
from kdsl_core.isa.wgmma_shapes import MAJORS, ROWS, TYPES, WgmmaShape, shape_of
from kdsl_core.layout import Layout
from kdsl_core.records import dataclass

Major: TypeAlias = Literal["K", "MN"]
WARP_GROUP = Layout(128, 1)

# Fragments: thread = 32·warp + 4·row + column group, as `mma.sync` has them in each warp.
# bits of an element → (T128,V) -> (M64,K) of A in registers
A_REGISTERS = {
    16: Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512))),
    32: Layout(((4, 8, 4), (2, 2)), ((64, 1, 16), (8, 256))),
    8: Layout(((4, 8, 4), (4, 2, 2)), ((256, 1, 16), (64, 8, 1024))),
}


def c_registers(n: int) -> Layout:
    """(T128,V) ↦ (M64,N): the accumulators."""
    return Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))


def in_shared(rows: int, depth: int) -> Layout:
    """(T128,(rows,depth)): every thread names the whole matrix."""
    return Layout((128, (rows, depth)), (0, (1, rows)))


@dataclass(frozen=True)
class WgmmaAtom(MmaAtom):
    """A `wgmma`; A comes from shared memory or from registers, B from shared memory.

    `a_major` and `b_major` say along which mode neighbours lie: "K", or "MN" for 16-bit types.

    Threads: the four warps of a warp group.
    """

    a_from: str = "shared"
    a_major: str = "K"
    b_major: str = "K"

    @property
    def shape(self) -> WgmmaShape:
        """The instruction."""
        return shape_of(self.shape_mnk[1], self.d, self.a, self.b)


def wgmma(
    n: int,
    a: str | DType,
    b: str | DType | None = None,
    d: str | DType | None = None,
    *,
    a_major: str = "K",
    b_major: str = "K",
    a_from: str = "shared",
) -> WgmmaAtom:
    """The `wgmma` of 64 × n and these types of A, B (like A if left out) and accumulators.

    Accumulators are f32, or i32 of integers, if left out.

    >>> wgmma(128, "bf16").name, wgmma(96, "e4m3", "e5m2", a_from="registers").name
    ('SM90_64x128x16_F32BF16BF16_SS', 'SM90_64x96x32_F32E4M3E5M2_RS_TN')

    Raises: TypeMismatch when there is no such instruction.
    """
    first = dtype_of(a)
    second = first if b is None else dtype_of(b)
    sums = (i32 if first.is_int else f32) if d is None else dtype_of(d)
    return _atom(shape_of(n, sums, first, second), a_from, a_major, b_major)


@cache
def _atom(shape: WgmmaShape, a_from: str, a_major: str, b_major: str) -> WgmmaAtom:
    _check(shape, a_from, a_major, b_major)
    n, k = shape.n, shape.k
    in_registers = a_from == "registers"
    return WgmmaAtom(
        _name(shape, in_registers, a_major, b_major),
        (ROWS, n, k),
        shape.d,
        shape.a,
        shape.b,
        shape.d,
        WARP_GROUP,
        A_REGISTERS[shape.a.bits] if in_registers else in_shared(ROWS, k),
        in_shared(n, k),
        c_registers(n),
        shape.text,
        shape.need,
        a_from,
        a_major,
        b_major,
    )


def _check(shape: WgmmaShape, a_from: str, a_major: str, b_major: str) -> None:
    chosen = (a_from, a_major, b_major)
    choices = (("shared", "registers"), MAJORS, MAJORS)
    transposed = "MN" in (a_major, b_major)
    if any(x not in allowed for x, allowed in zip(chosen, choices, strict=True)) or (
        (transposed and not shape.transposable) or (a_from == "registers" and a_major != "K")
    ):
        raise TypeMismatch(
            f"no wgmma of {shape.a} takes A from {a_from} with major {a_major} and B with major "
            f"{b_major}",
            code="K288",
            notes=[
                'a_from is "shared" or "registers", a major "K" or "MN"',
                "only 16-bit operands in shared memory may be MN-major",
            ],
            fix="store the operand K-major, or transpose a copy of it first",
        )


def _name(shape: WgmmaShape, in_registers: bool, a_major: str, b_major: str) -> str:
    """CuTe's name; a major that is not K follows in angle brackets."""
    types = "".join(t.ptx.upper() for t in (shape.d, shape.a, shape.b))
    where = "RS" if in_registers else "SS"
    suffix = "" if shape.transposable else "_TN"
    majors = f"<{a_major},{b_major}>" if "MN" in (a_major, b_major) else ""
    return f"SM90_{ROWS}x{shape.n}x{shape.k}_{types}_{where}{suffix}{majors}"


_TYPE_NAMES = {"".join(t.ptx.upper() for t in row): row for row in TYPES}
_NAME = re.compile(r"SM90_64x(\d+)x(\d+)_([A-Z0-9]+)_(SS|RS)(_TN)?(?:<(K|MN),(K|MN)>)?")


def wgmma_named(name: str) -> WgmmaAtom | None:
    """The atom of CuTe's name, such as SM90_64x128x16_F32F16F16_SS; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or match[3] not in _TYPE_NAMES:
        return None
    d, a, b = _TYPE_NAMES[match[3]]
    where = {"SS": "shared", "RS": "registers"}[match[4]]
    atom = wgmma(
        int(match[1]), a, b, d, a_major=match[6] or "K", b_major=match[7] or "K", a_from=where
    )
    return atom if atom.name.partition("<")[0] == name.partition("<")[0] else None
