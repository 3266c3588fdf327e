"""The same memory seen as elements of another width."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.int_tuple import Leaf, ceil_div, is_static, is_zero, leaves, mul, sign
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle


def recast_layout(layout: AnyLayout, old_bits: int, new_bits: int) -> Any:
    """The layout of the same bytes as elements of `new_bits` instead of `old_bits`.

    >>> print(recast_layout(Layout((4, 8), (8, 1)), 16, 64))
    (4,2):(2,1)

    Raises: LayoutError when elements are not adjacent, or a stride does not hold whole elements.
    """
    if old_bits < 1 or new_bits < 1:
        raise LayoutError(
            f"element widths are at least one bit, got {old_bits} and {new_bits}", code="K160"
        )
    ratio = Fraction(new_bits, old_bits)
    wide = upcast(layout, ratio.numerator)
    return downcast(wide, ratio.denominator)


def upcast(layout: AnyLayout | Swizzle, count: int) -> Any:
    """The layout in units of `count` adjacent elements; extents round up.

    Units: strides become multiples of `count` elements.
    """
    if count == 1:
        return layout
    if isinstance(layout, Swizzle):
        return _upcast_swizzle(layout, count)
    if isinstance(layout, ComposedLayout):
        return _upcast_swizzled(layout, count)
    return _tree(lambda s, d: _upcast_mode(s, d, count), layout)


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
                f"recasting to {count} elements at once needs {stride!r} % {count} == 0",
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
    if count == 1:
        return layout
    if isinstance(layout, Swizzle):
        return Swizzle(layout.bits, layout.base + _log2(count, layout), layout.shift)
    if isinstance(layout, ComposedLayout):
        outer, inner = downcast(layout.outer, count), downcast(layout.inner, count)
        return ComposedLayout(outer, mul(layout.offset, count), inner)
    if not any(type(d) is int and abs(d) == 1 for d in leaves(layout.stride)):
        raise LayoutError(
            f"{layout} has no static stride of 1, so its elements are not adjacent",
            code="K162",
            fix="recast before composing away the contiguous mode",
        )
    return _tree(lambda s, d: _downcast_mode(s, d, count), layout)


def _downcast_mode(extent: Leaf, stride: Leaf, count: int) -> tuple[Leaf, Leaf]:
    if type(stride) is int and abs(stride) == 1:
        return mul(extent, count), stride
    return extent, mul(stride, count)


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
