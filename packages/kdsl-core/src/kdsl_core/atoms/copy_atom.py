"""The row type of copy instructions: which thread reads which bits, and which it ends up with."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from kdsl_core.dtypes import DType
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir.target import BASELINE, Need
from kdsl_core.layout import Layout, recast_layout, size
from kdsl_core.records import dataclass

CopyKind: TypeAlias = Literal["universal", "cp.async", "ldmatrix", "stmatrix"]


@dataclass(frozen=True)
class CopyAtom:
    """One copy instruction of a few threads.

    `src` and `dst` map (thread, bit) to the bit of the block that the instruction moves, as the
    source and as the destination see it; `ref` is the side that a tiled copy numbers its threads
    by. `bits` is what one thread moves with one address, `matrices` how many 8 × 8 matrices of
    16-bit elements it moves together.

    Units: bits.
    """

    name: str
    kind: CopyKind
    bits: int
    thr_id: Layout
    src: Layout
    dst: Layout
    ref: Layout
    mnemonic: str
    matrices: int = 0
    transposed: bool = False
    cache: str = ""
    zfill: bool = False
    need: Need = field(default=BASELINE)

    @property
    def bytes(self) -> int:
        """Bytes at one address."""
        return self.bits // 8

    @property
    def threads(self) -> int:
        """How many threads execute it together."""
        return int(size(self.thr_id))

    def value_layouts(self, dtype: DType) -> tuple[Layout, Layout, Layout]:
        """`src`, `dst` and `ref` in elements of `dtype` instead of bits.

        Raises: TypeMismatch when an element is wider than the pieces that the instruction moves.
        """
        piece = min(contiguous_bits(x) for x in (self.src, self.dst))
        if dtype.bits > piece:
            raise TypeMismatch(
                f"{self.name} moves pieces of {piece} bits, and {dtype} has {dtype.bits}",
                code="K240",
                fix="choose an atom that moves whole elements",
            )
        src, dst, ref = (recast_layout(x, 1, dtype.bits) for x in (self.src, self.dst, self.ref))
        return src, dst, ref

    def _repr_svg_(self) -> str | None:
        """The picture that notebooks show: who holds which element."""
        from kdsl_core.atoms.picture import notebook_svg

        return notebook_svg(self)

    def __str__(self) -> str:
        return self.name


def contiguous_bits(tv: Layout) -> int:
    """How many neighbouring bits of the block one thread surely holds together."""
    values = tv[1]
    first = values[0] if isinstance(values.shape, tuple) else values
    return int(first.shape) if first.stride == 1 else 1
