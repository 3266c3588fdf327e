"""Copy matrices to a pitch that TMA can address, in one launch for both operands of a product."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays

THREADS = 128
VECTOR_BYTES = 16  # what one thread writes, and what TMA wants pitches to be multiples of
LINE_BYTES = 128  # what the copies' pitches are multiples of: rows of boxes are then whole lines


@kd.kernel
def repitch(*matrices: kd.Tensor):
    """Copy each source to its target: `matrices` are source, target, source, target, …

    Block (row, x) copies 128 vectors of 16 bytes of a row, the rows of all sources in turn. Source
    and target are contiguous along mode 1. What lies behind a row's end in its last vector becomes
    zero.
    """
    kd.wait_for_dependencies()
    row, across, _ = kd.block_idx()
    thread = across * THREADS + kd.thread_idx()[0]
    for source, target in zip(matrices[::2], matrices[1::2], strict=True):
        copy_row(source, target, row, thread)
        row = row - source.shape[0]


@kd.func
def copy_row(source, target, row, thread):
    """One thread's vector of a row, if the matrix has that row."""
    width = VECTOR_BYTES // source.dtype.bytes
    column, columns = thread * width, source.shape[1]
    if (row >= 0) & (row < source.shape[0]) & (column < columns):
        values = [source.load((row, column + i), pred=column + i < columns) for i in range(width)]
        target.store_vector((row, column), values)


def padded_pitch(columns: int, element_bytes: int) -> int:
    """The least pitch, in elements, of rows of `columns` elements that are whole lines."""
    line = LINE_BYTES // element_bytes
    return -(-columns // line) * line


def repitch_grid(shapes: Sequence[tuple[int, ...]], element_bytes: int) -> tuple[int, int]:
    """The grid that copies matrices of these shapes."""
    vectors = max(-(-columns * element_bytes // VECTOR_BYTES) for _, columns in shapes)
    return sum(rows for rows, _ in shapes), -(-vectors // THREADS)


@lru_cache(maxsize=4096)
def addressable_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], element_bytes: int, align: int = VECTOR_BYTES
) -> tuple[int, ...]:
    """The strides of a matrix at `align` bytes if TMA can take it, else those of its copy."""
    along = strides.index(1)
    pitches = [step for mode, step in enumerate(strides) if mode != along]
    if align % VECTOR_BYTES == 0 and all(
        step and step * element_bytes % VECTOR_BYTES == 0 for step in pitches
    ):
        return strides
    pitch = padded_pitch(shape[along], element_bytes)
    return (pitch, 1) if along == 1 else (1, pitch)


def copied_specs(operands: Sequence[Any]) -> list[Any]:
    """The arguments of `repitch` for operands (dtype, shape, strides, align)."""
    specs = []
    for read in operands:
        strides = addressable_strides(read.shape, read.strides, read.dtype.bytes, read.align)
        if strides == read.strides and read.align % VECTOR_BYTES == 0:
            continue
        along = read.strides.index(1)
        shape, pitches = (x if along == 1 else x[::-1] for x in (read.shape, read.strides))
        target = (shape[0], max(strides))
        source = kd.spec(read.dtype, shape, strides=pitches, align=read.align)
        specs += [source, kd.spec(read.dtype, target)]
    return specs


def addressable(matrices: Sequence[Any]) -> list[Any]:
    """The matrices, those whose address or pitch TMA cannot take replaced by copies.

    Memory: copies are made by one launch on the current stream of the arrays.
    Raises: ArgumentError K941 for a batch of matrices that TMA cannot take.
    """
    found, copied = list(matrices), []
    for index, x in enumerate(matrices):
        facts = facts_of(x, "operand")
        size, along = facts.dtype.bytes, facts.strides.index(1)
        strides = addressable_strides(facts.shape, facts.strides, size)
        if facts.pointer % VECTOR_BYTES == 0 and strides == facts.strides:
            continue
        if len(facts.shape) != 2:
            raise kd.ArgumentError(
                f"operand {index} is a batch of matrices that TMA cannot take: it starts "
                f"{facts.pointer % VECTOR_BYTES} bytes behind a multiple of {VECTOR_BYTES}, with "
                f"strides of {facts.strides} elements of {size} bytes",
                code="K941",
                fix=f"let start and strides but that of 1 be multiples of {VECTOR_BYTES} bytes",
            )
        count, columns = facts.shape[1 - along], facts.shape[along]
        buffer = arrays.empty((count, padded_pitch(columns, size)), facts.dtype, x)
        target = arrays.first_columns(buffer, columns)
        copied += [x if along == 1 else arrays.transposed(x), buffer]
        found[index] = target if along == 1 else arrays.transposed(target)
    if copied:
        shapes = [facts_of(x, "operand").shape for x in copied[::2]]
        grid = repitch_grid(shapes, facts_of(copied[0], "operand").dtype.bytes)
        repitch.configure(grid=grid, block=THREADS, overlap=True)(*copied)
    return found
