"""Sums of products as a tensor core aligns, truncates and rounds them; `tensor_core` has the rules.

Two ways give the same bits: float32 and int32 for operands whose exponents are near 0, float64 for
all. Both are exact but for the truncations of the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from kdsl_core.isa.tensor_core_operands import NARROW, OF_ZERO, Array, Operand, exponent_field

Family: TypeAlias = Literal["mma.sync", "wgmma"]

_LOWEST = np.int16(-2 * NARROW)  # of products of narrow operands
_HIGHEST = 120  # E up to which no result of the narrow way overflows
_LOWEST_WIDE = -300  # below each E but that of zeros alone, for which any finite scale will do
_TOO_LARGE = 2.0**128  # what f32 has no finite number for, in any rounding
_BLOCK_PRODUCTS = 1 << 17  # products formed at a time, so that they stay in the second-level cache


def sums_of_products(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """A·Bᵀ + C by one instruction, a cache-sized block of the batch at a time.

    What is not finite counts as 0.

    Shapes: a [..., M, K], b [..., N, K], c and the result [..., M, N]; batch axes broadcast.
    """
    batch = np.broadcast_shapes(a.rows.shape[:-2], b.rows.shape[:-2], c.shape[:-2])
    (m, k), n = a.rows.shape[-2:], b.rows.shape[-2]
    av, ae, bv, be, cc = (_flat(x, batch) for x in (a.value, a.exponent, b.value, b.exponent, c))
    d = np.empty_like(cc)
    block = max(_BLOCK_PRODUCTS // max(k * m * n, 1), 1)
    step = _step_fp8_as_f16 if _is_fp8(a) and family == "mma.sync" else _step
    kind = _Kind(a.narrow and b.narrow, _is_fp8(a) and family == "wgmma", c.dtype)
    with np.errstate(over="ignore"):  # infinite results
        for i in range(0, len(cc), block):
            s = slice(i, i + block)
            d[s] = _arranged(step, (av[s], ae[s]), (bv[s], be[s]), cc[s], kind)
    return d.reshape(*batch, m, n)


def _flat(x: Array, batch: tuple[int, ...]) -> Array:
    """Matrices along one axis, the whole batch of them."""
    if x.shape[:-2] != batch:
        x = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return x.reshape(-1, *x.shape[-2:])


def _arranged(
    step: Callable[..., Array], a: tuple[Array, ...], b: tuple[Array, ...], c: Array, kind: _Kind
) -> Array:
    """Run a step on operands [batch, R, K] with the longer of N and the batch as the inner loop."""
    wide = b[0].shape[1] >= len(c)
    axes = (2, 0, 1) if wide else (2, 1, 0)
    a, b = (tuple(np.ascontiguousarray(x.transpose(axes)) for x in matrix) for matrix in (a, b))
    if wide:  # products are [K, batch, M, N]
        return step(*(x[..., None] for x in a), *(x[:, :, None] for x in b), c, kind)
    a, b = tuple(x[:, :, None] for x in a), tuple(x[:, None] for x in b)  # [K, M, N, batch]
    return step(*a, *b, np.ascontiguousarray(c.transpose(1, 2, 0)), kind).transpose(2, 0, 1)


def _is_fp8(x: Operand) -> bool:
    return x.dtype.itemsize == 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one step works: operands narrow or not, with 13 or 25 bits of F, into which type."""

    narrow: bool
    short: bool
    accumulator: np.dtype[Any]

    @property
    def bits(self) -> int:
        """F."""
        return 13 if self.short else 25

    @property
    def mask(self) -> np.int64:
        """The bits of a float64 that a float32 result keeps."""
        return np.int64(-1 << (39 if self.short else 29))


def _step(av: Array, ae: Array, bv: Array, be: Array, c: Array, kind: _Kind) -> Array:
    """Align, truncate, add and round.

    Shapes: operands [K, …] broadcast to products [K, *outputs]; c and the result [*outputs].
    """
    top = (ae + be).max(axis=0)
    c32 = c.astype(np.float32, copy=False)
    if kind.narrow:
        aligned = np.maximum(top, exponent_field(c32))
        if _fits(aligned, c32):
            return _narrow_sum(av, bv, c32, aligned, kind)
    return _wide_sum(av, bv, c32, top, kind)


