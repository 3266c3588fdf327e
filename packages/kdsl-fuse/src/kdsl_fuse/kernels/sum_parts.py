"""Add up the parts of a product whose K was split, and apply the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays

THREADS = 128
_VECTOR = 4  # f32 sums that a thread takes at a time: one 16-byte access


@kd.kernel
def sum_parts(
    P: kd.Tensor["f32|i32", "m n parts"],
    C: kd.Tensor["*", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    parts: kd.Static,
    outputs: kd.Static = 1,
):
    """C = epilogue(Σ P[:, :, part], extras…), summed in the order of the parts.

    With several `outputs` the epilogue gives a tuple, and the extras begin with those after C.
    Block (x, line) takes up to 128 vectors of a line, which lies along C's contiguous mode.
    """
    kd.wait_for_dependencies()
    along = kd.collective.contiguous_mode(C)
    matrices, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    width = vector_width(P, *matrices)
    across, line, _ = kd.block_idx()
    first = (across * THREADS + kd.thread_idx()[0]) * width
    place = (line, first) if along == 1 else (first, line)
    inside = kd.as_scalar(first < C.shape[along])
    total = P.load_vector((*place, 0), width, inside)
    for part in range(1, parts):
        more = P.load_vector((*place, part), width, inside)
        total = [x + y for x, y in zip(total, more, strict=True)]
    operands = [neighbours(extra, place, along, width, inside) for extra in extras]
    results = [
        kd.collective.results_of(epilogue, value, [operand[i] for operand in operands])
        for i, value in enumerate(total)
    ]
    for matrix, found in zip(matrices, zip(*results, strict=True), strict=True):
        matrix.store_vector(place, [value.to(matrix.dtype) for value in found], inside)


def vector_width(parts, *matrices):
    """Elements of a vector: as many as all matrices take at a time, up to four."""
    along = kd.collective.contiguous_mode(matrices[0])
    widths = (kd.collective.access_elements(x, along) for x in (parts, *matrices))
    return math.gcd(_VECTOR, *widths)


def neighbours(extra, place, along, width, inside):
    """The elements of an extra operand that belong to a vector of C."""
    step = extra.stride[along]
    if isinstance(step, int) and step == 0:
        return [extra.load(place, inside)] * width
    if isinstance(step, int) and step == 1:
        return extra.load_vector(place, width, inside)
    moved = [tuple(x + i * (mode == along) for mode, x in enumerate(place)) for i in range(width)]
    return [extra.load(at, inside) for at in moved]


def empty_parts(c: Any, splits: int, dtype: DType) -> Any:
    """Memory for the parts of C's sums, (m, n, splits), each laid out like C, for one launch."""
    m, n = c.shape
    if along_of(c) == 1:
        return arrays.permuted(arrays.empty((splits, m, n), dtype, c), (1, 2, 0))
    return arrays.permuted(arrays.empty((splits, n, m), dtype, c), (2, 1, 0))


def add_up(
    parts: Any, outputs: Sequence[Any], extras: Sequence[Any], epilogue: Callable[..., Any]
) -> None:
    """Launch: outputs = epilogue(Σ parts, extras…), on the arrays' current stream."""
    options = {"epilogue": epilogue, "parts": parts.shape[2], "outputs": len(outputs)}
    launch_of(outputs[0])(parts, *outputs, *extras, **options)


def launch_of(c: Any) -> Any:
    """The kernel with the grid for a matrix C, waiting for arguments."""
    return sum_parts.configure(grid=sum_grid(c.shape, along_of(c)), block=THREADS, overlap=True)


def sum_grid(shape: Sequence[int], along: int) -> tuple[int, int]:
    """The grid for a matrix; its vectors lie along one mode."""
    width = _VECTOR if shape[along] % _VECTOR == 0 else 1  # blocks behind the end have no work
    return -(-shape[along] // (THREADS * width)), shape[1 - along]


def along_of(c: Any) -> int:
    """The mode along which a matrix is contiguous."""
    strides = facts_of(c, "C").strides
    return 1 if strides[1] == 1 else 0
