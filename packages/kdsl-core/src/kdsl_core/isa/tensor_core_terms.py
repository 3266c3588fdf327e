"""Operands of products as a tensor core's sums take them, a block of outputs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from kdsl_core.isa.tensor_core_operands import Array, Operand
from kdsl_core.records import dataclass

BLOCK_PRODUCTS = 1 << 17  # products formed at a time, so that they stay in cache
ZERO_8 = -64  # stands for the exponent of 0 in 8 bits: below every sum of two others
_SPAN = 31  # of an operand's exponents, up to which sums of two of them fit 8 bits, zeros apart


def blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Parts of an array that have about `limit` elements, long along the last axes."""
    steps: list[int] = []
    for size in reversed(shape):
        steps.insert(0, max(min(size, limit), 1))
        limit = max(limit // steps[0], 1)
    ranges = (range(0, size, step) for size, step in zip(shape, steps, strict=True))
    for starts in product(*ranges):
        yield tuple(slice(i, i + step) for i, step in zip(starts, steps, strict=True))


@dataclass(frozen=True, slots=True)
class Terms:
    """One operand of the products of a chain of instructions.

    Values, exponents (int16), and these in 8 bits where they fit, which count from the operand's
    highest exponent on.

    Shapes: [S, K, …], which broadcast to [S, K, *outputs]; of one instruction without S.
    """

    value: Array
    exponent: Array
    small: Array | None

    def block(self, s: tuple[slice, ...]) -> Terms:
        """What some outputs need."""
        sizes = self.value.shape[2:]
        sides = (x if n > 1 else slice(None) for x, n in zip(s, sizes, strict=True))
        return self[(slice(None), slice(None), *sides)]

    def __getitem__(self, at: Any) -> Terms:
        """A part of each array."""
        small = None if self.small is None else self.small[at]
        return Terms(self.value[at], self.exponent[at], small)


def terms_of(x: Operand, batch: tuple[int, ...], wide: bool, missing: int) -> Terms:
    """An operand [S, ..., R, K] for products whose axis `missing`, were N innermost, it lacks.

    Axes count without S.
    """
    if not wide:
        missing -= 1
    axes = (0, 3, 1, 2) if wide else (0, 3, 2, 1)
    lacking = (*(slice(None),) * (missing + 1), None)

    def arranged(part: Array) -> Array:
        steps = part if part.shape[1:-2] == batch else _broadcast(part, batch)
        flat = steps.reshape(len(part), -1, *part.shape[-2:])
        return np.ascontiguousarray(flat.transpose(axes))[lacking]

    small = None
    if wide and x.highest - x.lowest <= _SPAN:
        small = arranged(np.maximum(x.exponent - np.int16(x.highest), np.int16(ZERO_8)))
        small = small.astype(np.int8)
    return Terms(arranged(x.value), arranged(x.exponent), small)


def _broadcast(part: Array, batch: tuple[int, ...]) -> Array:
    """[S, ..., R, K] with the whole batch."""
    steps, *own, rows, k = part.shape
    part = part.reshape(steps, *(1,) * (len(batch) - len(own)), *own, rows, k)
    return np.broadcast_to(part, (steps, *batch, rows, k))


def alike_in(a: Array, batch: int) -> Array | None:
    """Numbers [tiles, each] of batch elements, in rows of those whose A [S, batch, M, K] is equal.

    None where no two are, or not the same number of them each time.
    """
    if a.ndim != 4 or not a.shape[1] == batch > 1:
        return None
    found: dict[bytes, list[int]] = {}
    for number in range(batch):
        found.setdefault(a[:, number].tobytes(), []).append(number)
    sizes = {len(numbers) for numbers in found.values()}
    return np.array(list(found.values())) if len(sizes) == 1 and len(found) < batch else None
