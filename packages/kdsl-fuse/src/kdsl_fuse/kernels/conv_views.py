"""Images, filters and results of a convolution as the views that its kernels take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import kdsl_core as kd
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.strided import Strided, broadcasts


def group_of(x: Any, mode: int, group: int, groups: int) -> Any:
    """The part of an array that belongs to one of the groups that `mode` is split into."""
    if groups == 1:
        return x
    facts = facts_of(x, "operand")
    shape, strides = list(facts.shape), tuple(facts.strides)
    shape[mode] //= groups
    return arrays.view(x, Strided(tuple(shape), strides, group * shape[mode] * strides[mode]))


def groups_of(
    problem: ConvProblem, x: Any, w: Any, results: Sequence[Any], extras: Sequence[Any]
) -> Iterator[tuple[Any, Any, list[Any], list[Any]]]:
    """Images, filters, results and extras of each group, the latter as matrices.

    Raises: ArgumentError K998 for a result or an extra whose pixels are no rows of a matrix.
    """
    outputs = [result_matrix(y, problem, "out") for y in results]
    operands = [result_matrix(y, problem, "an extra operand") for y in extras]
    for group in range(problem.groups):
        at = group, problem.groups
        yield (
            group_of(x, 3, *at), group_of(w, 0, *at),
            [group_of(y, 1, *at) for y in outputs], [group_of(y, 1, *at) for y in operands],
        )  # fmt: skip


def as_images(x: Any) -> Any:
    """Lines (n, length, c) as images of one row; images as they are."""
    facts = facts_of(x, "x")
    if len(facts.shape) != 3:
        return x
    (n, length, c), strides = facts.shape, facts.strides
    row = length * strides[1]
    return arrays.view(x, Strided((n, 1, length, c), (strides[0], row, *strides[1:])))


def taps_of(w: Strided) -> Strided | None:
    """Filters (k, r, s, c) as (k, c, taps); None where that takes a copy."""
    k, r, s, c = w.shape
    taps = Strided((r, s), w.strides[1:3]).reshaped((r * s,))
    if taps is None:
        return None
    step = taps.strides[0] if r * s > 1 else c
    return Strided((k, c, r * s), (w.strides[0], w.strides[3], step), w.offset)


def rows_of(w: Strided) -> Strided | None:
    """Filters (k, r, s, c) as a matrix (k, r · s · c); None where that takes a copy."""
    depth = Strided(w.shape[1:], w.strides[1:]).reshaped((math.prod(w.shape[1:]),))
    if depth is None or depth.strides[0] != 1:
        return None
    return Strided((w.shape[0], *depth.shape), (w.strides[0], 1), w.offset)


def pixels_of(x: Strided, shape: Sequence[int]) -> Strided | None:
    """What broadcasts to (n, p, q, k) as a matrix of pixels × channels.

    None where that takes a copy.
    """
    *sides, k = shape
    seen, count = x.broadcast(tuple(shape)), math.prod(sides)
    rows = Strided(seen.shape[:3], seen.strides[:3]).reshaped((count,))
    if rows is None:
        return None
    pitch = rows.strides[0] if count > 1 else k
    return Strided((count, k), (pitch, seen.strides[3]), x.offset)


def filter_view(w: Any) -> Any:
    """An array of filters as `taps_of` sees it, or None."""
    found = taps_of(arrays.strided(w))
    return None if found is None else arrays.view(w, found)


def filter_matrix(w: Any) -> Any:
    """An array of filters as `rows_of` sees it, or None."""
    found = rows_of(arrays.strided(w))
    return None if found is None else arrays.view(w, found)


def matrix_view(x: Any, shape: Sequence[int]) -> Any:
    """An array as `pixels_of` sees it, or None."""
    found = pixels_of(arrays.strided(x), shape)
    return None if found is None else arrays.view(x, found)


def result_matrix(y: Any, problem: ConvProblem, name: str) -> Any:
    """A result or an extra operand as a matrix of pixels × channels.

    Raises: ArgumentError K998 where it is none, K942 where it does not broadcast to the result.
    """
    facts, shape = facts_of(y, name), (problem.batch, *problem.output, problem.filters)
    if not broadcasts(tuple(facts.shape), shape):
        raise unfit(f"{name} {tuple(facts.shape)} does not broadcast to the result {shape}")
    found = matrix_view(y, shape)
    if found is None:
        raise kd.ArgumentError(
            f"the pixels of {name} are no rows of one matrix: shape {tuple(facts.shape)}, strides "
            f"{tuple(facts.strides)}",
            code="K998",
            fix="pass an array whose images, rows and columns follow each other, NHWC",
        )
    return found


def unfit(what: str) -> kd.ArgumentError:
    """Operands of a convolution do not fit together."""
    return kd.ArgumentError(
        f"operands of a convolution do not fit: {what}",
        code="K942",
        fix="images are (batch, height, width, channels), filters (filters, rows, columns, "
        "channels / groups)",
    )


def problem_of(
    x: Any,
    w: Any,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> ConvProblem:
    """The sizes of images and filters, once they fit together.

    Raises: ArgumentError K942 naming what does not fit, K943 for types.
    """
    a, b = facts_of(x, "x"), facts_of(w, "w")
    if len(a.shape) != 4 or len(b.shape) != 4 or min(*a.shape, *b.shape) < 1:
        raise unfit(f"x and w have four modes, none empty, got {tuple(a.shape)}, {tuple(b.shape)}")
    if a.dtype is not b.dtype or a.dtype not in (kd.f16, kd.bf16, kd.f32):
        raise kd.ArgumentError(
            f"x and w are both f16, bf16 or f32, got {a.dtype} and {b.dtype}",
            code="K943",
            fix="convert them first",
        )
    (batch, height, width, channels), (filters, rows, columns, depth) = a.shape, b.shape
    if groups < 1 or channels != depth * groups or filters % groups:
        raise unfit(
            f"with groups={groups}, w {tuple(b.shape)} has {depth} channels and {filters} filters "
            f"for the {channels} channels of x {tuple(a.shape)}"
        )
    steps, pads, spread = (pair(n) for n in (stride, padding, dilation))
    for name, numbers, least in (
        ("stride", steps, 1), ("padding", pads, 0), ("dilation", spread, 1),
    ):  # fmt: skip
        if min(numbers) < least:
            raise unfit(f"{name} is at least {least} along both sides, got {numbers}")
    problem = ConvProblem(
        batch, height, width, channels, filters, (rows, columns), steps, pads, spread, groups
    )
    if min(problem.output) < 1:
        raise unfit(
            f"the kernel of {rows} x {columns}, dilation {spread}, is larger than the image of "
            f"{height} x {width} with padding {pads}"
        )
    return problem


def pair(n: int | tuple[int, int]) -> tuple[int, int]:
    """A number along height and width."""
    return (n, n) if isinstance(n, int) else (n[0], n[1])
