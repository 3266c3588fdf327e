"""Add up the parts of a product whose K was split, and apply the epilogue."""

from __future__ import annotations

import math

import kdsl_core as kd

THREADS = 128
_VECTOR = 4  # f32 sums that a thread takes at a time: one 16-byte access


@kd.kernel
def sum_parts(
    P: kd.Tensor["f32|i32", "m n parts"],
    C: kd.Tensor["*", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    parts: kd.Static,
):
    """C = epilogue(Σ P[:, :, part], extras…), summed in the order of the parts.

    Block (x, line) takes up to 128 vectors of a line, which lies along C's contiguous mode.
    """
    kd.wait_for_dependencies()
    along = kd.collective.contiguous_mode(C)
    width = vector_width(P, C)
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
        kd.as_scalar(epilogue(value, *(operand[i] for operand in operands))).to(C.dtype)
        for i, value in enumerate(total)
    ]
    C.store_vector(place, results, inside)


def vector_width(parts, c):
    """Elements of a vector: as many as both matrices take at a time, up to four."""
    along = kd.collective.contiguous_mode(c)
    widths = (kd.collective.access_elements(x, along) for x in (parts, c))
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


def sum_grid(lines: int, length: int) -> tuple[int, int]:
    """The grid for a matrix of `lines` lines of `length` elements."""
    return -(-length // THREADS), lines  # as many blocks as vectors of one element would need
