"""Boxes of tensor maps: which global bytes a TMA copy touches, and where they lie in shared memory.

A box lies in shared memory densely, its innermost dimension first, in the order of its lines (all
dimensions but the innermost); then the swizzle XORs bits of the shared addresses. Boxes are cut
into pieces, the largest that are whole in both memories and entirely in or out of the tensor.

Source: PTX ISA, Tensors (bounding boxes, im2col mode, swizzling); CUDA driver API, tensor maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.ir.tensor_map import Im2col, MapShape, TensorMap
from kdsl_core.records import dataclass

CHUNK = 16  # bytes that swizzles keep together, and the largest piece
SHARED_ALIGNMENT = 128  # of a box in shared memory, whatever its swizzle
_ROW_SHIFT = 7  # a swizzle's pattern takes its phase from bits 7 … 9 of the address
PERIOD = 1024  # bytes, after which every swizzle repeats
_REMEMBERED = 64  # tensor maps


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of one map in pieces of `size` bytes, in the order in which they lie densely.

    Shapes: `source` int64 and `inside` bool (L, n), for L boxes of n pieces. `source` is a global
    address; where not `inside`, it is that of no element and loads fill the piece.
    """

    size: int
    source: Array
    inside: Array


@dataclass(frozen=True, eq=False)
class Image:
    """What all boxes of one map that lie in the tensor, and start in a period, have in common.

    Shapes: `source` and `shared` (n,), by how many chunks each is behind the first one in global
    and in shared memory; `reach` (rank,), by how many elements the last one is behind the first.
    """

    source: Array
    shared: Array
    reach: Array


