"""The `wgmma` instructions that there are: widths, types, and what each needs of the target.

Source: PTX ISA 9.0, "Matrix Shape" and "Matrix Data-types" of `wgmma`.
"""

from __future__ import annotations

from functools import cached_property

from kdsl_core.dtypes import DType, bf16, e4m3, e5m2, f16, f32, i8, i32, tf32, u8
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Need
from kdsl_core.isa.mma import MmaShape
from kdsl_core.records import dataclass

ROWS = 64
WARPS = 4  # of a warp group
WARP_ROWS = ROWS // WARPS
DEPTH_BYTES = 32  # along K of one instruction
MAJORS = ("K", "MN")
NEED = Need(sm=90, ptx=(8, 0), only=(90,))
_MIXED_INTEGERS = Need(sm=90, ptx=(8, 4), only=(90,))

WIDTHS = tuple(range(8, 257, 8))
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))
_FP8 = (e4m3, e5m2)
_INT8 = (i8, u8)
TYPES: tuple[tuple[DType, DType, DType], ...] = (
    (f32, f16, f16),
    (f16, f16, f16),
    (f32, bf16, bf16),
    (f32, tf32, tf32),
    *((d, a, b) for d in (f32, f16) for a in _FP8 for b in _FP8),
    *((i32, a, b) for a in _INT8 for b in _INT8),
)
"""The element types (D, A, B) that can be multiplied."""


def widths_of(a: DType) -> tuple[int, ...]:
    """The N that instructions with operands of a type have."""
    return INTEGER_WIDTHS if a.is_int else WIDTHS


@dataclass(frozen=True)
class WgmmaShape:
    """One instruction: 64×N×K and the types of D, A and B."""

    n: int
    k: int
    d: DType
    a: DType
    b: DType

    @property
    def text(self) -> str:
        """The PTX instruction."""
        types = f"{self.d.ptx}.{self.a.ptx}.{self.b.ptx}"
        return f"wgmma.mma_async.sync.aligned.m{ROWS}n{self.n}k{self.k}.{types}"

    @property
    def registers(self) -> int:
        """Accumulator registers of each thread."""
        return self.of_warp.registers("c")

    @cached_property
    def of_warp(self) -> MmaShape:
        """The part of one warp: 16 rows, in registers as `mma.sync` has them."""
        return MmaShape(WARP_ROWS, self.n, self.k, self.d, self.a, self.b)

    @property
    def need(self) -> Need:
        """What it asks of the target."""
        return _MIXED_INTEGERS if self.a.is_int and self.a is not self.b else NEED

    @property
    def transposable(self) -> bool:
        """Whether operands may have neighbours along M and N instead of K."""
        return self.a.bits == 16

    @property
    def negatable(self) -> bool:
        """Whether operands may be negated on the way."""
        return self.a.is_float


def shape_of(n: int, d: DType, a: DType, b: DType) -> WgmmaShape:
    """The instruction of a width and types.

    Raises: TypeMismatch when there is none.
    """
    if (d, a, b) not in TYPES:
        raise TypeMismatch(
            f"no wgmma multiplies {a} by {b} into {d}",
            code="K284",
            notes=["D, A, B: " + ", ".join(" ".join(map(str, row)) for row in TYPES)],
            fix="give both operands one of these types, and accumulate in f32 (i32 for integers)",
        )
    if n not in widths_of(a):
        widths = ", ".join(map(str, INTEGER_WIDTHS)) if a.is_int else "a multiple of 8 up to 256"
        raise TypeMismatch(
            f"a wgmma of {a} has N = {widths}, got {n}",
            code="K285",
            fix="repeat a narrower instruction along N",
        )
    return WgmmaShape(n, DEPTH_BYTES // a.bytes, d, a, b)
