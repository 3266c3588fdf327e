"""Measures of layouts, tensors and shapes, and the way to one of their modes."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ArithmeticTuple, ScaledBasis, basis_zero
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    add,
    ceil_div,
    leaves,
    magnitude,
    mul,
    product,
    tuple_depth,
    tuple_rank,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.swizzle import ComposedLayout

AnyLayout = Layout | ComposedLayout


def as_layout(x: Any, *mode: int) -> AnyLayout:
    """The layout of a layout or tensor, or the compact layout of a shape; a mode of it."""
    if not isinstance(x, (Layout, ComposedLayout)):
        x = x.layout if hasattr(x, "layout") else Layout(x)
    found: AnyLayout = get(x, *mode)
    return found


def inner_of(x: AnyLayout) -> Layout:
    """The affine part of a layout."""
    while isinstance(x, ComposedLayout):
        x = x.inner
    if not isinstance(x, Layout):
        raise not_a_layout(x)
    return x


def not_a_layout(x: object) -> LayoutError:
    """The error of an argument of the wrong type."""
    return LayoutError(
        f"expected a layout, got {x!r} of type {type(x).__name__}",
        code="K115",
        fix="wrap a shape in Layout(...)",
    )


def require_index(i: object) -> int:
    """A mode number."""
    if not isinstance(i, int):
        raise LayoutError(f"expected a mode number, got {i!r}", code="K130")
    return i


def get(layout: AnyLayout, *path: int) -> Any:
    """The layout of one mode; a longer path descends into the mode.

    >>> print(get(Layout(((2, 4), 8)), 0, 1))
    4:2
    """
    if not isinstance(layout, (Layout, ComposedLayout)):
        raise not_a_layout(layout)
    for i in map(require_index, path):
        if not -len(layout) <= i < len(layout):
            raise LayoutError(
                f"expected a mode below {len(layout)} of {layout}, got {i}", code="K130"
            )
        layout = layout[i]
    return layout


def shape(x: Any, *mode: int) -> IntTuple:
    """The extents of a layout, tensor or shape, or of one mode of it."""
    return as_layout(x, *mode).shape


def stride(x: Any, *mode: int) -> IntTuple:
    """The strides of a layout or tensor, or of one mode of it."""
    return inner_of(as_layout(x, *mode)).stride


def size(x: Any, *mode: int) -> Leaf:
    """The number of elements in the domain.

    >>> size(Layout((4, (2, 3)))), size(Layout((4, (2, 3))), 1)
    (24, 6)
    """
    return product(shape(x, *mode))


def rank(x: Any, *mode: int) -> int:
    """The number of modes; a bare integer shape has one."""
    return tuple_rank(shape(x, *mode))


def depth(x: Any, *mode: int) -> int:
    """The levels of nesting; a bare integer shape has none."""
    return tuple_depth(shape(x, *mode))


def cosize(x: Any, *mode: int) -> Leaf:
    """One more than the largest offset: Σ (extent − 1)·|stride| + 1.

    >>> cosize(Layout((4, 8), (16, 1)))
    56
    """
    total = coshape(x, *mode)
    return product(total) if isinstance(total, tuple) else total


def coshape(x: Any, *mode: int) -> IntTuple:
    """The extents of the codomain: `cosize`, per coordinate where strides are basis strides."""
    layout = as_layout(x, *mode)
    if isinstance(layout, ComposedLayout):
        return _composed_cosize(layout)
    total: Any = basis_zero(layout.stride) if layout.has_basis else 0
    for s, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        total = (
            total + mul(add(s, -1), d) if isinstance(d, ScaledBasis) else add(total, _span(s, d))
        )
    return _plus_one(total)


def _span(extent: Leaf, stride: Leaf) -> Leaf:
    return mul(add(extent, -1), magnitude(stride))


def _plus_one(t: Any) -> Any:
    if isinstance(t, ScaledBasis):
        t = t.as_tuple()
    if isinstance(t, ArithmeticTuple):
        return tuple([_plus_one(item) for item in t])
    return add(t, 1)


def _composed_cosize(layout: ComposedLayout) -> Leaf:
    """The largest offset is searched for; beyond 2**18 elements a bound is given instead.

    A swizzle permutes offsets inside blocks of its highest bit, which gives the bound.
    """
    if isinstance(layout.outer, Layout):
        return cosize(layout.outer)
    if layout.static and size(layout.inner) <= 1 << 18:
        return 1 + max(layout(i) for i in range(size(layout.inner)))
    block = 1 << max(layout.outer.source_mask, layout.outer.target_mask).bit_length()
    return mul(ceil_div(add(layout.offset, cosize(layout.inner)), block), block)
