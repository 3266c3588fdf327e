"""Composition and complement of layouts, exact at every coordinate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.basis import ScaledBasis
from kdsl_core.layout.exact import (
    CHECKED_ELEMENTS,
    Composed,
    LeafResult,
    Modes,
    check_sums,
    factored,
    refuse_run_time,
)
from kdsl_core.layout.facts import divides, is_decidable, missing, smaller
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    floordiv,
    is_one,
    is_static,
    is_zero,
    leaves,
    magnitude,
    mul,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import get, not_a_layout, size
from kdsl_core.layout.structure import coalesced_modes
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle, swizzle_from_masks


def composition(a: Any, b: Any) -> Any:
    """The layout R of b's shape, or a refinement of it, with R(c) = a(b(c)).

    `b` may be a layout, an int n (meaning n:1), a tuple of these for each mode of `a` (None
    keeps a mode; modes past the tuple are dropped), or a swizzle; `a` may be swizzled or a
    swizzle. Reaching past the end of `a` extrapolates its last mode.

    >>> print(composition(Layout((8, 2), (2, 1)), Layout(2, 12)))
    2:9
    >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)

    Raises: LayoutError with a coordinate and its value when no layout has these values.
    """
    if not isinstance(a, (Layout, ComposedLayout, Swizzle)):
        raise not_a_layout(a)
    if isinstance(b, tuple):
        return _compose_by_mode(a, b)
    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.outer, a.offset, composition(a.inner, b))
    if isinstance(b, ComposedLayout):
        return _compose_with_composed(a, b)
    if isinstance(a, Swizzle):
        return _compose_swizzle(a, b)
    if isinstance(b, Swizzle):
        return _move_swizzle(a, b)
    if b is None:
        return a
    return compose(a, b if isinstance(b, Layout) else _counting(b))


def _counting(n: IntTuple) -> Layout:
    """The tiler n:1 that an integer n stands for."""
    return Layout(n, 1) if not isinstance(n, tuple) else Layout(n)


def compose(a: Layout, b: Layout) -> Layout:
    """`composition` of two plain layouts."""
    return _compose_cached(a, b) if a.static and b.static else _compose(a, b)


def _compose_by_mode(a: Any, tiler: tuple[Any, ...]) -> Any:
    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.outer, a.offset, _compose_by_mode(a.inner, tiler))
    if not isinstance(a, Layout) or any(isinstance(t, (ComposedLayout, Swizzle)) for t in tiler):
        raise LayoutError(
            f"composition by mode takes plain layouts, got {a} and {tiler}",
            code="K135",
            fix="compose with the swizzle last",
        )
    if len(tiler) > len(a):
        raise LayoutError(
            f"a tiler of {len(tiler)} modes does not fit {a}, which has {len(a)}",
            code="K131",
            fix="give at most one entry for each mode",
        )
    parts = [composition(get(a, i), t) for i, t in enumerate(tiler)]
    return Layout.of(tuple([p.shape for p in parts]), tuple([p.stride for p in parts]))


def _compose(a: Layout, b: Layout) -> Layout:
    modes = _extrapolating_modes(a.shape, a.stride)
    moving: list[Composed] = []
    if isinstance(b.shape, tuple):
        shape, stride = _compose_modes(a, modes, b.shape, b.stride, moving)
    else:
        shape, stride = _compose_mode(a, modes, b.shape, b.stride, moving)
    result = Layout.of(shape, stride)
    if len(moving) > 1 or (moving and moving[0].leaf.negative):
        check_sums(a, b, result, moving)
    return result


_compose_cached = lru_cache(maxsize=4096)(_compose)


def _extrapolating_modes(shape: IntTuple, stride: IntTuple) -> Modes:
    """Coalesced flat modes; a last extent of 1 counts as larger, because the last mode goes on."""
    shapes, strides = leaves(shape), leaves(stride)
    if not shapes:
        return Modes((1,), (0,), True)
    if is_one(shapes[-1]):
        shapes[-1] = 2
    shapes, strides = coalesced_modes(shapes, strides)
    return Modes(tuple(shapes), tuple(strides), is_static(tuple(shapes[:-1])))


def _compose_modes(
    a: Layout, modes: Modes, shape: IntTuple, stride: IntTuple, moving: list[Composed]
) -> tuple[IntTuple, IntTuple]:
    shapes, strides = [], []
    for s, d in zip(shape, stride, strict=True):
        compose_one = _compose_modes if type(s) is tuple else _compose_mode
        out_shape, out_stride = compose_one(a, modes, s, d, moving)
        shapes.append(out_shape)
        strides.append(out_stride)
    return tuple(shapes), tuple(strides)


def _compose_mode(
    a: Layout, modes: Modes, extent: Leaf, step: Leaf, moving: list[Composed]
) -> tuple[IntTuple, IntTuple]:
    """The modes of one leaf; it is noted in `moving` where a sum with others could carry."""
    path: tuple[int, ...] = ()
    if isinstance(step, ScaledBasis):
        path, step = step.path, step.value
        mode = get(a, *path)
        modes = _extrapolating_modes(mode.shape, mode.stride)
    leaf = compose_leaf(modes, extent, step)
    shape, stride, digits, negative = leaf
    if negative or digits.count(0) < len(digits):
        moving.append(Composed(path, modes, leaf))
    return (shape[0], stride[0]) if len(shape) == 1 else (shape, stride)


def compose_leaf(a: Modes, extent: Leaf, step: Leaf) -> LeafResult:
    """The modes of i ↦ a(i·step) for i < extent, and how far each digit of `a` goes."""
    if is_zero(step):
        return LeafResult((extent,), (0,), ())
    if len(a.shape) == 1:
        return LeafResult((extent,), (mul(step, a.stride[0]),), ())
    if a.static and type(extent) is int and type(step) is int:
        result = _compose_static(a, extent, step)
        return result if result is not None else factored(a, extent, step)
    if not is_decidable(step):
        refuse_run_time(f"{step!r}, a stride over the modes {a}")
    return _compose_run_time(a, extent, step)


def _compose_static(a: Modes, extent: int, step: int) -> LeafResult | None:
    """The quick way: walk the modes of `a`, dividing. None where the division is not exact."""
    rest, out_shape, out_stride, digits = extent, [], [], []
    turn, step = (1, step) if step > 0 else (-1, -step)
    strides = a.stride
    for i, s in enumerate(a.shape[:-1]):
        inside = -(-s // step)
        if inside == 1 or rest == 1:
            if step % s and rest > 1:
                return None
            digits.append(0)
        else:
            count = inside if inside < rest else rest
            if rest % count or (rest > count and s % step):
                return None
            out_shape.append(count)
            out_stride.append(mul(turn * step, strides[i]))
            digits.append((count - 1) * step)
            rest //= count
        step = -(-step // s)
    if not out_shape or rest != 1:
        out_shape.append(rest)
        out_stride.append(mul(turn * step, strides[-1]))
    return LeafResult(tuple(out_shape), tuple(out_stride), tuple(digits), turn < 0)


def _compose_run_time(a: Modes, extent: Leaf, step: Leaf) -> LeafResult:
    """The same walk where some number is not static: the facts must decide each of its steps."""
    negative = bool(step < 0)
    rest, step, turn = extent, magnitude(step), -1 if negative else 1
    out_shape: list[Leaf] = []
    out_stride: list[Leaf] = []
    digits: list[Leaf] = []
    for s, d in zip(a.shape[:-1], a.stride[:-1], strict=True):
        if is_one(rest):
            break
        if not is_decidable(s):
            refuse_run_time(f"{step} % {s!r} == 0 or {s!r} % {step} == 0, to split {a}")
        if divides(s, step):
            digits.append(0)
            step = step // s
            continue
        count = _steps_inside(a, s, step, rest)
        out_shape.append(count)
        out_stride.append(mul(turn, mul(step, d)))
        digits.append(mul(count - 1, step))
        rest, step = floordiv(rest, count), 1
    if not out_shape or not is_one(rest):
        out_shape.append(rest)
        out_stride.append(0 if is_one(rest) else mul(turn, mul(step, a.stride[-1])))
    return LeafResult(tuple(out_shape), tuple(out_stride), tuple(digits), negative)


def _steps_inside(a: Modes, extent: Leaf, step: Leaf, rest: Leaf) -> Leaf:
    """How many of `rest` steps stay inside a mode of `a` that the steps fill evenly."""
    if not divides(step, extent):
        raise missing(f"{extent} % {step} == 0, to split {a}")
    inside = floordiv(extent, step)
    if not is_decidable(rest):
        refuse_run_time(f"{rest!r} % {inside} == 0, to split {a}")
    count = smaller(inside, rest, f"to split {a}")
    if not divides(count, rest):
        raise missing(f"{rest} % {count} == 0, to split {a}")
    return count


# -- swizzles ------------------------------------------------------------------------------------


def _compose_swizzle(a: Swizzle, b: Any) -> Any:
    if isinstance(b, Swizzle):
        return _merge_swizzles(a, b)
    b = b if isinstance(b, (Layout, ComposedLayout)) else Layout(b)
    return b if a.bits == 0 else ComposedLayout(a, 0, b)


def _merge_swizzles(a: Swizzle, b: Swizzle) -> Swizzle:
    """Two swizzles of one shift toggle the bits that exactly one of them toggles."""
    if a.shift != b.shift:
        raise LayoutError(f"swizzles compose when their shifts agree, got {a} and {b}", code="K123")
    merged = swizzle_from_masks(a.source_mask ^ b.source_mask, a.target_mask ^ b.target_mask)
    if a.source_mask & b.target_mask or a.target_mask & b.source_mask:
        raise LayoutError(f"{a} reads bits that {b} changes", code="K123")
    return merged


def _move_swizzle(a: Layout, b: Swizzle) -> Any:
    """a ∘ swizzle as another swizzle ∘ a, where the layout moves whole address bits."""
    if not a.static:
        refuse_run_time(f"the bits that {a} moves, to carry {b} through it")
    if b.bits == 0 or (b.source_mask & -b.source_mask) >= size(a):
        return a
    if size(a) > CHECKED_ELEMENTS:
        raise LayoutError(
            f"cannot decide whether {a} carries {b} to one swizzle: {size(a)} values are too many",
            code="K143",
            fix="swizzle after composing, not before",
        )
    moved = swizzle_from_masks(a(b.source_mask), a(b.target_mask))
    for i in range(size(a)):
        if moved(a(i)) != a(b(i)):
            raise LayoutError(
                f"{a} does not carry {b} to one swizzle: index {i} gives {a(b(i))},"
                f" {moved} gives {moved(a(i))}",
                code="K123",
                fix="swizzle after composing, not before",
            )
    return ComposedLayout(moved, 0, a)


def _compose_with_composed(a: Any, b: ComposedLayout) -> Any:
    """a ∘ (outer ∘ offset ∘ inner), associated to the left where that stays a swizzle."""
    if not isinstance(a, Swizzle) or not isinstance(b.outer, Swizzle) or not is_zero(b.offset):
        return ComposedLayout(a, 0, b)
    return composition(_merge_swizzles(a, b.outer), b.inner)
