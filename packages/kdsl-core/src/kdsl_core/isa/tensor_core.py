"""What Hopper's tensor cores compute, bit for bit: `mma.sync` and `wgmma` on batches of tiles.

One instruction forms all K products exactly, aligns them and the accumulator to the largest
exponent among them, truncates each toward zero, adds exactly, and rounds once:

1. The exponent of a product is the sum of its operands' exponents, not normalised; a subnormal
   operand has its type's minimum exponent. Zeros take no part.
2. E is the largest exponent among the products and C. Every term is truncated toward zero to a
   multiple of 2^(E−F). Nothing is bounded so far: products of bf16 and tf32 reach beyond f32, E
   up to 254, and where such products cancel, the sum is an ordinary number.
3. The exact sum is converted to the accumulator. f32: toward zero, but a sum of ±2^128 or more is
   infinite; below that it stops at the largest finite number. f16: to nearest even, so that ±65520
   and more are infinite.
4. With an infinity or NaN among the operands, IEEE arithmetic decides: ∞·0, ∞ − ∞ and NaN give the
   NaN 0x7fffffff (f16: 0x7fff), else the infinity has its sign. Finite operands never give NaN.

F is 25, but 13 for fp8 `wgmma`, whose result keeps 14 significant bits. `mma.sync` runs fp8 as
two f16 steps. Recorded on an H200, all 390 groups of instructions and kinds of numbers equal in
every bit (docs/facts.md, tests/golden/tensor_core).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from kdsl_core.errors import TypeMismatch
from kdsl_core.isa.tensor_core_operands import Array, Operand, names, prepare
from kdsl_core.isa.tensor_core_sums import Family, sums_of_products
from kdsl_core.isa.tensor_core_tiles import tiles_of

_ACCUMULATORS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int32))
_NAN: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.uint32(0x7FFFFFFF).view(np.float32),
    np.dtype(np.float16): np.uint16(0x7FFF).view(np.float16),
}


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
    Source: PTX ISA 9.0 `mma`, `wgmma.mma_async`; recordings of an H200, docs/facts.md.
    """
    if not isinstance(a, Operand) and not isinstance(b, Operand):
        return accumulate_products(a[None], b[None], c, family, numerics=numerics)
    a, b = _operand(a), _operand(b)
    _check(a, b, c)
    return _one(a, b, c, family, numerics)


def accumulate_products(
    a: Array,
    b: Array,
    c: Array,
    family: Family = "mma.sync",
    *,
    numerics: Literal["exact", "fast"] = "exact",
) -> Array:
    """C + A₀·B₀ᵀ + A₁·B₁ᵀ + … as tensor-core instructions one after the other compute it.

    It is what `multiply_accumulate` gives in S steps, with less work around each.

    Shapes: a [S, ..., M, K], b [S, ..., N, K], c and the result [..., M, N]; batch axes broadcast.
    Raises: as `multiply_accumulate`.
    """
    tiles = None if c.dtype == np.int32 or numerics == "fast" else tiles_of(a, b, c)
    if tiles is None:
        return _accumulate(a, b, c, family, numerics)
    d = _accumulate(tiles.tall(a), tiles.wide(b), tiles.join(c), family, numerics)
    return tiles.split(d, c.shape)


def _accumulate(
    a: Array, b: Array, c: Array, family: Family, numerics: Literal["exact", "fast"]
) -> Array:
    """`accumulate_products`, with matrices as they are."""
    ours, theirs = prepare(a), prepare(b)
    _check(ours, theirs, c)
    if c.dtype != np.int32 and numerics != "fast" and _finite(ours, theirs, c):
        d = sums_of_products(ours, theirs, c, family)
        if len(a) == 1 or np.isfinite(d).all():
            return d
    for i in range(len(a)):
        c = _one(ours.step(i), theirs.step(i), c, family, numerics)
    return c


def _one(
    a: Operand, b: Operand, c: Array, family: Family, numerics: Literal["exact", "fast"]
) -> Array:
    """What one instruction computes."""
    if c.dtype == np.int32 or numerics == "fast":
        product = a.rows[0] @ b.rows[0].swapaxes(-1, -2)  # exact for int8: |sum| ≤ 32·255² < 2^24
        return np.asarray(product.astype(c.dtype) + c)
    d = sums_of_products(a, b, c, family)
    return d if _finite(a, b, c) else _patch_nonfinite(a, b, c, d)


def _operand(x: Array | Operand) -> Operand:
    """The operand of a chain of one instruction."""
    return x.alone() if isinstance(x, Operand) else prepare(x[None])


def _finite(a: Operand, b: Operand, c: Array) -> bool:
    return a.finite and b.finite and bool(np.isfinite(c).all())


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
            f"an accumulator must be one of {names(_ACCUMULATORS)}, got {c.dtype}",
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


def _patch_nonfinite(a: Operand, b: Operand, c: Array, d: Array) -> Array:
    """Put the infinities and NaN of IEEE arithmetic where an input was not finite."""
    with np.errstate(invalid="ignore"):
        exact = a.rows[0].astype(np.float64) @ b.rows[0].astype(np.float64).swapaxes(-1, -2) + c
    d = np.where(np.isinf(exact), exact.astype(d.dtype), d)
    return np.where(np.isnan(exact), _NAN[d.dtype], d)
