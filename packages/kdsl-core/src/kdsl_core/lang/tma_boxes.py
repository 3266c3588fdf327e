"""Which boxes of a tensor fill a tile of shared memory, and where each of them lands.

The TMA unit writes a box densely, its first dimension fastest. So the tile's layout must consist of
dense pieces; the largest one that it starts with is the box, and copies of it make up the tile.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError
from kdsl_core.ir.map_limits import ALIGNMENT
from kdsl_core.ir.tensor_map import MAX_BOX
from kdsl_core.layout import Layout, Swizzle, coalesce, flatten, wrap
from kdsl_core.loc import here
from kdsl_core.records import dataclass

_SPANS = {1: 32, 2: 64, 3: 128}  # bits of a swizzle → bytes of a line
_LINES = 8  # after which a swizzle repeats
_PLAIN_START = 128  # bytes, the alignment of a box without swizzle
MOST_COPIES = 64
Leaf = tuple[int, int]


@dataclass(frozen=True)
class Boxes:
    """A tile of shared memory as copies of one box.

    Shapes: `box` by mode of the tensor, `order` the modes from the innermost dimension on;
    `starts` has per copy its first element in the tile, by mode, and its place in shared memory.
    Units: elements; `swizzle` and `align` (of the tile) in bytes.
    """

    box: tuple[int, ...]
    order: tuple[int, ...]
    starts: tuple[tuple[tuple[int, ...], int], ...]
    swizzle: int
    align: int


def span_of(swizzle: Swizzle | None, dtype: DType) -> int:
    """Bytes of a swizzled line, 0 without a swizzle.

    Raises: LayoutError K455 when the TMA unit has no such swizzle.
    """
    if swizzle is None or swizzle.bits == 0:
        return 0
    unit = (1 << swizzle.base) * dtype.bytes
    if swizzle.bits not in _SPANS or unit != ALIGNMENT or swizzle.shift != 3:
        _refuse(
            f"its swizzle {swizzle} moves units of {unit} bytes; TMA swizzles units of 16 bytes by "
            "1 to 3 bits that lie 3 higher",
        )
    return _SPANS[swizzle.bits]


def boxes_of(
    layout: Layout,
    swizzle: Swizzle | None,
    dtype: DType,
    tile: tuple[int, ...],
    inner: int,
    limits: tuple[int, ...] | None = None,
) -> Boxes:
    """The boxes that fill a tile laid out in shared memory by `layout` and `swizzle`.

    Shapes: `tile` has an extent for each mode of the tensor; modes of extent 1 may be missing in
    `layout`. `inner` is the mode whose elements are neighbours in global memory; `limits` the most
    elements of a box in each mode (256).
    Raises: LayoutError K455 when no boxes do, K456 when layout and tile differ in shape.
    """
    span = span_of(swizzle, dtype)
    leaves = _leaves(layout, tile)
    box, order = _largest_box(leaves, dtype, inner, span, limits or (MAX_BOX,) * len(tile))
    rest = [_remaining(mode_leaves, b) for mode_leaves, b in zip(leaves, box, strict=True)]
    align = _LINES * span if span else _PLAIN_START
    starts = _starts(rest, layout)
    for _, place in starts:
        if place * dtype.bytes % align:
            _refuse(
                f"a box of {box} elements would start {place * dtype.bytes} bytes into it, which "
                f"is no multiple of {align}",
                layout,
            )
    if starts[0][1] != 0:
        _refuse("its first element is not at its start", layout)
    order += [mode for mode in range(len(tile)) if mode not in order]
    return Boxes(tuple(box), tuple(order), starts, span, align)


def _leaves(layout: Layout, tile: tuple[int, ...]) -> list[list[Leaf]]:
    """(extent, stride) of the unnested modes of the shared layout, for each mode of the tensor."""
    parts = [layout[i] for i in range(len(layout))]
    if len(parts) != len(tile):
        parts = [part for part in parts if _count(part) != 1]
    wanted = range(len(tile)) if len(parts) == len(tile) else _long_modes(tile)
    by_mode = dict(zip(wanted, parts, strict=False))
    if len(parts) != len(wanted) or any(_count(by_mode[m]) != tile[m] for m in wanted):
        raise LayoutError(
            f"the shared layout {layout} does not hold a tile of {tile} elements",
            code="K456",
            loc=here(),
            fix="give the tile one extent per mode of the tensor, with the shared tile's sizes; "
            "extents of 1 may be missing in the shared layout",
        )
    return [_flat(by_mode[m]) if m in by_mode else [] for m in range(len(tile))]


def _long_modes(tile: tuple[int, ...]) -> list[int]:
    return [mode for mode, extent in enumerate(tile) if extent != 1]


def _flat(part: Layout) -> list[Leaf]:
    flat = flatten(coalesce(part))
    pairs = zip(wrap(flat.shape), wrap(flat.stride), strict=True)
    return [(extent, stride) for extent, stride in pairs if extent != 1]


def _count(part: Layout) -> Any:
    count = 1
    for extent in wrap(flatten(part).shape):
        count = count * extent
    return count


def _largest_box(
    leaves: list[list[Leaf]], dtype: DType, inner: int, span: int, limits: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """The box by mode, and its modes from the innermost on."""
    box, order = [1] * len(leaves), [inner]
    if not leaves[inner] or leaves[inner][0][1] != 1:
        _refuse(
            f"neighbours in global memory (mode {inner} of the tensor) are no neighbours in shared "
            "memory, and TMA does not transpose",
            fix="choose the shared layout by the tensor's contiguous mode (major)",
        )
    most = span // dtype.bytes if span else limits[inner]
    run = box[inner] = _part(leaves[inner][0][0], most)
    line = run * dtype.bytes
    if line % ALIGNMENT or (span and line != span):
        _refuse(
            f"neighbours lie in runs of {line} bytes, which must be "
            + (f"the swizzle's {span}" if span else f"a multiple of {ALIGNMENT}"),
        )
    whole = box[inner] == leaves[inner][0][0] or span
    while whole:
        mode = next((m for m, (leaf, *_) in _open(leaves, order) if leaf[1] == run), None)
        if mode is None:
            break
        extent = leaves[mode][0][0]
        box[mode] = _part(extent, limits[mode])
        order.append(mode)
        run, whole = run * box[mode], box[mode] == extent
    return box, order


def _open(leaves: list[list[Leaf]], order: list[int]) -> list[tuple[int, list[Leaf]]]:
    """Modes that the box does not extend along so far."""
    return [(m, found) for m, found in enumerate(leaves) if found and m not in order]


def _part(extent: int, most: int) -> int:
    """The largest divisor of an extent up to a limit."""
    return max(part for part in range(1, min(extent, most) + 1) if extent % part == 0)


def _remaining(leaves: list[Leaf], box: int) -> list[tuple[int, int, int]]:
    """(count, step in the tensor, step in shared memory) of the copies along a mode."""
    steps, position = [], 1
    for extent, stride in leaves:
        inside = box if position == 1 else 1
        if extent > inside:
            steps.append((extent // inside, position * inside, stride * inside))
        position *= extent
    return steps


def _starts(
    rest: list[list[tuple[int, int, int]]], layout: Layout
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """First element and shared place of every copy, in the order of places."""
    by_mode = []
    for steps in rest:
        places = [(0, 0)]
        for count, step, stride in steps:
            places = [(e + i * step, s + i * stride) for e, s in places for i in range(count)]
        by_mode.append(places)
    copies = 1
    for places in by_mode:
        copies *= len(places)
    if copies > MOST_COPIES:
        _refuse(f"it takes {copies} boxes, more than {MOST_COPIES}", layout)
    found = [
        (tuple(element for element, _ in chosen), sum(place for _, place in chosen))
        for chosen in itertools.product(*by_mode)
    ]
    if len({place for _, place in found}) < copies:
        _refuse("several of its elements share a place", layout)
    return tuple(sorted(found, key=lambda start: (start[1], start[0])))


def _refuse(why: str, layout: Layout | None = None, fix: str | None = None) -> NoReturn:
    which = "the shared layout" if layout is None else f"the shared layout {layout}"
    raise LayoutError(
        f"no boxes of TMA fill {which}: {why}",
        code="K455",
        loc=here(),
        fix=fix or "lay the tile out with kd.atoms.shared_operand(dtype, (rows, depth), major=…)",
    )
