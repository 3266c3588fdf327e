"""The smallest swizzle or padding of shared memory under which accesses do not collide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kdsl_core.atoms import Operand
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import LayoutError
from kdsl_core.inspect.accesses import (
    LOADS,
    Access,
    Op,
    address_requests,
    as_access,
    element_type,
    requests_of,
)
from kdsl_core.inspect.banks import BANK_BYTES, BANKS, count
from kdsl_core.inspect.elements import Subject, elements, offsets_in
from kdsl_core.ir.protocols import Array
from kdsl_core.layout import (
    AnyLayout,
    ComposedLayout,
    Layout,
    Swizzle,
    cosize,
    flatten_tuple,
    inner_of,
    unflatten_tuple,
)
from kdsl_core.records import dataclass

_MOST_BITS = 5  # 32 banks


@dataclass(frozen=True)
class Suggestion:
    """A layout for shared memory, and the wavefronts that the accesses take on it.

    `swizzle` is None where it has none; `padding` counts the elements that each line grows by.
    """

    layout: AnyLayout
    swizzle: Swizzle | None
    padding: int
    wavefronts: int
    ideal: int

    @property
    def free(self) -> bool:
        """Whether nothing collides."""
        return self.wavefronts == self.ideal

    def __str__(self) -> str:
        verdict = "no conflicts" if self.free else f"{self.ideal} ideal"
        return f"{self.layout}: {self.wavefronts} wavefronts, {verdict}"


def suggest_swizzle(
    memory: AnyLayout,
    *accesses: Subject | Access,
    dtype: Any = None,
    op: Op | None = None,
    width: int | None = None,
    operand: Operand = "A",
    swizzle: bool = True,
    padding: bool = True,
) -> Suggestion:
    """The least change to a shared-memory layout that frees all accesses from bank conflicts.

    The plain layout is tried first, then swizzles (they cost no memory) by their number of bits,
    base and shift, then padding of the lines by what costs least memory; where nothing removes
    all conflicts, the candidate of fewest wavefronts is returned, so look at `.free`. Every access
    keeps the width that it has on the plain layout. `dtype`, `op`, `width` and `operand` hold for
    accesses that are not given as `Access`. A swizzle that `memory` has already is left out.

    >>> from kdsl_core.dtypes import f32
    >>> from kdsl_core.layout import Layout
    >>> tile = Layout((32, 32), (32, 1))
    >>> column, row = Layout((32, 32)), Layout((32, 32), (32, 1))  # (lane, value) -> index
    >>> print(suggest_swizzle(tile, Access(column, width=4), Access(row, width=4), dtype=f32))
    Sw<5,0,5>o0o(32,32):(32,1): 64 wavefronts, no conflicts
    >>> print(suggest_swizzle(tile, column, dtype=f32, width=4, swizzle=False))
    (32,32):(33,1): 32 wavefronts, no conflicts

    Raises: LayoutError without accesses, or when one does not fit the memory.
    """
    plain = inner_of(memory)
    wanted = [as_access(access, op, width, operand) for access in accesses]
    if not wanted:
        raise LayoutError(
            "no access to free from conflicts was given",
            code="K188",
            fix="pass the tiled copies, tiled mmas or layouts that read and write the tile",
        )
    moves = [_Move.of(access, plain, dtype) for access in wanted]
    best = None
    for candidate in _candidates(plain, moves, swizzle, padding):
        found = _judge(candidate, moves, plain)
        if best is None or found.wavefronts - found.ideal < best.wavefronts - best.ideal:
            best = found
        if best.free:
            break
    assert best is not None  # the plain layout is a candidate
    return best


@dataclass(frozen=True, eq=False)
class _Move:
    """An access with its elements as indices into the memory, and its width made definite."""

    access: Access
    index: Array
    dtype: DType

    @classmethod
    def of(cls, access: Access, plain: Layout, dtype: Any) -> _Move:
        element = element_type(access) if dtype is None else dtype_of(dtype)
        first = requests_of(access, plain, element, 0, "shared")
        fixed = Access(access.subject, first.op, first.width, access.operand)
        return cls(
            fixed, elements(access.subject, access.operand, first.op in LOADS, plain), element
        )

    @property
    def vector(self) -> int:
        """Elements that stay neighbours."""
        assert self.access.width is not None
        return max(self.access.width // self.dtype.bytes, 1)


def _candidates(
    plain: Layout, moves: Sequence[_Move], swizzle: bool, padding: bool
) -> Iterator[AnyLayout]:
    vector = max(move.vector for move in moves)
    element = min(move.dtype.bytes for move in moves)
    yield plain
    if swizzle:
        yield from _swizzled(plain, vector, element)
    if padding:
        yield from _padded(plain, vector, element)


def _swizzled(plain: Layout, vector: int, element: int) -> Iterator[AnyLayout]:
    """Swizzles of whole vectors within the 128 bytes of the banks, that stay in the memory."""
    span = int(cosize(plain))
    lowest = (vector - 1).bit_length()
    top = (max(BANKS * BANK_BYTES // element, 1) - 1).bit_length()
    for bits in range(1, _MOST_BITS + 1):
        for base in range(lowest, top - bits + 1):
            for shift in range(bits, (span - 1).bit_length() - base - bits + 1):
                if span % (1 << (base + bits)) == 0:
                    yield ComposedLayout(Swizzle(bits, base, shift), 0, plain)


def _padded(plain: Layout, vector: int, element: int) -> Iterator[AnyLayout]:
    """Lines longer by whole vectors, those first that take least memory."""
    strides = flatten_tuple(plain.stride) if isinstance(plain.stride, tuple) else (plain.stride,)
    found: list[Layout] = []
    for line in sorted({stride for stride in strides if stride > 1}):
        if any(stride > line and stride % line for stride in strides):
            continue
        for pad in range(vector, max(BANKS * BANK_BYTES // element, vector) + 1, vector):
            longer = [s + s // line * pad if s >= line else s for s in strides]
            stride = unflatten_tuple(longer, plain.shape) if len(longer) > 1 else longer[0]
            found.append(Layout(plain.shape, stride))
    yield from sorted(found, key=cosize)


def _judge(candidate: AnyLayout, moves: Sequence[_Move], plain: Layout) -> Suggestion:
    totals = [0, 0]
    for move in moves:
        op = move.access.op
        assert op is not None
        offset = offsets_in(candidate, move.index)
        taken = count(address_requests(move.access, op, offset, move.dtype))
        totals = [total + more for total, more in zip(totals, taken, strict=True)]
    swizzle = candidate.outer if isinstance(candidate, ComposedLayout) else None
    return Suggestion(candidate, swizzle, _growth(candidate, plain), totals[0], totals[1])


def _growth(candidate: AnyLayout, plain: Layout) -> int:
    """How much longer the first line that grew is."""
    before, after = (
        flatten_tuple(x.stride) if isinstance(x.stride, tuple) else (x.stride,)
        for x in (plain, inner_of(candidate))
    )
    grown = [b - a for a, b in zip(before, after, strict=True) if b != a]
    return int(min(grown, default=0))
