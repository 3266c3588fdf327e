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

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kdsl_core.errors import TypeMismatch

Array: TypeAlias = NDArray[Any]
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
_FLOAT32_REACH = 50  # while operand exponents stay within ±50, float32 holds each scaled product
_BLOCK_PRODUCTS = 1 << 17  # products formed at a time, so that they stay in the second-level cache
_FP8 = {
    np.dtype(fp8): np.arange(256, dtype=np.uint8).view(fp8).astype(np.float32)
    for fp8 in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}
_NAN_BITS = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix operand, decomposed once for use with several partners.

    Shapes: `rows` [..., R, K] in float32; `value` (float32) and `exponent` (int16) [K, R, ...].
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
    rows = _to_float32(x)
    value = np.ascontiguousarray(np.moveaxis(rows, (-1, -2), (0, 1)))
    exponent = _exponent(value, _MIN_EXPONENT[x.dtype])
    finite, narrow = True, True
    if x.size:
        highest = int(exponent.max())
        lowest = int(exponent.min(where=exponent != _OF_ZERO, initial=0))
        finite = highest < _NONFINITE
        narrow = max(-lowest, highest) <= _FLOAT32_REACH
    if not finite:  # their outputs are patched afterwards
        value = np.where(np.isfinite(value), value, np.float32(0))
    return Operand(rows, value, exponent, x.dtype, finite, narrow)


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


def _exponent(x: Array, minimum: int) -> Array:
    """The exponent of each float32, at least `minimum`, as int16."""
    field = ((x.view(np.uint32) >> np.uint32(23)).astype(np.int16) & np.int16(255)) - np.int16(127)
    np.maximum(field, np.int16(minimum), out=field)
    field[x == 0] = _OF_ZERO
    return field


def _in_blocks(a: Operand, b: Operand, c: Array, family: Family) -> Array:
    """Run the instruction with the batch innermost, a cache-sized block of the batch at a time."""
    batch = np.broadcast_shapes(a.rows.shape[:-2], b.rows.shape[:-2], c.shape[:-2])
    k, m, n = a.rows.shape[-1], a.rows.shape[-2], b.rows.shape[-2]

    def flat(x: Array) -> Array:
        if x.shape[2:] != batch:
            x = np.broadcast_to(_pad_batch(x, len(batch)), (*x.shape[:2], *batch))
        return x.reshape(*x.shape[:2], -1)

    av, ae, bv, be = flat(a.value), flat(a.exponent), flat(b.value), flat(b.exponent)
    cc = np.broadcast_to(c, (*batch, m, n)).reshape(-1, m, n)
    d = np.empty_like(cc)
    block = max(_BLOCK_PRODUCTS // max(k * m * n, 1), 1)
    if block < n:  # then N makes the longer inner loop
        block = 1
    step = _step_fp8_as_f16 if _is_fp8(a) and family == "mma.sync" else _step
    kind = _Kind(a.narrow and b.narrow, _is_fp8(a) and family == "wgmma", c.dtype)
    for i in range(0, len(cc), block):
        s = np.s_[..., i : i + block]
        ci = np.ascontiguousarray(cc[i : i + block].transpose(1, 2, 0))
        d[i : i + block] = step(av[s], ae[s], bv[s], be[s], ci, kind).transpose(2, 0, 1)
    return d.reshape(*batch, m, n)


def _pad_batch(x: Array, rank: int) -> Array:
    return x.reshape(*x.shape[:2], *(1,) * (rank + 2 - x.ndim), *x.shape[2:])


def _is_fp8(x: Operand) -> bool:
    return x.dtype.itemsize == 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one step works: in float32 or float64, with 13 or 25 bits of F, into which type."""

    narrow: bool
    short: bool
    accumulator: np.dtype[Any]


def _step(av: Array, ae: Array, bv: Array, be: Array, c: Array, kind: _Kind) -> Array:
    """Align, truncate, add and round.

    Shapes: av, ae [K, M, batch], bv, be [K, N, batch], c and the result [M, N, batch].
    """
    bits = 13 if kind.short else 25
    c32 = c.astype(np.float32, copy=False)
    top = np.maximum((ae[:, :, None] + be[:, None]).max(axis=0), _exponent(c32, -126))
    top = np.clip(top, -300, 128).astype(np.int64)  # all zero: any finite scale will do
    scale = _power_of_two(bits - top)
    if kind.narrow:
        product = av[:, :, None] * bv[:, None]
        # A product that is not zero needs no scale above 2^(25+100); the cast must not overflow.
        product *= np.minimum(scale, 2.0**125).astype(np.float32)
    else:
        product = av[:, :, None].astype(np.float64) * bv[:, None]
        product *= scale
    # The cast truncates; 16 products below 2^27 − 2^17 cannot overflow the int32 sum.
    total = product.astype(np.int32).sum(axis=0, dtype=np.int32) + np.trunc(c32 * scale)
    return _round(total * _power_of_two(top - bits), kind)


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
    with np.errstate(over="ignore"):
        if kind.accumulator == np.float16:
            return total.astype(np.float16)
        if kind.short:
            total = (total.view(np.int64) & ~np.int64((1 << 39) - 1)).view(np.float64)
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
