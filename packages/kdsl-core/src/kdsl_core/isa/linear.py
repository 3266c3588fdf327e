"""Integer instructions on sums of a column and a row, as most addresses are.

What the lanes of a warp share is the column, what all warps share the row. The rules below compute
with W + 32 numbers what has W·32; integers wrap, so that sums, differences and multiples of parts
give those of the whole. A rule gives None where that needs all numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir.protocols import Array, Sum

if TYPE_CHECKING:
    from kdsl_core.isa.instruction import Instruction

Rule: TypeAlias = Callable[..., "Sum | Array | None"]


@cache
def rule(instruction: Instruction) -> Rule | None:
    """How an instruction computes with sums, if it does."""
    name, integers = instruction.name, instruction.operands
    if any(dtype.numpy.kind not in "iu" for dtype in integers):
        return None
    if name == f"bits_{instruction.result.name}":
        return _bits(instruction.result)
    if name == "mul_wide":
        return _wide_product(instruction.result)
    return _RULES.get(name)


def _add(x: Sum, y: Sum) -> Sum:
    return Sum(x.column + y.column, x.row + y.row)


def _subtract(x: Sum, y: Sum) -> Sum:
    return Sum(x.column - y.column, x.row - y.row)


def _multiply(x: Sum, y: Sum) -> Sum | None:
    if not y.uniform:
        x, y = y, x
    return Sum(x.column * y.column, x.row * y.column) if y.uniform else None


def _wide_product(wide: DType) -> Rule:
    def product(x: Sum, y: Sum) -> Sum | None:
        if not y.uniform:
            x, y = y, x
        if not y.uniform or _range(x) is None:
            return None
        factor = y.column.astype(wide.numpy)
        return Sum(x.column.astype(wide.numpy) * factor, x.row.astype(wide.numpy) * factor)

    return product


def _bits(target: DType) -> Rule:
    def same(x: Sum) -> Sum | None:
        if x.column.itemsize != target.bytes:
            return None
        return Sum(x.column.view(target.numpy), x.row.view(target.numpy))

    return same


def _shift_left(x: Sum, count: Sum) -> Sum | None:
    by = _count(x, count)
    return None if by is None else Sum(x.column << by, x.row << by)


def _shift_right(x: Sum, count: Sum) -> Sum | None:
    by = _count(x, count)
    return None if by is None or not _disjoint(x) else Sum(x.column >> by, x.row >> by)


def _and(x: Sum, y: Sum) -> Sum | None:
    if not y.uniform:
        x, y = y, x
    if not y.uniform or not _disjoint(x):
        return None
    return Sum(x.column & y.column, x.row & y.column)


def _less(x: Sum, y: Sum) -> Array | None:
    """All lanes or none; where it depends, None."""
    first, second = _range(x), _range(y)
    if first is None or second is None:
        return None
    if first[1] < second[0]:
        return np.array([[True]])
    return np.array([[False]]) if first[0] >= second[1] else None


def _not_less(x: Sum, y: Sum) -> Array | None:
    less = _less(x, y)
    return None if less is None else ~less


_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "shl": _shift_left,
    "shr": _shift_right,
    "and": _and,
    "lt": _less,
    "gt": lambda x, y: _less(y, x),
    "ge": _not_less,
    "le": lambda x, y: _not_less(y, x),
}


def _range(x: Sum) -> tuple[int, int] | None:
    """The least and the largest number; None where a sum wraps."""
    low = int(x.column.min()) + int(x.row.min())
    high = int(x.column.max()) + int(x.row.max())
    ends = np.iinfo(x.column.dtype)
    return (low, high) if ends.min <= low and high <= ends.max else None


def _count(x: Sum, count: Sum) -> Array | None:
    """A shift count that all lanes share and that is below the width."""
    if not count.uniform or not 0 <= int(count.column.item()) < 8 * x.column.itemsize:
        return None
    return count.column.astype(x.column.dtype)


def _disjoint(x: Sum) -> bool:
    """Whether column and row have no bit in common, so that their sum carries nowhere."""
    if int(x.column.min()) < 0 or int(x.row.min()) < 0:
        return False
    both = (int(np.bitwise_or.reduce(part, axis=None)) for part in x)
    return next(both) & next(both) == 0
