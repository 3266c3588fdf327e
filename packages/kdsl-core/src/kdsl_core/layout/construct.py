"""Layouts made from an order of modes, from another layout, or as coordinates."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import E
from kdsl_core.layout.coord import compact_right, compact_strides
from kdsl_core.layout.facts import is_decidable, sorted_by_size
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    is_one,
    leaves,
    magnitude,
    mul,
    product,
    unflatten_tuple,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, get, inner_of, not_a_layout
from kdsl_core.layout.structure import filter_zeros, take
from kdsl_core.layout.tile import tiled_product


def make_layout_left(shape: IntTuple) -> Layout:
    """The compact layout with the first mode fastest (column-major)."""
    return Layout(shape)


def make_layout_right(shape: IntTuple) -> Layout:
    """The compact layout with the last mode fastest (row-major).

    >>> print(make_layout_right((4, 8)))
    (4,8):(8,1)
    """
    return Layout(shape, compact_right(Layout(shape).shape))


def make_ordered_layout(shape: IntTuple, order: IntTuple) -> Layout:
    """The compact layout whose modes are filled in ascending order of `order`.

    Run-time entries of `order` come after all others; equal entries keep their place.

    >>> print(make_ordered_layout((2, 3, 5), (1, 2, 0)))
    (2,3,5):(5,10,1)
    """
    plain = Layout(shape)
    return Layout.of(plain.shape, _ordered_strides(plain.shape, order))


def _ordered_strides(shape: IntTuple, order: IntTuple) -> IntTuple:
    parts, ranks = _paired(shape, order)
    known = [i for i in range(len(parts)) if is_decidable(ranks[i])]
    filled = sorted_by_size(known, key=ranks.__getitem__)
    filled += [i for i in range(len(parts)) if i not in known]
    strides: list[Any] = [0] * len(parts)
    current: Leaf = 1
    for i in filled:
        strides[i] = compact_strides(parts[i], current)
        current = mul(current, product(parts[i]))
    return unflatten_tuple(strides, order)


def _paired(shape: IntTuple, order: IntTuple) -> tuple[list[Any], list[Any]]:
    """The parts of a shape at the leaves of the order, and these leaves."""
    if not isinstance(order, tuple):
        return [shape], [order]
    if not isinstance(shape, tuple) or len(shape) != len(order):
        raise LayoutError(
            f"expected an order with an entry for each mode of {shape}, got {order}",
            code="K104",
            fix="give one number per mode; the smallest is fastest",
        )
    parts: list[Any] = []
    ranks: list[Any] = []
    for s, o in zip(shape, order, strict=True):
        more_parts, more_ranks = _paired(s, o)
        parts += more_parts
        ranks += more_ranks
    return parts, ranks


def make_layout_like(layout: AnyLayout) -> Layout:
    """A compact layout with the shape and the stride order of another; stride 0 stays 0.

    >>> print(make_layout_like(Layout((4, 8, 2), (100, 1, 0))))
    (4,8,2):(8,1,0)
    """
    plain = inner_of(layout)
    moving = filter_zeros(plain)
    return Layout.of(plain.shape, _ordered_strides(moving.shape, plain.stride))


def make_fragment_like(layout: AnyLayout) -> Layout:
    """A compact register layout: mode 0 first, then the rest in the order of their strides.

    Broadcast elements of mode 0 share a register; those of other modes get their own.

    >>> print(make_fragment_like(Layout((2, 4, 8), (1, 100, 10))))
    (2,4,8):(1,16,2)
    """
    plain = inner_of(layout)
    if len(plain) == 1 or not plain.static:
        return Layout(plain.shape)
    first = get(plain, 0)
    atom = Layout.of(first.shape, compact_strides(filter_zeros(first).shape))
    rest = take(plain, 1, len(plain))
    filled: Layout = tiled_product(atom, make_ordered_layout(rest.shape, rest.stride))
    return filled


def make_identity_layout(shape: IntTuple) -> Layout:
    """The layout that returns its coordinate.

    >>> make_identity_layout((4, (2, 3)))(1, (0, 2))
    (1, (0, 2))
    """
    plain = Layout(shape).shape
    return Layout.of(plain, _basis_like(plain, ()))


def _basis_like(shape: IntTuple, path: tuple[int, ...]) -> Any:
    if isinstance(shape, tuple):
        return tuple([_basis_like(s, (*path, i)) for i, s in enumerate(shape)])
    return E(*path) if path else 1


def is_compact(layout: Layout) -> bool:
    """Whether the offsets are 0 .. size − 1, each once."""
    if not isinstance(layout, Layout):
        raise not_a_layout(layout)
    if layout.has_basis:
        return False
    modes = [
        (magnitude(d), s)
        for s, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True)
        if not is_one(s)
    ]
    expected = 1
    for d, s in sorted(modes):
        if d != expected:
            return False
        expected *= s
    return True
