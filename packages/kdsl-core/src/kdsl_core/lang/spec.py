"""Arrays without data: what a kernel is built for when there is nothing to launch it on yet."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import ArgumentError
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class ArraySpec:
    """The facts of an array argument.

    Units: `strides` in elements; `pointer` is a stand-in address with the alignment stated.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: int
    device: tuple[str, int] = ("spec", 0)
    owner: Any = None


def spec(
    dtype: Any,
    shape: Sequence[Any] | Any,
    *,
    strides: Sequence[Any] | None = None,
    align: int = 16,
) -> ArraySpec:
    """An array argument described by type, shape and strides (C order by default).

    Shapes: ints, or symbols such as ``kd.sym("m", divisible_by=64)`` for sizes that are left open:
    the kernel is then built for every size with these facts, with 64-bit offsets.
    Units: `strides` in elements, `align` in bytes.
    Raises: ArgumentError K601 when strides and shape differ in rank, or are other things.
    """
    sizes = tuple(map(_whole, shape if isinstance(shape, (tuple, list)) else (shape,)))
    steps = row_major(sizes) if strides is None else tuple(map(_whole, strides))
    if len(steps) != len(sizes):
        raise ArgumentError(
            f"expected one stride for each of {len(sizes)} sizes {sizes}, got {steps}",
            code="K601",
            fix="leave strides out for a contiguous array",
        )
    return ArraySpec(dtype_of(dtype), sizes, steps, align)


def _whole(size: Any) -> Any:
    """A size or stride: a Python integer, or a symbol."""
    if isinstance(size, int) or hasattr(size, "divisible_by"):
        return size
    try:
        return operator.index(size)
    except TypeError:
        raise ArgumentError(
            f"expected integers and symbols as sizes and strides, got {size!r}",
            code="K601",
            fix='write kd.sym("n", divisible_by=64) for a size that is left open',
        ) from None


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))
