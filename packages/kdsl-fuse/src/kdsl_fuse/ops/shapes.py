"""Operators that move elements: views, which cost nothing, and Concat and Gather, which copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, axes_of, promote
from kdsl_fuse.strided import Shape, Strided, broadcasts


def _infer_transpose(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    if sorted(op["perm"]) != list(range(x.rank)):
        raise FusionError(
            f"Transpose orders the {x.rank} axes of {x}, got the order {list(op['perm'])}",
            code="K915",
            loc=loc,
            notes=[x.note()],
            fix=f"name each of the axes 0 to {x.rank - 1} once",
        )
    return tuple(x.shape[axis] for axis in op["perm"]), x.dtype


def _infer_reshape(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,), shape = operands, op["shape"]
    if math.prod(shape) != math.prod(x.shape) or any(size < 0 for size in shape):
        raise FusionError(
            f"{x} has {math.prod(x.shape)} elements and cannot become {list(shape)}",
            code="K951",
            loc=loc,
            notes=[x.note()],
            fix="one size may be −1: kf.reshape finds it",
        )
    return shape, x.dtype


def _infer_slice(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    parts = list(zip(op["starts"], op["stops"], op["steps"], strict=True))
    fits = len(parts) == x.rank and all(
        0 <= start <= stop <= size and step > 0
        for (start, stop, step), size in zip(parts, x.shape, strict=True)
    )
    if not fits:
        raise FusionError(
            f"Slice takes 0 ≤ start ≤ stop ≤ size and step ≥ 1 on each axis of {x}, got {parts}",
            code="K952",
            loc=loc,
            notes=[x.note()],
            fix="slice as in NumPy with positive steps: x[1:, ::2]",
        )
    return tuple(len(range(*part)) for part in parts), x.dtype


def _slice_reference(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    return x[tuple(map(slice, starts, stops, steps))]


def _infer_expand(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,), shape = operands, op["shape"]
    if not broadcasts(x.shape, shape):
        raise FusionError(
            f"{x} cannot be repeated to {list(shape)}",
            code="K953",
            loc=loc,
            notes=[x.note()],
            fix="sizes other than 1 stay as they are",
        )
    return shape, x.dtype


def _infer_squeeze(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    axes = axes_of(op, op["axes"], x.rank, loc)
    if any(x.shape[axis] != 1 for axis in axes):
        raise FusionError(
            f"Squeeze removes axes of size 1, got axes {list(axes)} of {x}",
            code="K954",
            loc=loc,
            notes=[x.note()],
            fix="kf.reshape merges other axes",
        )
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes), x.dtype


def _infer_unsqueeze(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    rank = x.rank + len(op["axes"])
    axes = axes_of(op, op["axes"], rank, loc)
    sizes = iter(x.shape)
    return tuple(1 if axis in axes else next(sizes) for axis in range(rank)), x.dtype


def _infer_concat(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    first, *others = operands
    (axis,) = axes_of(op, (op["axis"],), first.rank, loc)
    for other in others:
        same = other.rank == first.rank and all(
            a == b
            for at, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
            if at != axis
        )
        if not same:
            raise FusionError(
                f"Concat along axis {axis} needs equal other axes, "
                f"got {list(first.shape)} and {list(other.shape)}",
                code="K955",
                loc=loc,
                notes=[first.note(), other.note()],
                fix="slice or reshape one of them",
            )
    total = sum(node.shape[axis] for node in operands)
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), promote(op, operands, loc)


def _infer_gather(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    table, indices = operands
    (axis,) = axes_of(op, (op["axis"],), table.rank, loc)
    if indices.dtype.is_float or indices.dtype.name == "boolean":
        raise FusionError(
            f"Gather takes integer indices, got {indices}",
            code="K956",
            loc=loc,
            notes=[indices.note()],
            fix="kf.cast(indices, 'i32')",
        )
    return (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype


def _reshaped(source: Strided, op: Op, shape: Shape) -> Strided | None:
    return source.reshaped(shape)


def _sliced(source: Strided, op: Op, shape: Shape) -> Strided:
    return source.sliced(op["starts"], op["steps"], shape)


SHAPES = (
    OpDef(
        "Transpose",
        _infer_transpose,
        lambda x, perm: np.transpose(x, perm),
        view=lambda source, op, shape: source.permuted(op["perm"]),
    ),
    OpDef("Reshape", _infer_reshape, lambda x, shape: np.reshape(x, shape), view=_reshaped),
    OpDef("Slice", _infer_slice, _slice_reference, view=_sliced),
    OpDef(
        "Expand",
        _infer_expand,
        lambda x, shape: np.broadcast_to(x, shape),
        view=lambda source, op, shape: source.broadcast(shape),
    ),
    OpDef("Squeeze", _infer_squeeze, lambda x, axes: np.squeeze(x, axes), view=_reshaped),
    OpDef("Unsqueeze", _infer_unsqueeze, lambda x, axes: np.expand_dims(x, axes), view=_reshaped),
    OpDef("Concat", _infer_concat, lambda *xs, axis: np.concatenate(xs, axis)),
    OpDef("Gather", _infer_gather, lambda table, indices, axis: np.take(table, indices, axis)),
)
