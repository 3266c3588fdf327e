"""Sums of products as a tensor core aligns, truncates and rounds them; `tensor_core` has the rules.

Two ways give the same bits: float32 and int32 for operands whose exponents are near 0, float64 for
all. Both are exact but for the truncations of the rules. Where numba is installed, the first one
is also there as compiled code (`tensor_core_loop`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from kdsl_core.isa.compiled_sums import COMPILED
from kdsl_core.isa.scratch import SCRATCH
from kdsl_core.isa.tensor_core_operands import (
    OF_ZERO,
    Array,
    Operand,
    exponent_field,
    power_bits,
)
from kdsl_core.isa.tensor_core_terms import (
    BLOCK_PRODUCTS,
    FIELD,
    LOWEST,
    Products,
    Terms,
    blocks,
    products_of,
    whole_batch,
)
from kdsl_core.records import dataclass

Family: TypeAlias = Literal["mma.sync", "wgmma"]

_HIGHEST = 2.0**120  # no partial sum of the narrow way gets there, nor its rounded multiples
_LEAST = 2.0**LOWEST  # from here on, E is not below the exponent of C
_LARGEST_TOTAL = (1 << 31) - (1 << 27)  # from here on, an int32 sum may have wrapped
_LOWEST_WIDE = -300  # below each E but that of zeros alone, for which any finite scale will do
_TOO_LARGE = 2.0**128  # what f32 has no finite number for, in any rounding


def sums_of_products(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """C + A₀·B₀ᵀ + A₁·B₁ᵀ + … by S instructions, a cache-sized block of outputs at a time.

    What is not finite counts as 0, but what becomes so on the way is not followed: the caller looks
    at the result.

    Shapes: a [S, ..., M, K], b [S, ..., N, K], c and the result [..., M, N]; batch axes broadcast.
    """
    batch = np.broadcast_shapes(a.rows.shape[1:-2], b.rows.shape[1:-2], c.shape[:-2])
    m, n = a.rows.shape[-2], b.rows.shape[-2]
    old = c if c.shape[:-2] == batch else np.broadcast_to(c, (*batch, m, n))
    old = old.reshape(-1, m, n)
    chain = _Chain(a, b, c, family)
    new = chain.compiled(a, b, batch, old)
    if new is None:
        new = chain.by_numpy(a, b, batch, old)
    return new.reshape(*batch, m, n)


class _Chain:
    """Instructions of one kind, one after the other."""

    def __init__(self, a: Operand, b: Operand, c: Array, family: Family) -> None:
        fp8 = a.dtype.itemsize == 1
        k, steps = a.rows.shape[-1], len(a.rows)
        highest = 2.0 ** (a.highest + b.highest + 2) * (k * steps)  # sum of products
        narrow = a.narrow and b.narrow and _stays_narrow(c, highest)
        self._kind = _Kind(narrow, fp8 and family == "wgmma", c.dtype)
        self._step = _step_fp8_as_f16 if fp8 and family == "mma.sync" else _step
        self._outputs = max(BLOCK_PRODUCTS // max(k, 1), 1)  # at a time

    def compiled(self, a: Operand, b: Operand, batch: tuple[int, ...], c: Array) -> Array | None:
        """What becomes of C [batch, M, N] by compiled code; None where that is not to be had."""
        steps, depth, kind = len(a.rows), a.rows.shape[-1], self._kind
        takes = kind.narrow and kind.accumulator == np.float32 and depth % 4 == 0
        if not takes or self._step is not _step:
            return None
        add_products = COMPILED.for_products(steps * depth * c.size)
        if add_products is None:
            return None
        values = whole_batch(a.value, batch), whole_batch(b.value, batch)
        least = power_bits(a.least), power_bits(b.least), power_bits(LOWEST)
        d = c.copy()
        add_products(*values, d, least, kind.bits, kind.mask)
        return d

    def by_numpy(self, a: Operand, b: Operand, batch: tuple[int, ...], c: Array) -> Array:
        """What becomes of C [batch, M, N]; the longer of N and the batch is the inner loop."""
        if c.shape[-1] >= len(c):
            return self._run(products_of(a, b, batch, wide=True), c)
        inner = np.ascontiguousarray(c.transpose(1, 2, 0))
        new = self._run(products_of(a, b, batch, wide=False), inner)
        return np.ascontiguousarray(new.transpose(2, 0, 1))

    def _run(self, products: Products, c: Array) -> Array:
        """What becomes of C [*outputs], a cache-sized block at a time."""
        with np.errstate(over="ignore"):  # infinite results
            if c.size <= self._outputs:
                return self._block(products, c)
            d = np.empty_like(c)
            for s in blocks(c.shape, self._outputs, products.LONGEST):
                d[s] = self._block(products.block(s), c[s])
            return d

    def _block(self, products: Products, c: Array) -> Array:
        for step in products.steps():
            c = self._step(step, c, self._kind)
            if c.dtype == np.float16 and not np.isfinite(c).all():
                break
        return c


def _stays_narrow(c: Array, most: float) -> bool:
    """Whether the narrow way is exact for C, to which products of a sum of `most` are added.

    A sum is a multiple of 2^(E − F) from then on, whatever else is 0 in the next one, since E is
    not below `LOWEST` there either.
    """
    size = np.abs(c[c != 0].astype(np.float32))
    return not size.size or bool(size.min() >= _LEAST and size.max() + most < _HIGHEST)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one step works: narrow or not, with 13 or 25 bits of F, into which type."""

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


