"""The narrow way of a tensor core's sums as a loop that numba compiles (`kdsl-core[fast]`).

Each step is one of `tensor_core_sums`, and exact for the reasons that stand there. What belongs to
some columns of one row of outputs stays in the first cache.

LLVM turns the loops over columns into vector instructions where it knows that arrays do not
overlap. It knows that of arrays that one function makes, so all parts become one function
(`inline="always"`).
"""

from __future__ import annotations

import numba
import numpy as np

from kdsl_core.isa.tensor_core_operands import Array
from kdsl_core.isa.tensor_core_terms import FIELD

if numba.config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT: as plain Python the loop is slower than NumPy")

_COLUMNS = 256
_part = numba.njit(inline="always")


@_part
def _power(value: np.float32, bits: np.int32, least: np.int32) -> np.int32:
    """The bits of 2^exponent as the hardware sees it, of 0 for zero."""
    return max(bits & FIELD, least) if value != 0 else np.int32(0)


@_part
def _find_powers(a: Array, least: np.int32, power: Array) -> None:
    """Powers [K] of A [K]."""
    bits, found = a.view(np.int32), power.view(np.int32)
    for k in range(a.size):
        found[k] = _power(a[k], bits[k], least)


@_part
def _turn(b: Array, least: np.int32, values: Array, powers: Array) -> None:
    """Values and powers [K, columns] of B [columns, K]."""
    bits = b.view(np.int32)
    for j in range(b.shape[0]):
        for k in range(b.shape[1]):
            values[k, j] = b[j, k]
            powers[k, j] = _power(b[j, k], bits[j, k], least)


@_part
def _find_highest(a: Array, b: Array, c: Array, least: np.int32, top: Array) -> None:
    """2^E of powers of A [K] and B [K, columns], and C [columns]."""
    bits, found = c.view(np.int32), top.view(np.int32)
    for j in range(c.size):
        found[j] = max(bits[j] & FIELD, least)
    for k in range(0, a.size, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        for j in range(c.size):
            x, y = a0 * b[k, j], a1 * b[k + 1, j]
            z, w = a2 * b[k + 2, j], a3 * b[k + 3, j]
            x, z = x if x > y else y, z if z > w else w
            x, y = x if x > z else z, top[j]
            top[j] = x if x > y else y


@_part
def _sum_terms(a: Array, b: Array, c: Array, scale: Array, sums: Array) -> None:
    """Terms times `scale`, truncated, in two sums, neither of which int32 is too small for."""
    for j in range(c.size):
        sums[0, j], sums[1, j] = np.int32(c[j] * scale[j]), 0
    for k in range(0, a.size, 4):
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        for j in range(c.size):
            x = scale[j]
            sums[0, j] += np.int32(np.int32(a0 * b[k, j] * x) + np.int32(a1 * b[k + 1, j] * x))
            sums[1, j] += np.int32(np.int32(a2 * b[k + 2, j] * x) + np.int32(a3 * b[k + 3, j] * x))


@_part
def _round(sums: Array, total: Array, mask: np.int64, unit: Array, c: Array) -> None:
    """C as the total of both sums, cut to the bits in `mask`, times `unit`."""
    bits = total.view(np.int64)
    for j in range(c.size):
        total[j] = np.float64(sums[0, j]) + np.float64(sums[1, j])
    for j in range(c.size):
        bits[j] &= mask
    for j in range(c.size):
        c[j] = np.float32(total[j]) * unit[j]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def add_products(
    a: Array, b: Array, c: Array, least: tuple[np.int32, ...], bits: int, mask: np.int64
) -> None:
    """Let C be C + A₀·B₀ᵀ + A₁·B₁ᵀ + …, where `bits` is F and `mask` the bits that results keep.

    `least` are powers of two, as the bits of float32, that have the exponents of subnormal numbers
    of A and of B, and the lowest E. (What is a global name here, numba keeps from run to run.)

    Shapes: float32 a [S, B, M, K], b [S, B, N, K], c [B, M, N]; K a multiple of 4, at most 16
    where F is 25, so that neither half of a sum leaves int32.
    """
    steps, batch, rows, depth = a.shape
    values, powers = np.empty((2, depth, _COLUMNS), np.float32)
    power = np.empty(depth, np.float32)
    top, scale, unit = np.empty((3, _COLUMNS), np.float32)
    sums = np.empty((2, _COLUMNS), np.int32)
    total = np.empty(_COLUMNS, np.float64)
    up, down = np.float32(2.0**bits), np.float32(2.0**-bits)
    for i in range(batch):
        for first in range(0, c.shape[2], _COLUMNS):
            last = min(first + _COLUMNS, c.shape[2])
            for step in range(steps):
                _turn(b[step, i, first:last], least[1], values, powers.view(np.int32))
                for row in range(rows):
                    left, line = a[step, i, row], c[i, row, first:last]
                    _find_powers(left, least[0], power)
                    _find_highest(power, powers, line, least[2], top)
                    for j in range(line.size):
                        scale[j], unit[j] = up / top[j], top[j] * down
                    _sum_terms(left, values, line, scale, sums)
                    _round(sums, total, mask, unit, line)
