"""Products of a batch whose matrices meet in a grid, as fewer products of larger matrices.

All blocks in one row of a grid have their A in common, those in one column their B.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_core.isa.tensor_core_operands import Array
from kdsl_core.records import dataclass

_BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, eq=False)
class Tiles:
    """Numbers `at` [rows, columns] in the batch, where each row has one A; `whole` says that each
    column has one B, so that all is one product.

    Operands are [S, batch, …], C is [batch, M, N].
    """

    at: Array
    whole: bool

    def tall(self, a: Array) -> Array:
        """A of each row, or of all."""
        first = a[:, self.at[:, 0]]
        return first.reshape(len(a), 1, -1, a.shape[-1]) if self.whole else first

    def wide(self, b: Array) -> Array:
        """All B of each row, or of any."""
        at = self.at[:1] if self.whole else self.at
        return b[:, at].reshape(len(b), len(at), -1, b.shape[-1])

    def join(self, c: Array) -> Array:
        """C of each row, or of all."""
        rows, columns = self.at.shape
        _, m, n = c.shape
        joined = c[self.at].swapaxes(1, 2).reshape(rows, m, columns * n)
        return joined.reshape(1, rows * m, columns * n) if self.whole else joined

    def split(self, d: Array, shape: tuple[int, ...]) -> Array:
        """What `join` made of C of a shape."""
        rows, columns = self.at.shape
        _, m, n = shape
        parts = np.empty(shape, d.dtype)
        parts[self.at] = d.reshape(rows, m, columns, n).swapaxes(1, 2)
        return parts


def tiles_of(a: Array, b: Array, c: Array) -> Tiles | None:
    """How a batch [S, batch, …] falls into rows; None where there is nothing to gain.

    That is so where no two have an operand in common, or rows are not equally long.
    """
    batch = len(c)
    if not a.ndim == b.ndim == 4 == c.ndim + 1 or not a.shape[1] == b.shape[1] == batch > 1:
        return None
    left, right = _numbers(a), _numbers(b)
    rows: dict[int, list[int]] = {}
    for number in sorted(range(batch), key=right.__getitem__):
        rows.setdefault(left[number], []).append(number)
    lengths = {len(row) for row in rows.values()}
    if len(lengths) > 1:
        return None
    whole = len({tuple(right[number] for number in row) for row in rows.values()}) == 1
    return Tiles(np.array(list(rows.values())), whole) if whole or len(rows) < batch else None


def _numbers(x: Array) -> list[int]:
    """For each matrix [:, i] the number of the first one that is equal to it, bit for bit."""
    bits = x.view(_BITS[x.itemsize])
    alike: dict[bytes, list[int]] = {}  # the first ones of those whose first rows are equal
    numbers: list[int] = []
    for i, row in enumerate(bits[0, :, 0]):
        known = alike.setdefault(row.tobytes(), [])
        same = next((j for j in known if np.array_equal(bits[:, i], bits[:, j])), i)
        if same == i:
            known.append(i)
        numbers.append(same)
    return numbers
