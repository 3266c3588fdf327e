"""Add up the parts of a product whose K was split, and apply the epilogue."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels.vectors import neighbours

THREADS = 128
_VECTOR = 4  # f32 sums that a thread takes at a time: one 16-byte access
_BUSY_THREADS = 1 << 16  # that keep a chip's memory busy
_MOST_GROUPS = 8


@kd.kernel
def sum_parts(
    P: kd.Tensor["f32|i32", "m n parts"],
    C: kd.Tensor["*", "m n"],
    *extras: kd.Tensor,
    epilogue: kd.Static,
    parts: kd.Static,
    groups: kd.Static = 1,
    outputs: kd.Static = 1,
):
    """C = epilogue(Σ P[:, :, part], extras…), always summed in the same order.

    With several `outputs` the epilogue gives a tuple, and the extras begin with those after C.
    Block (x, line) takes up to 128 / groups vectors of a line, which lies along C's contiguous
    mode. Each of `groups` groups of threads adds up every so-many-th part.
    """
    kd.wait_for_dependencies()
    along = kd.collective.contiguous_mode(C)
    matrices, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    width = vector_width(P, *matrices)
    across, line, _ = kd.block_idx()
    vectors = THREADS // groups
    vector, group = kd.thread_rank() % vectors, kd.thread_rank() // vectors
    first = (across * vectors + vector) * width
    place = (line, first) if along == 1 else (first, line)
    inside = kd.as_scalar(first < C.shape[along])
    total = sum_of_group(P, place, width, inside, range(0, parts, groups), group)
    if groups > 1:
        total = sum_of_groups(total, vector, group, groups)
        inside = inside & (group == 0)
    operands = [neighbours(extra, place, along, width, inside) for extra in extras]
    results = [
        kd.collective.results_of(epilogue, value, [operand[i] for operand in operands])
        for i, value in enumerate(total)
    ]
    for matrix, found in zip(matrices, zip(*results, strict=True), strict=True):
        matrix.store_vector(place, [value.to(matrix.dtype) for value in found], inside)


def sum_of_group(P, place, width, inside, firsts, group):
    """The sums of the parts `firsts` + group, zero behind the last one."""
    total = None
    for first in firsts:
        exists = inside if firsts.step == 1 else inside & (first + group < P.shape[2])
        more = P.load_vector((*place, first + group), width, exists)
        total = more if total is None else [x + y for x, y in zip(total, more, strict=True)]
    return total


def sum_of_groups(total, vector, group, groups):
    """The sums of all groups, in their order, through shared memory."""
    width = len(total)
    held = kd.smem(total[0].dtype, kd.Layout((width, THREADS // groups, groups)), name="sums")
    held.store_vector((0, vector, group), total)
    kd.sync_threads()
    sums = [held.load_vector((0, vector, other), width) for other in range(groups)]
    return [functools.reduce(operator.add, column) for column in zip(*sums, strict=True)]


def vector_width(parts, *matrices):
    """Elements of a vector: as many as all matrices take at a time, up to four."""
    along = kd.collective.contiguous_mode(matrices[0])
    widths = (kd.collective.access_elements(x, along) for x in (parts, *matrices))
    return math.gcd(_VECTOR, *widths)


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
    shares = SumShares.of(outputs[0].shape, along_of(outputs[0]), parts.shape[2])
    launch = sum_parts.configure(grid=shares.grid, block=THREADS, overlap=True)
    options = {"epilogue": epilogue, "outputs": len(outputs), **shares.statics}
    launch(parts, *outputs, *extras, **options)


class SumShares(NamedTuple):
    """How many blocks `sum_parts` takes for a matrix, and its trace-time arguments for that."""

    grid: tuple[int, int]
    statics: dict[str, int]

    @classmethod
    def of(cls, shape: Sequence[int], along: int, parts: int) -> SumShares:
        """For a matrix whose vectors lie along one mode; small ones share their parts out."""
        width = _VECTOR if shape[along] % _VECTOR == 0 else 1  # blocks behind the end have no work
        vectors, lines = -(-shape[along] // width), shape[1 - along]
        wanted = min(_MOST_GROUPS, parts // 2, _BUSY_THREADS // (vectors * lines))
        groups = 1 << max(wanted, 1).bit_length() - 1
        blocks = -(-vectors // (THREADS // groups))
        return cls((blocks, lines), {"parts": parts, "groups": groups})


def along_of(c: Any) -> int:
    """The mode along which a matrix is contiguous."""
    strides = facts_of(c, "C").strides
    return 1 if strides[1] == 1 else 0