@lru_cache(_REMEMBERED)
def image_of(tensor_map: TensorMap) -> Image | None:
    """None for im2col, and where boxes are not made of whole chunks.

    Launches with the same arguments ask for it again.
    """
    shape = tensor_map.shape
    if shape.im2col is not None:
        return None
    cut = boxes(tensor_map, np.zeros((1, shape.rank), np.int64))
    source = cut.source[0] - tensor_map.address
    if cut.size != CHUNK or (source % CHUNK).any():
        return None
    shared = shared_addresses(shape, np.zeros(1, np.int64), CHUNK)[0]
    strides = 1, *_line_strides(shape)
    reach = [(n - 1) * step for n, step in zip(box_counts(shape), strides, strict=True)]
    return Image(source // CHUNK, shared // CHUNK, np.array(reach))


def box_counts(shape: MapShape) -> tuple[int, ...]:
    """Elements along each dimension of a box as it lies in shared memory, innermost first.

    An im2col box has two dimensions, channels and pixels.
    """
    if shape.im2col is not None:
        return shape.im2col.channels, shape.im2col.pixels
    first, *rest = shape.box
    return first, *(-(-n // s) for n, s in zip(rest, _line_strides(shape), strict=True))


def box_bytes(shape: MapShape) -> int:
    """Bytes that a box completes at its mbarrier: all of it, filled ones included."""
    return prod(box_counts(shape)) * shape.dtype.bytes


def boxes(tensor_map: TensorMap, starts: Array, offsets: Array | None = None) -> Boxes:
    """The boxes that start at the given coordinates, which may lie outside of the tensor.

    Shapes: `starts` integers (L, rank), innermost first; `offsets` (L, rank − 2) those of im2col.
    """
    shape, item = tensor_map.shape, tensor_map.shape.dtype.bytes
    starts = starts.astype(np.int64)
    first = starts[:, 0] * item
    width = tensor_map.sizes[0] * item
    size = _piece(first, width)
    column = first[:, None] + np.arange(0, box_counts(shape)[0] * item, size)
    if shape.im2col is None:
        lines = _lines(shape, starts)
    else:
        lines = _pixels(tensor_map, shape.im2col, starts, offsets)
    source = np.full((*lines[0].shape, 1) if lines else (len(starts), 1, 1), tensor_map.address)
    inside = np.ones(source.shape, bool)
    for at, extent, stride in zip(lines, tensor_map.sizes[1:], tensor_map.strides, strict=True):
        source = source + at[..., None] * stride
        inside = inside & ((at >= 0) & (at < extent))[..., None]
    source = source + column[:, None]
    inside = inside & ((column >= 0) & (column < width))[:, None]
    return Boxes(size, source.reshape(len(starts), -1), inside.reshape(len(starts), -1))


def shared_addresses(shape: MapShape, start: Array, size: int) -> Array:
    """Shared addresses (L, n) of the pieces of boxes whose dense images start at `start` (L,)."""
    dense = np.arange(0, box_bytes(shape), size)
    if not (start % PERIOD).any():  # the same pattern in each
        return np.asarray(start[:, None] + swizzled(dense, shape.swizzle))
    return swizzled(start[:, None] + dense, shape.swizzle)


def swizzled(address: Array, line: int | Array, base: int | Array = 0) -> Array:
    """Addresses after the swizzle of `line` bytes: bits 4 … XOR the same number of bits from 7.

    The absolute address decides, so a pattern repeats every 1024, 512 or 256 bytes of memory
    wherever a box starts; `base` moves it by 128-byte rows.
    """
    phase = ((address >> _ROW_SHIFT) - base) & (np.maximum(line, CHUNK) // CHUNK - 1)
    return np.asarray(address ^ (phase * CHUNK))


def fill_piece(shape: MapShape, size: int) -> Array:
    """The `size` bytes, uint8, that stand in for a piece outside of the tensor."""
    value = np.nan if shape.fill == "nan" else 0
    return np.full(size // shape.dtype.bytes, value, shape.dtype.numpy).view(np.uint8)


def walk_starts(tensor_map: TensorMap, starts: Array) -> Array:
    """Which starts (L, rank) are pixels that the im2col walk reaches, bool (L,)."""
    shape, walk = tensor_map.shape, tensor_map.shape.im2col
    good = np.ones(len(starts), bool)
    if walk is not None:
        extents = _walk_extents(tensor_map, walk)
        columns = zip(starts.T[1:-1], walk.lower, _line_strides(shape), extents, strict=False)
        for at, lower, stride, extent in columns:
            place = at.astype(np.int64) - lower
            good &= (place >= 0) & (place % stride == 0) & (place // stride < extent)
    return good


def _piece(first: Array, width: int) -> int:
    """The largest power of two that divides a chunk, every first column and the tensor's width."""
    bits = int(np.bitwise_or.reduce(first)) | width | CHUNK
    return bits & -bits


def _line_strides(shape: MapShape) -> tuple[int, ...]:
    """Steps from element to element of a box along the dimensions after the innermost."""
    return shape.element_strides[1:] or (1,) * (shape.rank - 1)


def _lines(shape: MapShape, starts: Array) -> list[Array]:
    """The coordinates (L, lines) of a box's lines, one array per dimension after the innermost."""
    counts = box_counts(shape)[1:]
    rest, found = np.arange(prod(counts)), []
    for start, count, stride in zip(starts.T[1:], counts, _line_strides(shape), strict=True):
        found.append(start[:, None] + rest % count * stride)
        rest = rest // count
    return found


def _pixels(
    tensor_map: TensorMap, walk: Im2col, starts: Array, offsets: Array | None
) -> list[Array]:
    """The coordinates (L, pixels) of the pixels that an im2col copy visits, one per dimension.

    The walk goes through the bounding box of starting pixels, innermost dimension first, and on to
    the next image; the offsets, the place in the filter, move every pixel alike.
    """
    extents = _walk_extents(tensor_map, walk)
    strides = _line_strides(tensor_map.shape)
    place = starts[:, -1]
    for axis in reversed(range(len(extents))):
        place = place * extents[axis] + (starts[:, axis + 1] - walk.lower[axis]) // strides[axis]
    rest = place[:, None] + np.arange(walk.pixels)
    found = []
    for axis, extent in enumerate(extents):
        moved = 0 if offsets is None else offsets[:, axis, None].astype(np.int64)
        found.append(walk.lower[axis] + rest % extent * strides[axis] + moved)
        rest = rest // extent
    return [*found, rest]


def _walk_extents(tensor_map: TensorMap, walk: Im2col) -> Sequence[int]:
    """How many starting pixels the bounding box has along each spatial dimension."""
    corners = zip(walk.lower, walk.upper, tensor_map.sizes[1:], strict=False)
    spans = [size + upper - lower for lower, upper, size in corners]
    strides = _line_strides(tensor_map.shape)
    return [max(-(-span // step), 1) for span, step in zip(spans, strides, strict=False)]
