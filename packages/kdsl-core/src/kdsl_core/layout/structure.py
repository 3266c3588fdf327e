"""Operations that regroup, pad or merge modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ScaledBasis
from kdsl_core.layout.coord import compact_strides
from kdsl_core.layout.facts import is_decidable
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    flatten_tuple,
    is_one,
    is_zero,
    leaves,
    map_leaves,
    mul,
    tuple_rank,
    unflatten_tuple,
    wrap,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, get, inner_of, not_a_layout, require_index
from kdsl_core.layout.swizzle import ComposedLayout

UNIT = Layout.of(1, 0)


def on_inner(op: Callable[..., Layout], x: AnyLayout, *args: Any) -> Any:
    """`op` on a layout, or under the swizzle of a swizzled one."""
    if isinstance(x, ComposedLayout):
        return x.with_inner(on_inner(op, x.inner, *args))
    if not isinstance(x, Layout):
        raise not_a_layout(x)
    return op(x, *args)


# -- modes ---------------------------------------------------------------------------------------


def _modes(layout: Layout) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return wrap(layout.shape), wrap(layout.stride)


def select(layout: AnyLayout, *modes: int) -> Any:
    """A layout of the modes named, in that order.

    >>> print(select(Layout((2, 3, 5)), 2, 0))
    (5,2):(6,1)
    """
    picked = [i for m in modes for i in (m if isinstance(m, (tuple, list)) else (m,))]
    return on_inner(_select, layout, picked)


def _select(layout: Layout, modes: list[int]) -> Layout:
    parts = [get(layout, i) for i in modes]
    return Layout.of(tuple([p.shape for p in parts]), tuple([p.stride for p in parts]))


def take(layout: AnyLayout, begin: int, end: int) -> Any:
    """A layout of the modes from `begin` up to `end`."""
    modes = len(inner_of(layout))
    if not 0 <= require_index(begin) < require_index(end) <= modes:
        raise LayoutError(
            f"expected 0 ≤ begin < end ≤ {modes} modes, got {begin} and {end}", code="K130"
        )
    return select(layout, *range(begin, end))


def group_modes(layout: AnyLayout, begin: int, end: int) -> Any:
    """The modes from `begin` up to `end` grouped into one.

    >>> print(group_modes(Layout((2, 3, 5)), 0, 2))
    ((2,3),5):((1,2),6)
    """
    modes = len(inner_of(layout))
    if not 0 <= require_index(begin) <= require_index(end) <= modes:
        raise LayoutError(
            f"expected 0 ≤ begin ≤ end ≤ {modes} modes, got {begin} and {end}", code="K130"
        )

    def group(t: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*t[:begin], t[begin:end], *t[end:]) if end > begin else t

    return on_inner(lambda x: Layout.of(*map(group, _modes(x))), layout)


def append(layout: AnyLayout, extra: Layout = UNIT, up_to: int | None = None) -> Any:
    """`extra` as a new last mode, or as many times as it takes to reach rank `up_to`."""
    if not isinstance(extra, Layout):
        raise not_a_layout(extra)
    return on_inner(lambda x: _pad(x, extra, up_to, at_end=True), layout)


def prepend(layout: AnyLayout, extra: Layout = UNIT, up_to: int | None = None) -> Any:
    """`extra` as a new first mode, or as many times as it takes to reach rank `up_to`."""
    if not isinstance(extra, Layout):
        raise not_a_layout(extra)
    return on_inner(lambda x: _pad(x, extra, up_to, at_end=False), layout)


def _pad(layout: Layout, extra: Layout, up_to: int | None, *, at_end: bool) -> Layout:
    count = 1 if up_to is None else up_to - len(layout)
    if count < 0:
        raise LayoutError(f"expected at most {up_to} modes, got {layout}", code="K130")
    if count == 0:
        return layout
    shapes, strides = _modes(layout)
    if at_end:
        return Layout.of(shapes + (extra.shape,) * count, strides + (extra.stride,) * count)
    return Layout.of((extra.shape,) * count + shapes, (extra.stride,) * count + strides)


def replace(layout: AnyLayout, mode: int, new: Layout) -> Any:
    """The layout with one mode exchanged."""

    def swap(x: Layout) -> Layout:
        shapes, strides = map(list, _modes(x))
        shapes[mode], strides[mode] = new.shape, new.stride
        return Layout.of(tuple(shapes), tuple(strides))

    return on_inner(swap, layout)


def flatten(layout: AnyLayout) -> Any:
    """The layout with one mode per leaf.

    >>> print(flatten(Layout(((2, 4), 8))))
    (2,4,8):(1,2,8)
    """
    return on_inner(lambda x: Layout.of(flatten_tuple(x.shape), flatten_tuple(x.stride)), layout)


def unflatten(layout: AnyLayout, profile: IntTuple) -> Any:
    """The modes of a flat layout in the nesting of `profile`."""
    return on_inner(
        lambda x: Layout.of(*[unflatten_tuple(leaves(t), profile) for t in (x.shape, x.stride)]),
        layout,
    )


# -- simplification ------------------------------------------------------------------------------


def coalesce(layout: AnyLayout, profile: IntTuple = None) -> Any:
    """The same function with as few modes as possible, per leaf of `profile` where given.

    Runs of modes that continue one another merge; static extents 1 vanish. Symbolic modes merge
    where they are proven to continue; run-time ones never do, because nothing proves it.

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    """
    if profile is None:
        return on_inner(_coalesce, layout)
    return on_inner(lambda x: _by_profile(_coalesce, x, profile), layout)


def _by_profile(op: Callable[[Layout], Layout], layout: Layout, profile: IntTuple) -> Layout:
    if not isinstance(profile, tuple):
        return op(layout)
    parts = list(layout)
    done = [_by_profile(op, p, q) for p, q in zip(parts, profile, strict=False)]
    parts = done + parts[len(done) :]
    return Layout.of(tuple([p.shape for p in parts]), tuple([p.stride for p in parts]))


def _coalesce(layout: Layout) -> Layout:
    shapes, strides = coalesced_modes(leaves(layout.shape), leaves(layout.stride))
    if not shapes:
        return UNIT
    return Layout.of(_bare(shapes), _bare(strides))


def _bare(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else tuple(items)


def coalesced_modes(shape: Any, stride: Any) -> tuple[list[Leaf], list[Leaf]]:
    """Flat modes with units dropped and continuing neighbours merged."""
    shapes: list[Leaf] = []
    strides: list[Leaf] = []
    for s, d in zip(shape, stride, strict=True):
        if is_one(s):
            continue
        if shapes and _continues(shapes[-1], strides[-1], s, d):
            shapes[-1] *= s
        else:
            shapes.append(s)
            strides.append(d)
    return shapes, strides


def _continues(s0: Leaf, d0: Leaf, s1: Leaf, d1: Leaf) -> bool:
    if type(s0) is int and type(d0) is int and type(d1) is int and type(s1) is int:
        return s0 * d0 == d1
    if not is_decidable((s0, s1)):
        return False
    if isinstance(d0, ScaledBasis) and isinstance(d1, ScaledBasis):
        return bool(d0 * s0 == d1)
    return is_decidable((d0, d1)) and bool(mul(s0, d0) == d1)


def filter_zeros(layout: AnyLayout, profile: IntTuple = None) -> Any:
    """Extents become 1 where the stride (or the profile's leaf) is a static 0; nothing merges.

    >>> print(filter_zeros(Layout((4, 8), (0, 1))))
    (1,8):(0,1)
    """

    def zeroed(x: Layout) -> Layout:
        by = x.stride if profile is None else profile
        return Layout.of(_ones_where_zero(x.shape, by), x.stride)

    return on_inner(zeroed, layout)


def _ones_where_zero(s: IntTuple, by: IntTuple) -> IntTuple:
    if isinstance(by, tuple):
        if len(by) > tuple_rank(s):
            raise LayoutError(f"expected a profile within {s}, got {by}", code="K104")
        modes = wrap(s)
        head = [_ones_where_zero(x, b) for x, b in zip(modes, by, strict=False)]
        return (*head, *modes[len(head) :])
    if is_zero(by):
        return map_leaves(lambda _: 1, s)
    return s


def filter_layout(layout: AnyLayout, profile: IntTuple = None) -> Any:
    """`filter_zeros`, then `coalesce`: the modes that move."""
    if profile is None:
        return coalesce(filter_zeros(layout))
    return on_inner(lambda x: _by_profile(lambda m: _coalesce(filter_zeros(m)), x, profile), layout)


def nullspace(layout: Layout) -> Layout:
    """The coordinates that do not move: layout(nullspace(i)) = 0 for every i.

    >>> print(nullspace(Layout((2, 4, 8), (1, 0, 2))))
    4:2
    """
    if not isinstance(layout, Layout):
        raise not_a_layout(layout)
    extents, compact = tuple(leaves(layout.shape)), compact_strides(flatten_tuple(layout.shape))
    zeros = [i for i, d in enumerate(leaves(layout.stride)) if is_zero(d)]
    if not zeros:
        return UNIT
    compact = wrap(compact)
    flat = Layout.of(tuple([extents[i] for i in zeros]), tuple([compact[i] for i in zeros]))
    return flat if len(zeros) > 1 else flat[0]
