"""Inverses of layouts, and the contiguous run that two layouts share."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.algebra import composition
from kdsl_core.layout.coord import compact_strides
from kdsl_core.layout.exact import CHECKED_ELEMENTS
from kdsl_core.layout.facts import exact_quotient, is_decidable, known_divisor, sorted_by_size
from kdsl_core.layout.int_tuple import (
    Leaf,
    is_one,
    is_zero,
    leaves,
    magnitude,
    mul,
    require_static,
    sign,
    wrap,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, inner_of, size
from kdsl_core.layout.structure import UNIT, coalesce, filter_zeros
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle
from kdsl_core.layout.symbolic import SymInt

_Mode = tuple[Leaf, Leaf, Leaf]
"""(extent, stride, product of the extents before it)."""


def right_inverse(layout: AnyLayout) -> Any:
    """The longest R with layout(R(i)) = i for every i of its domain.

    >>> print(right_inverse(Layout((2, 4, 6), (4, 1, 8))))
    (4,2,6):(2,1,8)
    """
    if isinstance(layout, ComposedLayout):
        return _composed_inverse(layout, right_inverse)
    run, _ = _contiguous_modes(layout)
    if not run:
        return UNIT
    strides = tuple([mul(_sign(stride), before) for _, stride, before in run])
    return coalesce(Layout.of(tuple([extent for extent, _, _ in run]), strides))


def _contiguous_modes(layout: Layout) -> tuple[list[_Mode], list[_Mode]]:
    """The modes that count 0, 1, 2, ... without a gap, in that order, and the other modes."""
    run: list[_Mode] = []
    others: list[_Mode] = []
    reached: Leaf = 1
    for mode in _sorted_modes(coalesce(layout)):
        extent, stride, _ = mode
        if is_decidable(reached) and magnitude(stride) == reached:
            run.append(mode)
            reached = reached * extent
        else:
            others.append(mode)
    return run, others


def _sorted_modes(layout: Layout) -> list[_Mode]:
    """(extent, stride, extents before) of the modes with known strides, by |stride|."""
    extents, strides = wrap(layout.shape), wrap(layout.stride)
    before = wrap(compact_strides(extents))
    modes = [m for m in zip(extents, strides, before, strict=True) if is_decidable(m[1])]
    return sorted_by_size(modes, key=lambda mode: magnitude(mode[1]))


def _composed_inverse(layout: ComposedLayout, invert: Any) -> Any:
    """(sw ∘ 0 ∘ L)⁻¹ = L⁻¹ ∘ sw, since a swizzle is its own inverse."""
    if not isinstance(layout.outer, Swizzle) or not is_zero(layout.offset):
        raise LayoutError(
            f"the inverse needs a swizzle at offset 0, got {layout}",
            code="K150",
            fix="invert the layout before slicing it",
        )
    return composition(invert(layout.inner), layout.outer)


def left_inverse(layout: AnyLayout) -> Any:
    """An L with layout(L(layout(i))) = layout(i), and L(layout(i)) = i where offsets differ.

    >>> print(left_inverse(Layout((4, 2), (1, 16))))
    (16,2):(1,4)

    Raises: LayoutError when a stride is not a multiple of the stride below it, or when modes
    overlap so that no layout inverts them.
    """
    if isinstance(layout, ComposedLayout):
        return _composed_inverse(layout, left_inverse)
    flat = coalesce(layout)
    if not is_decidable(flat.stride):
        raise LayoutError(f"left_inverse needs known strides, got {flat}", code="K102")
    modes = [mode for mode in _sorted_modes(flat) if not is_zero(mode[1])]
    if not modes:
        return Layout.of(size(flat), 0)
    shapes: list[Leaf] = []
    strides: list[Leaf] = [0]
    span: Leaf = 1
    overlap = False
    for i, (_, stride, before) in enumerate(modes):
        gap = _gap_below(layout, stride, span)
        overlap = overlap or (i > 0 and bool(gap < modes[i - 1][0]))
        shapes.append(gap)
        strides.append(mul(_sign(stride), before))
        span = magnitude(stride)
    result = coalesce(Layout.of((*shapes, modes[-1][0]), tuple(strides)))
    if overlap:
        _check_left_inverse(layout, result)
    return result


def _gap_below(layout: Layout, stride: Leaf, span: Leaf) -> Leaf:
    if isinstance(stride, SymInt) or isinstance(span, SymInt):
        return exact_quotient(magnitude(stride), span, f"to invert {layout}")
    gap, left = divmod(abs(stride), span)
    if left or gap == 0:
        raise LayoutError(
            f"no layout inverts {layout}: stride {stride} is not a multiple of {span}",
            code="K151",
            fix="pad the strides so that each is a multiple of the one below",
        )
    return gap


def _sign(stride: Leaf) -> int:
    return sign(stride) if type(stride) is int else (1 if stride > 0 else -1)


def _check_left_inverse(layout: Layout, result: Layout) -> None:
    count = size(layout)
    if not layout.static or count > CHECKED_ELEMENTS:
        raise LayoutError(f"cannot decide whether {result} inverts {layout}", code="K143")
    for i in range(count):
        if layout(result(layout(i))) != layout(i):
            raise LayoutError(
                f"no layout inverts {layout}: offset {layout(i)} of index {i} goes to index"
                f" {result(layout(i))}, whose offset is {layout(result(layout(i)))}",
                code="K151",
                fix="left_inverse needs modes that do not overlap",
            )


def max_common_layout(a: AnyLayout, b: AnyLayout) -> Layout:
    """The coordinates of the longest run that is contiguous from 0 in both layouts.

    >>> print(max_common_layout(Layout((4, 8)), Layout((4, 8), (1, 8))))
    4:1
    """
    inverse_b, common = _common(a, b)
    run = wrap(common.shape)[0]
    if not is_decidable(run) or not is_one(wrap(common.stride)[0]):
        return UNIT
    limit = _swizzle_run(a, b)
    if limit is not None:
        run = min(run, limit) if type(run) is int else gcd(known_divisor(run), limit)
    shared: Layout = coalesce(composition(inverse_b, Layout.of(run, 0 if is_one(run) else 1)))
    return shared


def max_common_vector(a: AnyLayout, b: AnyLayout) -> int:
    """The number of elements that are contiguous from 0 in both layouts at once.

    Of a symbolic run, the largest number that is proven to divide it.

    >>> max_common_vector(Layout((4, 8)), Layout((4, 8), (8, 1)))
    1
    """
    return known_divisor(size(max_common_layout(a, b)))


def _common(a: AnyLayout, b: AnyLayout) -> tuple[Layout, Layout]:
    """The inverse of `b`, or the longest run of its modes that composes with `a`, and a ∘ it."""
    modes = right_inverse(inner_of(b))
    shapes, strides = wrap(modes.shape), wrap(modes.stride)
    for count in range(len(shapes), 0, -1):
        inverse_b = coalesce(Layout.of(shapes[:count], strides[:count]))
        try:
            return inverse_b, coalesce(composition(inner_of(a), inverse_b))
        except LayoutError as error:
            if error.code not in ("K142", "K143"):
                raise
    return UNIT, UNIT


def _swizzle_run(a: AnyLayout, b: AnyLayout) -> int | None:
    """The run that swizzles leave together: None, all of it, where both sides have the same."""
    swizzles = {x.outer if isinstance(x, ComposedLayout) else Swizzle(0, 0, 0) for x in (a, b)}
    moving = [sw for sw in swizzles if sw.bits]
    if len(swizzles) == 1 or not moving:
        return None
    return int(min(1 << sw.base for sw in moving))


def domain_distribute(shape: Any, count: int) -> Layout:
    """`count` elements spread over the modes of a shape, as indices into it."""
    parts, rest = [], count
    for extent in leaves(require_static(shape, "the factors of the shape")):
        part = gcd(rest, extent)
        parts.append(part)
        rest //= part
    strides = wrap(compact_strides(tuple(leaves(shape))))
    spread: Layout = coalesce(filter_zeros(Layout.of(tuple(parts), strides)))
    return spread


def max_alignment(x: AnyLayout) -> int:
    """The largest block that the layout fills from 0 on and whose multiples all else starts at.

    >>> max_alignment(Layout((8, 2), (2, 1))), max_alignment(Layout((16, 8), (128, 4)))
    (16, 1)
    """
    if isinstance(x, ComposedLayout):
        return gcd(1 << x.outer.base, max_alignment(inner_of(x)))
    run, others = _contiguous_modes(x)
    filled = [extent for extent, _, _ in run if type(extent) is int]
    return gcd(prod(filled), *[known_divisor(stride) for _, stride, _ in others])
