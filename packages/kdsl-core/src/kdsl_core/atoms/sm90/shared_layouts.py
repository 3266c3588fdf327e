"""How operands of `wgmma` lie in shared memory: swizzled atoms, tiles of them, and descriptors.

An atom is 8 rows of a *span*: 16 (no swizzle), 32, 64 or 128 bytes of neighbours, along K ("K") or
along M or N ("MN"). A swizzle permutes 16-byte units with a period of 8 spans. A descriptor holds
two strides between atoms, LBO and SBO:

* K-major: SBO between groups of 8 rows; LBO between units along K when there is no swizzle.
* MN-major: SBO between groups of 8 along K, LBO between spans along M or N; without a swizzle the
  two change places.

Source: PTX ISA 9.0, "Strides" and "Matrix Descriptor Format" of `wgmma`; the canonical layouts of
CuTe C++ (mma_traits_sm90_gmma.hpp).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import LayoutError
from kdsl_core.isa.wgmma_shapes import MAJORS
from kdsl_core.layout import ComposedLayout, Layout, Swizzle, size, tile_to_shape

UNIT = 16  # bytes that stay together
GROUP = 8  # rows, or steps along K, of an atom
SPANS = (128, 64, 32, UNIT)
CODES = {UNIT: 0, 128: 1, 64: 2, 32: 3}
"""Bytes of a span ↦ the layout field of a descriptor."""
_UNUSED = UNIT  # what hardware does not look at is one unit


def swizzle_of(span: int, dtype: DType) -> Swizzle:
    """The swizzle of element offsets under a span of bytes; of 0 bits for no swizzle."""
    bits = (span // UNIT).bit_length() - 1
    return Swizzle(bits, (UNIT // dtype.bytes).bit_length() - 1, 3)


def smem_atom(dtype: str | DType, major: str = "K", swizzle: int = 128) -> ComposedLayout:
    """The smallest piece (rows, depth) that a swizzle of 128, 64, 32 or 0 bytes fills.

    >>> print(smem_atom("bf16"), smem_atom("f16", "MN", 64))
    Sw<3,3,3>o0o(8,64):(64,1) Sw<2,3,3>o0o(32,8):(1,32)
    """
    element, span = dtype_of(dtype), swizzle or UNIT
    _check_choice(major, swizzle)
    width = span // element.bytes
    inner = (
        Layout((GROUP, width), (width, 1)) if major == "K" else Layout((width, GROUP), (1, width))
    )
    return ComposedLayout(swizzle_of(span, element), 0, inner)


def shared_operand(
    dtype: str | DType,
    shape: tuple[int, int],
    *,
    major: str = "K",
    stages: int = 1,
    swizzle: int | None = None,
) -> ComposedLayout:
    """The layout (rows, depth, stages) of an operand that both `wgmma` and TMA take.

    `swizzle` None is the widest span that the contiguous extent is a multiple of. Each stage is one
    piece of memory, made of panels one span wide.

    >>> print(shared_operand("bf16", (128, 64), stages=4))
    Sw<3,3,3>o0o((8,16),(64,1),(1,4)):((64,512),(1,0),(0,8192))

    Units: `swizzle` in bytes: 128, 64, 32, or 0 for none.
    Raises: LayoutError when whole atoms do not fill the shape.
    """
    element = dtype_of(dtype)
    rows, depth = shape
    contiguous = (depth if major == "K" else rows) * element.bytes
    other = rows if major == "K" else depth
    if swizzle is None:
        span = next((s for s in SPANS if contiguous % s == 0), UNIT)
        swizzle = 0 if span == UNIT else span
    _check_choice(major, swizzle)
    span = swizzle or UNIT
    if contiguous % span or other % GROUP or not contiguous or not other or stages < 1:
        raise LayoutError(
            f"an operand of {rows} rows and depth {depth} of {element}, {major}-major, has "
            f"{contiguous} bytes of neighbours and {other} lines of them in {stages} stages; it "
            f"needs multiples of {span} bytes and {GROUP} lines",
            code="K441",
            fix="round the tile up, or choose a narrower swizzle",
        )
    order = (0, 1, 2) if major == "K" else (1, 0, 2)  # a panel is one piece
    atom = smem_atom(element, major, swizzle)
    layout: ComposedLayout = tile_to_shape(atom, (rows, depth, stages), order)
    return layout


def _check_choice(major: str, swizzle: int) -> None:
    if major not in MAJORS or (swizzle or UNIT) not in SPANS:
        raise LayoutError(
            f"a shared operand has major K or MN and a swizzle of 128, 64, 32 or 0 bytes, got "
            f"{major!r} and {swizzle!r}",
            code="K289",
            fix='write major="K" (neighbours along K) or "MN"',
        )


def span_of(layout: Layout | ComposedLayout, dtype: DType) -> int:
    """The span in bytes of a layout's swizzle, 16 when it has none.

    Raises: LayoutError for a swizzle that `wgmma` does not know.
    """
    if isinstance(layout, Layout) or layout.outer.bits == 0:
        return UNIT
    for span in SPANS:
        if layout.outer == swizzle_of(span, dtype):
            return span
    known = ", ".join(str(swizzle_of(span, dtype)) for span in SPANS[:3])
    raise LayoutError(
        f"wgmma knows the swizzles {known} of {dtype}, got {layout.outer}",
        code="K185",
        fix="lay the operand out with kd.atoms.shared_operand",
    )


@cache
def descriptor_fields(
    layout: Layout | ComposedLayout, dtype: DType, major: str
) -> tuple[int, int, int]:
    """The layout code, LBO and SBO of the descriptor of one instruction's operand (rows, depth).

    >>> from kdsl_core.dtypes import bf16
    >>> descriptor_fields(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 16), (64, 1))), bf16, "K")
    (1, 16, 1024)

    Units: bytes.
    Raises: LayoutError when the layout is none of the canonical forms.
    """
    span = span_of(layout, dtype)
    inner = layout if isinstance(layout, Layout) else layout.inner
    rows = [int(inner(row, 0)) * dtype.bytes for row in range(size(inner[0]))]
    columns = [int(inner(0, column)) * dtype.bytes for column in range(size(inner[1]))]
    if major == "K":
        found = _k_major(rows, columns, span, dtype)
    else:
        found = _mn_major(rows, columns, span, dtype)
    if found is None:
        raise _no_canonical_form(layout, dtype, major, span)
    leading, stride = found
    return CODES[span], leading, stride


def _k_major(
    rows: list[int], columns: list[int], span: int, dtype: DType
) -> tuple[int, int] | None:
    """LBO and SBO of neighbours along K."""
    unit = UNIT // dtype.bytes
    stride = rows[GROUP] if len(rows) > GROUP else GROUP * span
    leading = columns[unit] if len(columns) > unit else _UNUSED
    if span != UNIT and leading != UNIT:
        return None
    fits = _are(rows, lambda r: r % GROUP * span + r // GROUP * stride)
    fits &= _are(columns, lambda c: c % unit * dtype.bytes + c // unit * leading)
    return (leading, stride) if fits else None


def _mn_major(
    rows: list[int], columns: list[int], span: int, dtype: DType
) -> tuple[int, int] | None:
    """LBO and SBO of neighbours along M or N."""
    width = span // dtype.bytes
    across = rows[width] if len(rows) > width else _UNUSED
    along = columns[GROUP] if len(columns) > GROUP else _UNUSED
    fits = _are(rows, lambda r: r % width * dtype.bytes + r // width * across)
    fits &= _are(columns, lambda c: c % GROUP * span + c // GROUP * along)
    if not fits:
        return None
    return (along, across) if span == UNIT else (across, along)


def _are(offsets: list[int], wanted: Callable[[int], int]) -> bool:
    return all(offset == wanted(index) for index, offset in enumerate(offsets))


def _no_canonical_form(layout: Any, dtype: DType, major: str, span: int) -> LayoutError:
    swizzle = "no swizzle" if span == UNIT else f"a swizzle of {span} bytes"
    return LayoutError(
        f"{layout} of {dtype} is no {major}-major operand of wgmma: with {swizzle} neighbours "
        f"along {major} come in runs of {span} bytes, of which {GROUP} follow one another",
        code="K442",
        fix="lay the operand out with kd.atoms.shared_operand, and name its major in the atom",
    )
