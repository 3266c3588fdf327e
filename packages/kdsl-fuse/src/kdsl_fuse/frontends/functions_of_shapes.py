"""Functions that move elements, for use inside `@kf.fuse`, named as in NumPy and ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.traced import TracedArray, apply
from kdsl_fuse.origin import author_loc
from kdsl_fuse.strided import Shape


def transpose(x: Any, axes: Sequence[int] | None = None) -> TracedArray:
    """The axes in another order, reversed when none is given: a view."""
    perm = range(x.ndim)[::-1] if axes is None else (a + x.ndim if a < 0 else a for a in axes)
    return apply("Transpose", x, perm=tuple(perm))


def reshape(x: Any, shape: int | Sequence[int]) -> TracedArray:
    """The same elements in row-major order with other sizes, of which one may be −1."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        found = math.prod(x.shape) // known if known else 0
        sizes = tuple(found if size == -1 else size for size in sizes)
    return apply("Reshape", x, shape=sizes)


def broadcast_to(x: Any, shape: Sequence[int]) -> TracedArray:
    """The array repeated to `shape`, as a view."""
    return apply("Expand", x, shape=tuple(shape))


expand = broadcast_to


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> TracedArray:
    """Without axes of size 1: those given, or all."""
    found = tuple(i for i, size in enumerate(x.shape) if size == 1) if axis is None else axis
    return apply("Squeeze", x, axes=_tuple(found, x.ndim))


def expand_dims(x: Any, axis: int | Sequence[int]) -> TracedArray:
    """With new axes of size 1 at these places of the result."""
    added = 1 if isinstance(axis, int) else len(tuple(axis))
    return apply("Unsqueeze", x, axes=_tuple(axis, x.ndim + added))


unsqueeze = expand_dims


def concatenate(arrays: Sequence[Any], axis: int = 0) -> TracedArray:
    """The arrays one behind the other along an axis."""
    rank = next((x.ndim for x in arrays if isinstance(x, TracedArray)), 0)
    return apply("Concat", *arrays, axis=axis + rank if axis < 0 else axis)


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[TracedArray]:
    """Parts along an axis, as views: so many equal ones, or those between the given places.

    Raises: FusionError K961 where equal parts are no whole numbers.
    """
    at = axis + x.ndim if axis < 0 else axis
    size = x.shape[at]
    if isinstance(sections, int):
        if sections < 1 or size % sections:
            raise FusionError(
                f"axis {axis} of size {size} does not split into {sections} equal parts",
                code="K961",
                loc=author_loc(),
                fix="give the places to split at: kf.split(x, [3, 5])",
            )
        sections = range(0, size, max(1, size // sections))[1:]
    edges = [0, *sections, size]
    everything: tuple[slice, ...] = (slice(None),) * at
    return [x[(*everything, slice(a, b))] for a, b in pairwise(edges)]


def take(table: Any, indices: Any, axis: int = 0) -> TracedArray:
    """The rows (or other slices) of `table` that `indices` name: ONNX's Gather."""
    return apply("Gather", table, indices, axis=axis + table.ndim if axis < 0 else axis)


gather = take


def embedding(indices: Any, table: Any) -> TracedArray:
    """A row of `table` for each index."""
    return apply("Gather", table, indices, axis=0)


def index(x: TracedArray, key: Any) -> TracedArray:
    """x[key] for whole numbers, slices with positive steps, None and …, as in NumPy: a view.

    Raises: FusionError K962 for any other key, and for one that lies outside.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    given = [k for k in keys if k is not None and k is not Ellipsis]
    for k in given:
        if not _is_plain(k):
            raise _no_key(x, k)
    if len(given) > x.ndim or keys.count(Ellipsis) > 1:
        raise _no_key(x, key)
    if Ellipsis not in keys:
        keys.append(Ellipsis)
    at = keys.index(Ellipsis)
    keys[at : at + 1] = [slice(None)] * (x.ndim - len(given))
    return _indexed(x, keys)


def _indexed(x: TracedArray, keys: list[Any]) -> TracedArray:
    parts: list[range] = []
    shape: list[int] = []
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        size = x.shape[len(parts)]
        if isinstance(key, slice):
            parts.append(range(*key.indices(size)))
            shape.append(len(parts[-1]))
        elif not -size <= key < size:
            raise _no_key(x, key)
        else:
            parts.append(range(key % size, key % size + 1))
    starts, steps = tuple(p.start for p in parts), tuple(p.step for p in parts)
    stops = tuple(max(p.start, p.stop) for p in parts)
    sliced = apply("Slice", x, starts=starts, stops=stops, steps=steps)
    return sliced if sliced.shape == tuple(shape) else apply("Reshape", sliced, shape=tuple(shape))


def _is_plain(key: Any) -> bool:
    if isinstance(key, slice):
        return key.step is None or (isinstance(key.step, int) and key.step > 0)
    return isinstance(key, int) and not isinstance(key, bool)


def _no_key(x: TracedArray, key: Any) -> FusionError:
    return FusionError(
        f"a traced array takes whole numbers inside its axes, slices with positive steps, None and "
        f"…, got [{key!r}] on shape {list(x.shape)}",
        code="K962",
        loc=author_loc(),
        notes=[x.node.note()],
        fix="kf.take(x, indices, axis) picks by an array, kf.where(mask, a, b) by a condition",
    )


def _tuple(axes: int | Sequence[int], rank: int) -> Shape:
    return tuple(a + rank if a < 0 else a for a in ((axes,) if isinstance(axes, int) else axes))
