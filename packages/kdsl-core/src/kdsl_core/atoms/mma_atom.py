"""The row type of matrix instructions: shape, types, and which thread holds which element."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from kdsl_core.dtypes import DType
from kdsl_core.ir.target import BASELINE, Need
from kdsl_core.layout import Layout, size
from kdsl_core.records import dataclass

Operand: TypeAlias = Literal["A", "B", "C"]


@dataclass(frozen=True)
class MmaAtom:
    """One matrix multiply-accumulate D = A·B + C of M × N × K elements by a few threads.

    `tv_a`, `tv_b` and `tv_c` map (thread, value) to the index in the M × K, N × K and M × N
    matrix, first mode fastest; D lies as C does. `thr_id` maps the atom's thread number to the
    lane. `mnemonic` is the PTX instruction.

    Shapes: A is M × K, B is N × K (so both are K-major when the name ends in TN), C is M × N.
    Threads: all of `thr_id`, converged.
    """

    name: str
    shape_mnk: tuple[int, int, int]
    d: DType
    a: DType
    b: DType
    c: DType
    thr_id: Layout
    tv_a: Layout
    tv_b: Layout
    tv_c: Layout
    mnemonic: str
    need: Need = field(default=BASELINE)

    @property
    def types(self) -> tuple[DType, DType, DType, DType]:
        """The types of D, A, B and C, in the order of the name."""
        return self.d, self.a, self.b, self.c

    @property
    def threads(self) -> int:
        """How many threads execute it together."""
        return int(size(self.thr_id))

    def tv(self, operand: Operand) -> Layout:
        """(thread, value) ↦ index in the matrix of an operand."""
        return {"A": self.tv_a, "B": self.tv_b, "C": self.tv_c}[operand]

    def dtype(self, operand: Operand) -> DType:
        """The element type of an operand."""
        return {"A": self.a, "B": self.b, "C": self.c}[operand]

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show: who holds which element."""
        from kdsl_core.atoms.picture import notebook_svg

        return notebook_svg(self)

    def __str__(self) -> str:
        return self.name
