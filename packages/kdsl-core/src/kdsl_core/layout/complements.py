"""The complement: the layout that fills the gaps of another."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from kdsl_core.errors import LayoutError
from kdsl_core.layout.coord import compact_strides
from kdsl_core.layout.exact import refuse_run_time
from kdsl_core.layout.facts import divides, is_decidable, missing, sorted_by_size
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    as_int_tuple,
    ceil_div,
    floordiv,
    is_static,
    is_zero,
    leaves,
    mul,
    product,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, cosize, inner_of, size
from kdsl_core.layout.structure import coalesce, filter_layout
from kdsl_core.layout.symbolic import SymInt


def complement(layout: AnyLayout, cotarget: IntTuple = None, *, covering: bool = True) -> Layout:
    """The layout C that fills the gaps: layout(i) + C(j) are distinct and reach `cotarget`.

    Without a target, up to the cosize of the layout. Modes of stride 0 do not count. With
    `covering=False` padding between modes may stay unreached, as for copies of padded blocks.

    >>> print(complement(Layout((2, 4), (1, 6)), 24))
    3:2

    Raises: LayoutError when modes overlap, or when a gap is not a whole number of elements and
    the target cannot be reached.
    """
    inner = inner_of(layout)
    target = cotarget.shape if isinstance(cotarget, Layout) else cotarget
    if target is not None:
        target = as_int_tuple(target, "a complement's target")
    if inner.static and is_static(target):
        return _complement_cached(inner, target, covering)
    return _complement(inner, target, covering)


def _complement(layout: Layout, target: IntTuple, covering: bool) -> Layout:
    if layout.has_basis:
        raise LayoutError(
            f"a complement needs integer strides, got {layout}",
            code="K140",
            fix="take the complement of the layout of offsets",
        )
    plain = filter_layout(layout)
    if target is None:
        target = cosize(plain)
    if all(is_zero(d) for d in leaves(plain.stride)):
        whole: Layout = coalesce(Layout(target, compact_strides(target)))
        return whole
    shapes, strides, span, exact = _gaps(plain)
    rest = ceil_div(target, span) if is_static(target) else ceil_div(product(target), span)
    rest = coalesce(Layout(rest)).shape
    rest_strides = compact_strides(rest, span)
    result: Layout = coalesce(Layout.of((tuple(shapes), rest), (tuple(strides), rest_strides)))
    if covering and not exact and not is_decidable(target):
        refuse_run_time(f"{size(plain)} * {size(result)} >= {product(target)}")
    if covering and not exact and size(plain) * size(result) < product(target):
        raise LayoutError(
            f"no complement of {plain} reaches {product(target)}: its strides are not multiples"
            f" of the spans below them, so {size(plain)} x {size(result)} elements fall short",
            code="K141",
            fix="pad the strides to multiples of the inner span",
        )
    return result


_complement_cached = lru_cache(maxsize=4096)(_complement)


def _gaps(plain: Layout) -> tuple[list[Leaf], list[Leaf], Leaf, bool]:
    """The modes between those of `plain`, the span of all of them, and whether all gaps divide."""
    modes = list(zip(leaves(plain.shape), leaves(plain.stride), strict=True))
    if len(modes) > 1:
        if not is_decidable(plain.stride):
            refuse_run_time(f"the order of the strides of {plain}")
        modes = sorted_by_size(modes, key=itemgetter(1))
    shapes, strides, span, exact = [], [], 1, True
    for s, d in modes:
        symbolic = isinstance(d, SymInt) or not is_static(span)
        if symbolic and not divides(span, d):
            raise missing(f"{d} % {span} == 0, the gap below stride {d} of {plain}")
        gap = floordiv(d, span)
        if is_decidable(gap) and gap < 1:
            raise LayoutError(
                f"{plain} has no complement: stride {d} lies inside the span {span} of the modes"
                f" below it, so the modes overlap or interleave and leave no whole gap",
                code="K140",
                fix="complement needs modes of which each starts beyond the ones below",
            )
        exact = exact and (symbolic or type(d) is not int or d % span == 0)
        shapes.append(gap)
        strides.append(span)
        span = mul(d, s)
    return shapes, strides, span, exact
