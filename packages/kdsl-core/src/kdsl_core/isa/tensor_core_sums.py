"""Sums of products as a tensor core aligns, truncates and rounds them; `tensor_core` has the rules.

Two ways give the same bits: float32 and int32 for operands whose exponents are near 0, float64 for
all. Both are exact but for the truncations of the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from kdsl_core.isa.tensor_core_operands import NARROW, OF_ZERO, Array, Operand, exponent_field
from kdsl_core.isa.tensor_core_terms import (
    BLOCK_PRODUCTS,
    SCRATCH,
    ZERO_8,
    Terms,
    alike_in,
    blocks,
    flat,
    terms_of,
)
from kdsl_core.records import dataclass

Family: TypeAlias = Literal["mma.sync", "wgmma"]

_NARROWEST = -2 * NARROW  # of products of narrow operands
_HIGHEST = 120  # E up to which no result of the narrow way overflows
_LOWEST_WIDE = -300  # below each E but that of zeros alone, for which any finite scale will do
_TOO_LARGE = 2.0**128  # what f32 has no finite number for, in any rounding
_FIELD = np.int32(0x7F800000)  # of a float32: its exponent


def sums_of_products(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """A·Bᵀ + C by one instruction, a cache-sized block of outputs at a time.

    What is not finite counts as 0. The longer of N and the batch is the inner loop.

    Shapes: a [..., M, K], b [..., N, K], c and the result [..., M, N]; batch axes broadcast.
    """
    batch = np.broadcast_shapes(a.rows.shape[:-2], b.rows.shape[:-2], c.shape[:-2])
    (m, k), n = a.rows.shape[-2:], b.rows.shape[-2]
    old = flat(c, batch)
    wide = n >= len(old)  # products are [K, batch, M, N], else [K, M, N, batch]
    ours, theirs = (terms_of(x, batch, wide, at) for x, at in ((a, 3), (b, 2)))
    if not wide:
        old = np.ascontiguousarray(old.transpose(1, 2, 0))
    step, kind = _step_of(a, b, c, family)
    limit = max(BLOCK_PRODUCTS // max(k, 1), 1)
    with np.errstate(over="ignore"):  # infinite results
        if old.size <= limit:
            new = step(ours, theirs, old, kind)
        else:
            new = np.empty_like(old)
            for s in blocks(old.shape, limit):
                new[s] = step(ours.block(s), theirs.block(s), old[s], kind)
    if not wide:
        new = np.ascontiguousarray(new.transpose(2, 0, 1))
    return new.reshape(*batch, m, n)


def sums_side_by_side(a: Operand, b: Operand, c: Array, family: Family) -> Array | None:
    """`sums_of_products` [batch, M, N], all matrices B that meet one A as a wide one.

    So the inner loops are longer. The blocks in one row of a grid have their A in common. None
    where the batch has no such A, or not the same number of B for each.
    """
    alike = alike_in(a.rows, b.rows, c)
    if alike is None:
        return None
    (tiles, each), (m, n), k = alike.shape, c.shape[1:], a.rows.shape[-1]
    ours = terms_of(a.take(alike[:, 0], (tiles, m, k)), (tiles,), True, 3)
    theirs = terms_of(b.take(alike, (tiles, each * n, k)), (tiles,), True, 2)
    step, kind = _step_of(a, b, c, family)
    new, everywhere = np.empty_like(c), slice(None)
    with np.errstate(over="ignore"):  # infinite results
        for t, rows in blocks((tiles, m), max(BLOCK_PRODUCTS // (k * each * n), 1)):
            old = c[alike[t], rows].swapaxes(1, 2)
            block = (t, rows, everywhere)
            wide = old.reshape(*old.shape[:2], -1)
            d = step(ours.block(block), theirs.block(block), wide, kind)
            new[alike[t], rows] = d.reshape(old.shape).swapaxes(1, 2)
    return new


def _step_of(
    a: Operand, b: Operand, c: Array, family: Family
) -> tuple[Callable[..., Array], _Kind]:
    """The function of one instruction, and how it works."""
    fp8 = _is_fp8(a)
    kind = _Kind(a.narrow and b.narrow, fp8 and family == "wgmma", c.dtype, a.highest + b.highest)
    return _step_fp8_as_f16 if fp8 and family == "mma.sync" else _step, kind


def _is_fp8(x: Operand) -> bool:
    return x.dtype.itemsize == 1


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
        top = _highest_powers(a, b, c.shape, kind)
        np.maximum(top, c32.view(np.int32) & _FIELD, out=top)
        if _fits(top, c32):
            return _narrow_sum(a, b, c32, top, kind)
    return _wide_sum(a, b, c32, kind)


def _highest_powers(a: Terms, b: Terms, outputs: tuple[int, ...], kind: _Kind) -> Array:
    """The largest exponent among the products, as the bits of that power of two in float32.

    0 where all products are 0.
    """
    if a.small is None or b.small is None:
        sums = (a.exponent + b.exponent).max(axis=0)
        nothing, top = sums < _NARROWEST, sums.astype(np.int32)
    else:
        room = SCRATCH.room("exponents", (len(a.small), *outputs), np.int8)
        sums = np.add(a.small, b.small, out=room).max(axis=0)
        nothing, top = sums <= ZERO_8, sums.astype(np.int32)
        top += np.int32(kind.highest)
    top += np.int32(127)
    top <<= np.int32(23)
    if nothing.any():
        top[nothing] = 0
    return np.asarray(top)


def _fits(top: Array, c: Array) -> bool:
    """Whether `_narrow_sum` may be used with 2^E; where it is too low, C must be zero."""
    if int(top.max()) > _power(_HIGHEST):
        return False
    if int(top.min()) >= _power(_NARROWEST):
        return True
    return not c[top < _power(_NARROWEST)].any()


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
    top = np.maximum(top, np.int32(_power(_NARROWEST)))
    scale = np.subtract(np.uint32(_power(127 + kind.bits)), top.view(np.uint32)).view(np.float32)
    shape = len(a.value), *c.shape
    products = SCRATCH.room("products", shape, np.float32)
    terms = SCRATCH.room("terms", shape, np.int32)
    if a.value.shape[-1] == 1:  # of two ways to say the same, the faster one
        np.einsum("...mx,...xn->...mn", a.value, b.value, out=products)
    else:
        np.multiply(a.value, b.value, out=products)
    np.multiply(products, scale, out=products)
    np.copyto(terms, products, casting="unsafe")
    total = terms.sum(axis=0, dtype=np.int32).astype(np.float64)
    scale *= c
    total += np.trunc(scale, out=scale).astype(np.float64)
    inverse = np.subtract(top, np.int32(kind.bits << 23)).view(np.float32)
    if kind.accumulator == np.float16:
        return np.asarray((total * inverse).astype(np.float16))
    total.view(np.int64)[...] &= kind.mask
    inverse *= total.astype(np.float32)
    return inverse


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
        d = _step(a.some(part), b.some(part), d, to_float32)
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
