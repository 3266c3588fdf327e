"""Copy matrices to a pitch that TMA can address, in one launch for both operands of a product."""

from __future__ import annotations

import kdsl_core as kd

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


def repitch_grid(shapes: list[tuple[int, int]], element_bytes: int) -> tuple[int, int]:
    """The grid that copies matrices of these shapes."""
    vectors = max(-(-columns * element_bytes // VECTOR_BYTES) for _, columns in shapes)
    return sum(rows for rows, _ in shapes), -(-vectors // THREADS)
