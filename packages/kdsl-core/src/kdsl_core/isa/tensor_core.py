"""What Hopper's tensor cores compute, bit for bit: `mma.sync` and `wgmma` on batches of tiles.

One instruction forms all K products exactly, aligns them and the accumulator to the largest
exponent among them, truncates each toward zero, adds exactly, and rounds once:

1. The exponent of a product is the sum of its operands' exponents, not normalised; a subnormal
   operand has its type's minimum exponent. Zeros take no part.
2. E is the largest exponent among the products and C. Every term is truncated toward zero to a
   multiple of 2^(E−F).
3. The exact sum is converted to the accumulator: f32 toward zero, f16 to nearest even.

F is 25, but 13 for fp8 `wgmma`, whose result keeps 14 significant bits. `mma.sync` runs fp8 as
two f16 steps. Recorded on an H200 (tests/golden/tensor_core); not recorded, hence plain IEEE
reasoning: infinities, NaN and overflow (f32 accumulators stop at the largest finite number, as
rounding toward zero does; f16 accumulators become infinite), and fp8 with f16 accumulators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from kdsl_core.errors import TypeMismatch

Array: TypeAlias = np.ndarray[Any, Any]
Family: TypeAlias = Literal["mma.sync", "wgmma"]

_MIN_EXPONENT = {
    np.dtype(np.float16): -14,
    np.dtype(ml_dtypes.bfloat16): -126,
    np.dtype(np.float32): -126,  # tf32
    np.dtype(ml_dtypes.float8_e4m3fn): -6,
    np.dtype(ml_dtypes.float8_e5m2): -14,
    np.dtype(np.int8): 0,
    np.dtype(np.uint8): 0,
}
_ACCUMULATORS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int32))
_OF_ZERO = -1000  # an exponent below every other, also after one addition
_NONFINITE = 128  # the exponent field that f32 gives to infinities and NaN
_NARROW = 50  # operands whose exponents stay within ± this take the fast way
_LOWEST = np.int16(-2 * _NARROW)  # of their products
_HIGHEST = 120  # E up to which no result of that way overflows
_BLOCK_PRODUCTS = 1 << 17  # products formed at a time, so that they stay in the second-level cache
_FP8 = {
    np.dtype(fp8): np.arange(256, dtype=np.uint8).view(fp8).astype(np.float32)
    for fp8 in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}
_NAN_BITS = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix operand, decomposed once for use with several partners.

    `value` is `rows` with 0 for what is not finite; `narrow` says that all exponents but those of
    zeros are within ±50.

    Shapes: `rows` and `value` (float32) and `exponent` (int16) [..., R, K].
    """

    rows: Array
    value: Array
    exponent: Array
    dtype: np.dtype[Any]
    finite: bool
    narrow: bool


def prepare(x: Array) -> Operand:
    """Decompose an operand [..., R, K] into exact values and the exponents the hardware sees."""
    if x.dtype not in _MIN_EXPONENT:
        raise TypeMismatch(
            f"a tensor-core operand must be one of {_names(_MIN_EXPONENT)}, got {x.dtype}",
            code="K280",
            fix="convert the operand first",
        )
    value = rows = np.ascontiguousarray(_to_float32(x))
    exponent = np.maximum(_exponent(rows), np.int16(_MIN_EXPONENT[x.dtype]))
    zero = rows == 0
    np.copyto(exponent, 0, where=zero)
    lowest, highest = (int(exponent.min()), int(exponent.max())) if x.size else (0, 0)
    np.copyto(exponent, _OF_ZERO, where=zero)
    finite = highest < _NONFINITE
    if not finite:  # their outputs are patched afterwards
        value = np.where(np.isfinite(rows), rows, np.float32(0))
    return Operand(rows, value, exponent, x.dtype, finite, max(-lowest, highest) <= _NARROW)


def multiply_accumulate(
    a: Array | Operand,
    b: Array | Operand,
    c: Array,
    family: Family = "mma.sync",
    *,
    numerics: Literal["exact", "fast"] = "exact",
) -> Array:
    """D = A·Bᵀ + C as one tensor-core instruction per batch element computes it.

    float32 operands are tf32: their low 13 bits are ignored. K must not exceed one instruction's
    256 bits. `numerics="fast"` is one float32 matmul, not bit-exact.

    Shapes: a [..., M, K], b [..., N, K], c and the result [..., M, N]; batch axes broadcast.
    Raises: TypeMismatch for a type or K that no instruction takes.
    Source: PTX ISA 9.0 `mma`, `wgmma.mma_async`; shared/golden/tensor_core.
    """
    a = a if isinstance(a, Operand) else prepare(a)
    b = b if isinstance(b, Operand) else prepare(b)
    _check(a, b, c)
    if c.dtype == np.int32 or numerics == "fast":
        product = a.rows @ b.rows.swapaxes(-1, -2)  # exact for int8: |sum| ≤ 32·255² < 2^24
        return np.asarray(product.astype(c.dtype) + c)
    with np.errstate(over="ignore"):
        d = _in_blocks(a, b, c, family)
    if a.finite and b.finite and np.isfinite(c).all():
        return d
    return _patch_nonfinite(a, b, c, d)