def _step(products: Products, c: Array, kind: _Kind) -> Array:
    """Align, truncate, add and round; c and the result are [*outputs]."""
    c32 = c.astype(np.float32, copy=False)
    d = _narrow_sum(products, c32, kind) if kind.narrow else None
    return _wide_sum(*products.terms(), c32, kind) if d is None else d


def _narrow_sum(products: Products, c: Array, kind: _Kind) -> Array | None:
    """What `_wide_sum` gives, in narrower types, for operands whose exponents are within ±50.

    None where int32 might not hold the sum. All steps are exact but for the two truncations of the
    model:

    * A product has at most 22 significant bits and is 0 or has an exponent in −100 … 101, so
      float32 holds it. E is −100 at least: where C is smaller than that and all products are 0, C
      is a multiple of 2^(−100−F) and loses nothing.
    * F − E lies in 13 − 120 … 25 + 100, so float32 holds the scale 2^(F−E) and its inverse.
    * A scaled term is below 2^(F+2), so int32 holds it; where it underflows it is below 1, and the
      cast gives 0 as it does without underflow.
    * 16 products below 2^27 − 2^16 and C below 2^26 overflow int32, if at all, to a sum that is
      less than 2^27 from its ends.
    * That integer is cut to the result's significant bits in float64. What is left is 0 or at least
      1, hence times 2^(E−F) at least 2^-125 and below 2^(32+120−25): no subnormal, no overflow.
    """
    shape = c.shape
    top = SCRATCH.room("top", shape, np.int32)
    products.highest_powers(top)
    field = SCRATCH.room("field", shape, np.int32)
    np.maximum(top, np.bitwise_and(c.view(np.int32), FIELD, out=field), out=top)  # 2^E in bits
    scale = SCRATCH.room("scale", shape, np.float32)
    np.subtract(np.int32((254 + kind.bits << 23) - (1 << 32)), top, out=scale.view(np.int32))
    sums = _truncated_sum(products, c, scale)
    if sums.max() > _LARGEST_TOTAL or sums.min() < -_LARGEST_TOTAL:
        return None
    total = SCRATCH.room("total", shape, np.float64)
    np.copyto(total, sums)
    inverse = np.subtract(top, np.int32(kind.bits << 23)).view(np.float32)
    if kind.accumulator == np.float16:
        return np.asarray((total * inverse).astype(np.float16))
    bits = total.view(np.int64)
    bits &= kind.mask
    np.copyto(scale, total, casting="same_kind")
    inverse *= scale
    return inverse


def _truncated_sum(products: Products, c: Array, scale: Array) -> Array:
    """The products and C times `scale`, each truncated, int32 [*outputs]."""
    terms = SCRATCH.room("products", (products.depth + 1, *scale.shape), np.float32)
    products.write(terms[:-1])
    np.multiply(terms[:-1], scale, out=terms[:-1])
    np.multiply(c, scale, out=terms[-1])
    total = SCRATCH.room("sum", scale.shape, np.int32)
    return np.add.reduce(terms, axis=0, dtype=np.int32, out=total)  # a cast truncates


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


def _step_fp8_as_f16(products: Products, c: Array, kind: _Kind) -> Array:
    """sm_90 has no fp8 `mma.sync`: two f16 steps from zero, then C is added to nearest even."""
    first = np.arange(products.depth) % 4 < 2
    to_float32 = replace(kind, short=False, accumulator=np.dtype(np.float32))
    d = np.zeros(c.shape, np.float32)
    for part in (first, ~first):
        d = _step(products.some(part), d, to_float32)
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
