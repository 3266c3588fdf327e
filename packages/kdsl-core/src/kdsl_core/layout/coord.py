"""Coordinates to offsets and back, and the compact strides of a shape."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    add,
    floordiv,
    is_one,
    mod,
    mul,
    product,
)


def compact_strides(shape: IntTuple, start: Leaf = 1) -> IntTuple:
    """Strides that count through `shape`, first mode fastest; a static extent 1 gets 0.

    >>> compact_strides((4, (1, 2), 3))
    (1, (0, 4), 8)
    """
    return _compact(shape, start)[0]


def _compact(shape: IntTuple, current: Leaf) -> tuple[IntTuple, Leaf]:
    if isinstance(shape, tuple):
        out = []
        for mode in shape:
            stride, current = _compact(mode, current)
            out.append(stride)
        return tuple(out), current
    if is_one(shape):
        return 0, current
    return current, mul(current, shape)


def compact_right(shape: IntTuple) -> IntTuple:
    """Strides that count through `shape`, last mode fastest.

    >>> compact_right((4, 8))
    (8, 1)
    """
    return _reverse(compact_strides(_reverse(shape)))


def _reverse(t: IntTuple) -> IntTuple:
    return tuple([_reverse(item) for item in reversed(t)]) if isinstance(t, tuple) else t


def has_none(coord: Any) -> bool:
    """Whether a coordinate keeps some mode."""
    return coord is None or (isinstance(coord, tuple) and any(map(has_none, coord)))


def offset_of(coord: IntTuple, shape: IntTuple, stride: IntTuple) -> Leaf:
    """The inner product of a coordinate, split over `shape` where it is coarser, and `stride`."""
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            if len(coord) == 1 and not isinstance(shape, tuple):
                return offset_of(coord[0], shape, stride)
            raise LayoutError(
                f"expected a coordinate of shape {shape}, got {coord}",
                code="K110",
                fix="give one entry per mode, or a single index",
            )
        total: Leaf = 0
        for c, s, d in zip(coord, shape, stride, strict=True):
            total = add(total, offset_of(c, s, d))
        return total
    if not isinstance(shape, tuple):
        return mul(stride, coord)  # stride first: a basis stride knows how to be scaled
    return _offset_of_index(coord, shape, stride)


def _offset_of_index(index: Leaf, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Leaf:
    total: Leaf = 0
    last = len(shape) - 1
    for i, (s, d) in enumerate(zip(shape, stride, strict=True)):
        if i == last:  # the last mode does not wrap: an index past the end extrapolates
            return add(total, offset_of(index, s, d))
        extent = product(s)
        total = add(total, offset_of(mod(index, extent), s, d))
        index = floordiv(index, extent)
    return total


def idx2crd(index: IntTuple, shape: IntTuple, stride: IntTuple = None) -> IntTuple:
    """The coordinate in `shape` of an index, or of each index of a coarser coordinate.

    Without `stride` the first mode is fastest and the last does not wrap; with `stride`
    each leaf is ``index // stride % extent``.

    >>> idx2crd(13, (4, (2, 4))), idx2crd(8, (2, 2))
    ((1, (1, 1)), (0, 4))
    """
    if isinstance(index, tuple):
        strides = (None,) * len(index) if stride is None else stride
        if not isinstance(shape, tuple) or len(shape) != len(index):
            raise LayoutError(
                f"expected an index per mode of {shape}, got {index}",
                code="K110",
                fix="give one entry per mode, or a single index",
            )
        return tuple([idx2crd(i, s, d) for i, s, d in zip(index, shape, strides, strict=True)])
    if stride is not None:
        return _strided_crd(index, shape, stride)
    if not isinstance(shape, tuple):
        return index
    out = []
    for mode in shape[:-1]:
        extent = product(mode)
        out.append(idx2crd(mod(index, extent), mode))
        index = floordiv(index, extent)
    return (*out, *[idx2crd(index, mode) for mode in shape[-1:]])


def _strided_crd(index: Leaf, shape: IntTuple, stride: IntTuple) -> IntTuple:
    if not isinstance(shape, tuple):
        return 0 if is_one(shape) else mod(floordiv(index, stride), shape)
    if not isinstance(stride, tuple):
        stride = compact_strides(shape, stride)
    return tuple([_strided_crd(index, s, d) for s, d in zip(shape, stride, strict=True)])


def crd2crd(coord: IntTuple, source: IntTuple, target: IntTuple) -> IntTuple:
    """The coordinate in shape `target` of the element at `coord` of shape `source`.

    Tuples of one rank map mode by mode.

    >>> crd2crd((1, 2), (4, 3), 12), crd2crd(9, 12, (2, 6))
    (9, (1, 4))
    """
    if isinstance(coord, tuple) and isinstance(source, tuple) and isinstance(target, tuple):
        if len(coord) == len(source) == len(target):
            return tuple(map(crd2crd, coord, source, target))
        raise LayoutError(
            f"crd2crd expects shapes of one rank, got {source} and {target}", code="K110"
        )
    return idx2crd(offset_of(coord, source, compact_strides(source)), target)
