"""Sums of products as a tensor core aligns, truncates and rounds them; `tensor_core` has the rules.

Two ways give the same bits: float32 and int32 for operands whose exponents are near 0, float64 for
all. Both are exact but for the truncations of the rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from kdsl_core.isa.scratch import SCRATCH
from kdsl_core.isa.tensor_core_operands import NARROW, OF_ZERO, Array, Operand, exponent_field
from kdsl_core.isa.tensor_core_terms import (
    BLOCK_PRODUCTS,
    ZERO_8,
    Terms,
    alike_in,
    blocks,
    terms_of,
)
from kdsl_core.records import dataclass

Family: TypeAlias = Literal["mma.sync", "wgmma"]

_NARROWEST = -2 * NARROW  # of products of narrow operands
_HIGHEST = 120  # E up to which no result of the narrow way overflows
_LOWEST_WIDE = -300  # below each E but that of zeros alone, for which any finite scale will do
_TOO_LARGE = 2.0**128  # what f32 has no finite number for, in any rounding
_FIELD = np.int32(0x7F800000)  # of a float32: its exponent
_EXPONENT_AT = np.int32(23)


def sums_of_products(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """C + A₀·B₀ᵀ + A₁·B₁ᵀ + … by S instructions, a cache-sized block of outputs at a time.

    What is not finite counts as 0, but what becomes so on the way is not followed: the caller looks
    at the result. The longer of N and the batch is the inner loop.

    Shapes: a [S, ..., M, K], b [S, ..., N, K], c and the result [..., M, N]; batch axes broadcast.
    """
    batch = np.broadcast_shapes(a.rows.shape[1:-2], b.rows.shape[1:-2], c.shape[:-2])
    m, n = a.rows.shape[-2], b.rows.shape[-2]
    old = c if c.shape[:-2] == batch else np.broadcast_to(c, (*batch, m, n))
    old = old.reshape(-1, m, n)
    alike = alike_in(a.rows, len(old)) if b.rows.ndim == 4 and b.rows.shape[1] == len(old) else None
    if alike is not None:
        return _side_by_side(a, b, old, alike, family).reshape(c.shape)
    wide = n >= len(old)  # products are [K, batch, M, N], else [K, M, N, batch]
    ours, theirs = (terms_of(x, batch, wide, at) for x, at in ((a, 3), (b, 2)))
    if not wide:
        old = np.ascontiguousarray(old.transpose(1, 2, 0))
    new = _Chain(a, b, c, family).run(ours, theirs, old)
    if not wide:
        new = np.ascontiguousarray(new.transpose(2, 0, 1))
    return new.reshape(*batch, m, n)


def _side_by_side(a: Operand, b: Operand, c: Array, alike: Array, family: Family) -> Array:
    """`sums_of_products` [batch, M, N], all matrices B that meet one A as a wide one.

    So the inner loops are longer. The blocks in one row of a grid have their A in common.
    """
    (tiles, each), (m, n), (steps, *_, k) = alike.shape, c.shape[1:], a.rows.shape
    ours = terms_of(a.take(alike[:, 0], (steps, tiles, m, k)), (tiles,), True, 3)
    theirs = terms_of(b.take(alike, (steps, tiles, each * n, k)), (tiles,), True, 2)
    old = c[alike].swapaxes(1, 2)
    d = _Chain(a, b, c, family).run(ours, theirs, old.reshape(tiles, m, -1))
    new = np.empty_like(c)
    new[alike] = d.reshape(old.shape).swapaxes(1, 2)
    return new


class _Chain:
    """Instructions of one kind, one after the other."""

    def __init__(self, a: Operand, b: Operand, c: Array, family: Family) -> None:
        fp8 = a.dtype.itemsize == 1
        top = a.highest + b.highest
        self._kind = _Kind(a.narrow and b.narrow, fp8 and family == "wgmma", c.dtype, top)
        self._step = _step_fp8_as_f16 if fp8 and family == "mma.sync" else _step
        self._outputs = max(BLOCK_PRODUCTS // max(a.rows.shape[-1], 1), 1)  # at a time

    def run(self, a: Terms, b: Terms, c: Array) -> Array:
        """What becomes of C [*outputs], a cache-sized block at a time."""
        with np.errstate(over="ignore"):  # infinite results
            if c.size <= self._outputs:
                return self._block(a, b, c)
            d = np.empty_like(c)
            for s in blocks(c.shape, self._outputs):
                d[s] = self._block(a.block(s), b.block(s), c[s])
            return d

    def _block(self, a: Terms, b: Terms, c: Array) -> Array:
        for i in range(len(a.value)):
            c = self._step(a[i], b[i], c, self._kind)
        return c


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one step works: operands narrow or not, with 13 or 25 bits of F, into which type.

    `highest` is the largest exponent that a product may have.
    """

    narrow: bool
    short: bool
    accumulator: np.dtype[Any]
    highest: int

    @property
    def bits(self) -> int:
        """F."""
        return 13 if self.short else 25

    @property
    def mask(self) -> np.int64:
        """The bits of a float64 that a float32 result keeps."""
        return np.int64(-1 << (39 if self.short else 29))


def _step(a: Terms, b: Terms, c: Array, kind: _Kind) -> Array:
    """Align, truncate, add and round; c and the result are [*outputs]."""
    c32 = c.astype(np.float32, copy=False)
    if kind.narrow:
        top = _highest_powers(a, b, c32, kind)
        if _fits(top, c32):
            return _narrow_sum(a, b, c32, top, kind)
    return _wide_sum(a, b, c32, kind)


