"""Operands of products as a tensor core's sums take them, a block of outputs at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from kdsl_core.isa.tensor_core_operands import Array, Operand
from kdsl_core.records import dataclass

BLOCK_PRODUCTS = 1 << 18  # products formed at a time, so that they stay in cache
ZERO_8 = -64  # stands for the exponent of 0 in 8 bits: below every sum of two others
_SPAN = 31  # of an operand's exponents, up to which sums of two of them fit 8 bits, zeros apart


def flat(x: Array, batch: tuple[int, ...]) -> Array:
    """Matrices along one axis, the whole batch of them."""
    if x.shape[:-2] != batch:
        x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return x.reshape(-1, *x.shape[-2:])


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
    """One operand of products: values, exponents (int16), and these in 8 bits where they fit.

    Those count from the operand's highest exponent on.

    Shapes: [K, …], which broadcast to [K, *outputs].
    """

    value: Array
    exponent: Array
    small: Array | None

    def block(self, s: tuple[slice, ...]) -> Terms:
        """What some outputs need."""
        sizes = self.value.shape[1:]
        at = (slice(None), *(x if n > 1 else slice(None) for x, n in zip(s, sizes, strict=True)))
        return self._each(lambda x: x[at])

    def some(self, chosen: Array) -> Terms:
        """The chosen steps, bool (K,)."""
        return self._each(lambda x: x[chosen])

    def _each(self, part: Callable[[Array], Array]) -> Terms:
        small = None if self.small is None else part(self.small)
        return Terms(part(self.value), part(self.exponent), small)


def terms_of(x: Operand, batch: tuple[int, ...], wide: bool, missing: int) -> Terms:
    """An operand [..., R, K] for products whose axis `missing`, were N innermost, it lacks."""
    if not wide:
        missing -= 1
    axes = (2, 0, 1) if wide else (2, 1, 0)
    lacking = (*(slice(None),) * missing, None)

    def arranged(part: Array) -> Array:
        return np.ascontiguousarray(flat(part, batch).transpose(axes))[lacking]

    small = None
    if wide and x.highest - x.lowest <= _SPAN:
        small = arranged(np.maximum(x.exponent - np.int16(x.highest), np.int16(ZERO_8)))
        small = small.astype(np.int8)
    return Terms(arranged(x.value), arranged(x.exponent), small)


class Scratch(threading.local):
    """Room for the products of a block, which each thread uses again and again.

    New arrays of this size would be new pages of the process each time.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, Array] = {}

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array, whatever is in it."""
        size = math.prod(shape)
        room = self._rooms.get(name)
        if room is None or room.size < size:
            room = self._rooms[name] = np.empty(max(size, BLOCK_PRODUCTS), dtype)
        return room[:size].reshape(shape)


SCRATCH = Scratch()


def alike_in(a: Array, b: Array, c: Array) -> Array | None:
    """Numbers [tiles, each] of batch elements, in rows of those whose A is the same."""
    if not (a.ndim == b.ndim == c.ndim == 3 and len(a) == len(b) == len(c) > 1):
        return None
    found: dict[bytes, list[int]] = {}
    for number, matrix in enumerate(a):
        found.setdefault(matrix.tobytes(), []).append(number)
    sizes = {len(numbers) for numbers in found.values()}
    return np.array(list(found.values())) if len(sizes) == 1 and len(found) < len(a) else None
