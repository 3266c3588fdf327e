"""What a reducing store makes of the element in memory and the one that comes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdsl_core.ir.protocols import Array


def _increment(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def _decrement(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


# reduction → (old, new) ↦ combined; floats round to nearest, and a number wins over NaN
REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "inc": _increment,
    "dec": _decrement,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