def _check(a: Operand, b: Operand, c: Array) -> None:
    integer = a.dtype.kind in "iu"
    eight_bits = a.dtype.itemsize == b.dtype.itemsize == 1  # s8 × u8 and e4m3 × e5m2 exist
    same_kind = integer == (b.dtype.kind in "iu")
    if not (a.dtype == b.dtype or (eight_bits and same_kind)) or integer != (c.dtype == np.int32):
        raise TypeMismatch(
            f"no tensor-core instruction multiplies {a.dtype} by {b.dtype} into {c.dtype}",
            code="K281",
            fix="give both operands one type; int8 accumulates in int32, floats in f32 or f16",
        )
    if c.dtype not in _ACCUMULATORS:
        raise TypeMismatch(
            f"an accumulator must be one of {_names(_ACCUMULATORS)}, got {c.dtype}",
            code="K282",
            fix="accumulate in float32",
        )
    k, other = a.rows.shape[-1], b.rows.shape[-1]
    if k != other or k * a.dtype.itemsize > 32:
        raise TypeMismatch(
            f"A and B must share a K of at most {32 // a.dtype.itemsize}, got {k} and {other}",
            code="K283",
            fix="issue one instruction per 256 bits of K",
        )


def _names(dtypes: Any) -> str:
    return ", ".join(str(dtype) for dtype in dtypes)


def _to_float32(x: Array) -> Array:
    if x.dtype == np.float32:
        return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if x.dtype == ml_dtypes.bfloat16:
        return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if x.dtype in _FP8:
        return np.asarray(_FP8[x.dtype].take(x.view(np.uint8)))
    return x.astype(np.float32)


def _exponent(x: Array) -> Array:
    """The exponent field of each float32 less its bias, as int16."""
    upper = x.view(np.int16).reshape(*x.shape, 2)[..., 1]
    return np.asarray((upper >> np.int16(7) & np.int16(255)) - np.int16(127))


def _in_blocks(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """Run the instruction, a cache-sized block of the batch at a time."""
    batch = np.broadcast_shapes(a.rows.shape[:-2], b.rows.shape[:-2], c.shape[:-2])
    (m, k), n = a.rows.shape[-2:], b.rows.shape[-2]
    av, ae, bv, be, cc = (_flat(x, batch) for x in (a.value, a.exponent, b.value, b.exponent, c))
    d = np.empty_like(cc)
    block = max(_BLOCK_PRODUCTS // max(k * m * n, 1), 1)
    step = _step_fp8_as_f16 if _is_fp8(a) and family == "mma.sync" else _step
    kind = _Kind(a.narrow and b.narrow, _is_fp8(a) and family == "wgmma", c.dtype)
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
        aligned = np.maximum(top, _exponent(c32))
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
    """The rounded sum of products and C, where `top` are the largest exponents of products."""
    exponent = np.where(c == 0, np.int16(_OF_ZERO), np.maximum(_exponent(c), np.int16(-126)))
    top = np.clip(np.maximum(top, exponent), -300, 128)  # all zero: any finite scale will do
    top = top.astype(np.int64)
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
    if kind.accumulator == np.float16:
        return np.asarray(total.astype(np.float16))
    if kind.short:
        total = (total.view(np.int64) & kind.mask).view(np.float64)
    d = total.astype(np.float32)
    d.view(np.int32)[...] -= np.abs(d) > np.abs(total)  # nearest became away: one step back
    return d


def _patch_nonfinite(a: Operand, b: Operand, c: Array, d: Array) -> Array:
    """Put the infinities and NaN of IEEE arithmetic where an input was not finite."""
    with np.errstate(invalid="ignore"):
        exact = a.rows.astype(np.float64) @ b.rows.astype(np.float64).swapaxes(-1, -2) + c
    nan = _NAN_BITS.view(np.float32) if d.dtype == np.float32 else np.uint16(0x7FFF).view(d.dtype)
    d = np.where(np.isinf(exact), exact.astype(d.dtype), d)
    return np.where(np.isnan(exact), nan, d)
