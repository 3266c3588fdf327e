"""The same memory seen as elements of another width."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as count_from
from math import gcd
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ScaledBasis
from kdsl_core.layout.exact import CHECKED_ELEMENTS
from kdsl_core.layout.int_tuple import Leaf, ceil_div, is_one, is_static, is_zero, leaves, mul, sign
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, inner_of, size
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle


def recast_layout(layout: AnyLayout, old_bits: int, new_bits: int) -> Any:
    """The layout of the same bytes as elements of `new_bits` instead of `old_bits`.

    >>> print(recast_layout(Layout((4, 8), (8, 1)), 16, 64))
    (4,2):(2,1)

    Raises: LayoutError when elements are not adjacent, or a stride does not hold whole elements.
    """
    _check_widths(old_bits, new_bits)
    common = gcd(new_bits, old_bits)
    return downcast(upcast(layout, new_bits // common), old_bits // common)


def _check_widths(*widths: int) -> None:
    if any(not isinstance(width, int) or width < 1 for width in widths):
        raise LayoutError(
            f"element widths and counts are integers of at least 1, got {widths}", code="K160"
        )


def upcast(layout: AnyLayout | Swizzle, count: int) -> Any:
    """The layout in units of `count` adjacent elements; extents round up.

    Units: strides become multiples of `count` elements.
    """
    _check_widths(count)
    if count == 1:
        return layout
    if isinstance(layout, Swizzle):
        return _upcast_swizzle(layout, count)
    if isinstance(layout, ComposedLayout):
        return _upcast_swizzled(layout, count)
    if any(isinstance(d, ScaledBasis) for d in leaves(inner_of(layout).stride)):
        raise LayoutError(
            f"a recast needs integer strides, got {layout}",
            code="K164",
            fix="recast the layout of offsets",
        )
    wide = _tree(lambda s, d: _upcast_mode(s, d, count), layout)
    if not _stays_inside(layout, count):
        _check_every_group(layout, wide, count)
    return wide


def _stays_inside(layout: Layout, count: int) -> bool:
    """Whether the parts of offsets below `count` never add up to another group."""
    total = 0
    for s, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        if type(d) is not int or d % count == 0:
            continue
        inside = ceil_div(count, abs(d))
        steps = min(s, inside) if type(s) is int else inside
        total += (steps - 1) * d if d > 0 else count
    return total < count


def _check_every_group(layout: Layout, wide: Layout, count: int) -> None:
    """Refuse a recast whose modes carry into one another, so that some element is in no group."""
    if not layout.static or size(layout) > CHECKED_ELEMENTS:
        raise LayoutError(
            f"cannot decide whether the modes of {layout} carry into one another in groups of"
            f" {count} elements",
            code="K143",
            fix="recast mode by mode",
        )
    groups = {wide(i) for i in range(size(wide))}
    for i in range(size(layout)):
        if layout(i) // count not in groups:
            raise LayoutError(
                f"{layout} does not recast to {count} elements at once: index {i} at offset"
                f" {layout(i)} lies in group {layout(i) // count}, which {wide} does not reach",
                code="K161",
                fix="recast a layout whose modes do not overlap",
            )


def _tree(op: Callable[[Leaf, Leaf], tuple[Leaf, Leaf]], layout: Layout) -> Layout:
    def walk(s: Any, d: Any) -> tuple[Any, Any]:
        if not isinstance(s, tuple):
            return op(s, d)
        parts = [walk(x, y) for x, y in zip(s, d, strict=True)]
        return tuple([p[0] for p in parts]), tuple([p[1] for p in parts])

    return Layout.of(*walk(layout.shape, layout.stride))


def _upcast_mode(extent: Leaf, stride: Leaf, count: int) -> tuple[Leaf, Leaf]:
    if is_zero(stride):
        return extent, stride
    if not is_static(stride):
        if getattr(stride, "divisible_by", 1) % count:
            raise LayoutError(
                f"recasting to {count} elements at once needs {stride} % {count} == 0",
                code="K102",
                fix="declare the stride divisible, or use a narrower vector",
            )
        return extent, stride // count
    step = abs(stride)
    if step % count and count % step:
        raise LayoutError(
            f"stride {stride} of extent {extent} does not hold whole groups of {count} elements",
            code="K161",
            fix="pad the stride to a multiple, or recast to a width that divides it",
        )
    return ceil_div(extent, ceil_div(count, step)), sign(stride) * ceil_div(step, count)


def downcast(layout: AnyLayout | Swizzle, count: int) -> Any:
    """The layout in units of 1/`count` element; the mode of stride 1 gets longer."""
    _check_widths(count)
    if count == 1:
        return layout
    if isinstance(layout, Swizzle):
        return Swizzle(layout.bits, layout.base + _log2(count, layout), layout.shift)
    if isinstance(layout, ComposedLayout):
        outer, inner = downcast(layout.outer, count), downcast(layout.inner, count)
        return ComposedLayout(outer, mul(layout.offset, count), inner)
    longer = _unit_mode(inner_of(layout))
    if longer is None:
        raise LayoutError(
            f"{layout} has no static stride of 1, so its elements are not adjacent",
            code="K162",
            fix="recast before composing away the contiguous mode",
        )
    position = count_from(0)

    def narrow(extent: Leaf, stride: Leaf) -> tuple[Leaf, Leaf]:
        if next(position) == longer:
            return mul(extent, count), stride
        return extent, mul(stride, count)

    return _tree(narrow, layout)


def _unit_mode(layout: Layout) -> int | None:
    """The leaf along which elements are adjacent: the first of stride ±1, longer than 1 if any."""
    modes = zip(leaves(layout.shape), leaves(layout.stride), strict=True)
    units = [(is_one(s), i) for i, (s, d) in enumerate(modes) if type(d) is int and abs(d) == 1]
    return min(units)[1] if units else None


def _upcast_swizzled(layout: ComposedLayout, count: int) -> ComposedLayout:
    if type(layout.offset) is int:
        if layout.offset % count:
            raise LayoutError(
                f"offset {layout.offset} of {layout} is not a multiple of {count}", code="K161"
            )
        offset = layout.offset // count
    else:
        offset = _upcast_mode(1, layout.offset, count)[1]
    inner = upcast(layout.inner, count)
    return ComposedLayout(_upcast_swizzle(layout.outer, count), offset, inner)


def _upcast_swizzle(swizzle: Swizzle, count: int) -> Swizzle:
    """The swizzle on wider elements: the base drops, and below 0 bits inside them vanish."""
    bits = _log2(count, swizzle)
    lost = max(0, bits - swizzle.base)
    if lost and swizzle.shift < 0 < swizzle.bits:
        raise LayoutError(
            f"{swizzle} reads bits inside {count} elements, which a wider element hides",
            code="K163",
        )
    return Swizzle(max(0, swizzle.bits - lost), max(0, swizzle.base - bits), swizzle.shift)


def _log2(count: int, swizzle: Any) -> int:
    if not isinstance(swizzle, Swizzle) or count & (count - 1):
        raise LayoutError(
            f"a swizzle recasts by powers of two only, got {count} for {swizzle}",
            code="K163",
            fix="recast before swizzling",
        )
    return count.bit_length() - 1