def _fits(top: Array, c: Array) -> bool:
    """Whether `_narrow_sum` may be used with these E; where it is too low, C must be zero."""
    low = top < _LOWEST
    return int(top.max()) <= _HIGHEST and not (low.any() and c[low].any())


def _narrow_sum(av: Array, bv: Array, c: Array, top: Array, kind: _Kind) -> Array:
    """What `_wide_sum` gives, in narrower types, for operands whose exponents are within ±50.

    All steps are exact but for the two truncations of the model:

    * A product has at most 22 significant bits and is 0 or has an exponent in −100 … 101, so
      float32 holds it. Either one is not 0, then E ≥ −100, or all terms are, and any E will do.
    * F − E lies in 13 − 120 … 25 + 100, so float32 holds the scale 2^(F−E) and its inverse.
    * A scaled term is below 2^(F+2), so int32 holds it; where it underflows it is below 1, and the
      cast (for C, `trunc`) gives 0 as it does without underflow.
    * 16 products below 2^27 − 2^16 do not overflow the int32 sum, and float64 holds it with C.
    * That integer is cut to the result's significant bits in float64. What is left is 0 or at least
      1, hence times 2^(E−F) at least 2^-125 and below 2^(32+120−25): no subnormal, no overflow.
    """
    top = np.maximum(top, _LOWEST)
    scale = _float32_power(kind.bits - top)
    product = av * bv
    product *= scale
    total = product.astype(np.int32).sum(axis=0, dtype=np.int32).astype(np.float64)
    total += np.trunc(c * scale)
    inverse = _float32_power(top - kind.bits)
    if kind.accumulator == np.float16:
        return np.asarray((total * inverse).astype(np.float16))
    total.view(np.int64)[...] &= kind.mask
    return np.asarray(total.astype(np.float32) * inverse)


def _float32_power(exponent: Array) -> Array:
    return (exponent.astype(np.int32) + 127 << 23).view(np.float32)


def _wide_sum(av: Array, bv: Array, c: Array, top: Array, kind: _Kind) -> Array:
    """The rounded sum of products and C, where `top` are the largest exponents of products.

    E reaches from −252 to 254 (256 beside what is not finite), so that float64 holds the scale
    2^(F−E), its inverse and the sum, which is below 2^261.
    """
    exponent = np.maximum(exponent_field(c), np.int16(-126))
    top = np.maximum(top, np.where(c == 0, np.int16(OF_ZERO), exponent))
    top = np.maximum(top, _LOWEST_WIDE).astype(np.int64)
    scale = _power_of_two(kind.bits - top)
    product = av.astype(np.float64) * bv
    product *= scale
    # The cast truncates; 16 products below 2^27 − 2^17 cannot overflow the int32 sum.
    total = product.astype(np.int32).sum(axis=0, dtype=np.int32) + np.trunc(c * scale)
    return _round(total * _power_of_two(top - kind.bits), kind)


def _step_fp8_as_f16(av: Array, ae: Array, bv: Array, be: Array, c: Array, kind: _Kind) -> Array:
    """sm_90 has no fp8 `mma.sync`: two f16 steps from zero, then C is added to nearest even."""
    first = np.arange(len(av)) % 4 < 2
    to_float32 = _Kind(kind.narrow, short=False, accumulator=np.dtype(np.float32))
    d = np.zeros(c.shape, np.float32)
    for part in (first, ~first):
        d = _step(av[part], ae[part], bv[part], be[part], d, to_float32)
    return (c + d).astype(c.dtype)


def _power_of_two(exponent: Array) -> Array:
    return ((exponent + 1023) << 52).view(np.float64)


def _round(total: Array, kind: _Kind) -> Array:
    """A float64 sum as the accumulator: f16 to nearest even, f32 toward zero or infinite."""
    if kind.accumulator == np.float16:
        return np.asarray(total.astype(np.float16))
    if kind.short:
        total = (total.view(np.int64) & kind.mask).view(np.float64)
    d, size = total.astype(np.float32), np.abs(total)
    # Where nearest became away from zero, one step back; from infinity only if the sum fits.
    d.view(np.int32)[...] -= (np.abs(d) > size) & (size < _TOO_LARGE)
    return d