def _highest_powers(a: Terms, b: Terms, c: Array, kind: _Kind) -> Array:
    """2^E as the bits of a float32, 0 where all terms are 0."""
    shape = c.shape
    top = SCRATCH.room("top", shape, np.int32)
    if a.small is None or b.small is None:
        highest = (a.exponent + b.exponent).max(axis=0)
        least = _NARROWEST
        np.add(highest, np.int32(127), out=top)
    else:
        sums = SCRATCH.room("exponents", (len(a.small), *shape), np.int8)
        highest = SCRATCH.room("highest", shape, np.int8)
        np.maximum.reduce(np.add(a.small, b.small, out=sums), axis=0, out=highest)
        least = ZERO_8 + 1
        np.add(highest, np.int32(kind.highest + 127), out=top)
    top <<= _EXPONENT_AT
    if highest.min() < least:
        top[highest < least] = 0
    field = SCRATCH.room("field", shape, np.int32)
    return np.maximum(top, np.bitwise_and(c.view(np.int32), _FIELD, out=field), out=top)


def _fits(top: Array, c: Array) -> bool:
    """Whether `_narrow_sum` may be used with 2^E; where it is too low, C must be zero.

    Then it is set to the least that may be.
    """
    if int(top.max()) > _power(_HIGHEST):
        return False
    if int(top.min()) >= _power(_NARROWEST):
        return True
    if c[top < _power(_NARROWEST)].any():
        return False
    np.maximum(top, np.int32(_power(_NARROWEST)), out=top)
    return True


def _power(exponent: int) -> int:
    """The bits of a power of two in float32."""
    return exponent + 127 << 23


def _narrow_sum(a: Terms, b: Terms, c: Array, top: Array, kind: _Kind) -> Array:
    """What `_wide_sum` gives, in narrower types, for operands whose exponents are within ±50.

    `top` is 2^E in bits. All steps are exact but for the two truncations of the model:

    * A product has at most 22 significant bits and is 0 or has an exponent in −100 … 101, so
      float32 holds it. Either one is not 0, then E ≥ −100, or all terms are, and any E will do.
    * F − E lies in 13 − 120 … 25 + 100, so float32 holds the scale 2^(F−E) and its inverse.
    * A scaled term is below 2^(F+2), so int32 holds it; where it underflows it is below 1, and the
      cast (for C, `trunc`) gives 0 as it does without underflow.
    * 16 products below 2^27 − 2^16 do not overflow the int32 sum, and float64 holds it with C.
    * That integer is cut to the result's significant bits in float64. What is left is 0 or at least
      1, hence times 2^(E−F) at least 2^-125 and below 2^(32+120−25): no subnormal, no overflow.
    """
    scale = SCRATCH.room("scale", c.shape, np.float32)
    np.subtract(np.int32(_power(127 + kind.bits) - (1 << 32)), top, out=scale.view(np.int32))
    terms = _sum_of_terms(a, b, scale)
    scale *= c
    total = SCRATCH.room("total", c.shape, np.float64)
    np.add(terms, np.trunc(scale, out=scale), out=total)
    inverse = np.subtract(top, np.int32(kind.bits << 23)).view(np.float32)
    if kind.accumulator == np.float16:
        return np.asarray((total * inverse).astype(np.float16))
    bits = total.view(np.int64)
    bits &= kind.mask
    np.copyto(scale, total, casting="same_kind")
    inverse *= scale
    return inverse


def _sum_of_terms(a: Terms, b: Terms, scale: Array) -> Array:
    """The products times `scale`, each truncated, int32 [*outputs]."""
    shape = len(a.value), *scale.shape
    products = SCRATCH.room("products", shape, np.float32)
    if a.value.shape[-1] == 1:  # of two ways to say the same, the faster one
        np.einsum("...mx,...xn->...mn", a.value, b.value, out=products)
    else:
        np.multiply(a.value, b.value, out=products)
    np.multiply(products, scale, out=products)
    total = SCRATCH.room("sum", scale.shape, np.int32)
    return np.add.reduce(products, axis=0, dtype=np.int32, out=total)  # a cast truncates


def _wide_sum(a: Terms, b: Terms, c: Array, kind: _Kind) -> Array:
    """The rounded sum of products and C.

    E reaches from −252 to 254 (256 beside what is not finite), so that float64 holds the scale
    2^(F−E), its inverse and the sum, which is below 2^261.
    """
    exponent = np.maximum(exponent_field(np.ascontiguousarray(c)), np.int16(-126))
    top = (a.exponent + b.exponent).max(axis=0)
    top = np.maximum(top, np.where(c == 0, np.int16(OF_ZERO), exponent))
    top = np.maximum(top, np.int16(_LOWEST_WIDE)).astype(np.int64)
    scale = _power_of_two(kind.bits - top)
    products = a.value.astype(np.float64) * b.value
    products *= scale
    # The cast truncates; 16 products below 2^27 − 2^17 cannot overflow the int32 sum.
    total = products.astype(np.int32).sum(axis=0, dtype=np.int32) + np.trunc(c * scale)
    return _round(total * _power_of_two(top - kind.bits), kind)


def _step_fp8_as_f16(a: Terms, b: Terms, c: Array, kind: _Kind) -> Array:
    """sm_90 has no fp8 `mma.sync`: two f16 steps from zero, then C is added to nearest even."""
    first = np.arange(len(a.value)) % 4 < 2
    to_float32 = replace(kind, short=False, accumulator=np.dtype(np.float32))
    d = np.zeros(c.shape, np.float32)
    for part in (first, ~first):
        d = _step(a[part], b[part], d, to_float32)
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
