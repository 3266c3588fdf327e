"""Operands that a C++ program makes in a few lines as well, so that both multiply the same bits.

One stream of pseudo-random numbers fills the memory of A, then that of B, in the order of
addresses. Every value is exact in its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407


def stream(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The first `count` states of x ← x · MULTIPLIER + INCREMENT modulo 2⁶⁴, after `seed`."""
    powers = np.multiply.accumulate(np.full(count, MULTIPLIER, np.uint64))
    before = np.concatenate([np.ones(1, np.uint64), powers[:-1]])
    return powers * np.uint64(seed) + np.add.accumulate(before) * np.uint64(INCREMENT)


def values(seed: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers of [−2, 2) with 10 bits for f16, of [−0.5, 0.5) with 24 bits for f32."""
    states = stream(seed, count)
    if np.dtype(dtype) == np.float16:
        return (((states >> 33) % 2048).astype(np.float64) / 512 - 2).astype(np.float16)
    return ((states >> 40).astype(np.float64) / 2**24 - 0.5).astype(np.float32)


def operands(m: int, n: int, k: int, majors: str, dtype: Any, seed: int = 1234) -> tuple[Any, ...]:
    """A (M × K), B (N × K) and an empty C (M × N), which is contiguous along M as in BLAS.

    `majors` "TN": both contiguous along K; "NT": A along M, B along N.
    """
    flat = values(seed, (m + n) * k, dtype)
    parts = flat[: m * k], flat[m * k :]
    if majors == "TN":
        a, b = (part.reshape(-1, k) for part in parts)
    else:
        a, b = (part.reshape(k, -1).T for part in parts)
    return a, b, np.full((n, m), np.nan, dtype).T
