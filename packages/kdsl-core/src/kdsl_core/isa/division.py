"""Quotients and remainders of integers, rounded down, by the cheapest instructions.

`div` and `rem` take some 25 instructions each, and ptxas does not look whether the divisor is a
constant (`docs/facts.md`).
"""

from __future__ import annotations

from kdsl_core.dtypes import i32, u32
from kdsl_core.ir import Builder, Const, Operand
from kdsl_core.isa.arith import binary
from kdsl_core.isa.compare import compare, select
from kdsl_core.isa.convert import bitcast

_NUMBER_BITS = 31  # of an i32 that is at least 0


def divide_by_constant(b: Builder, x: Operand, n: int, *, nonneg: bool) -> tuple[Operand, Operand]:
    """⌊x / n⌋ and x − n·⌊x / n⌋ for a constant n > 0; `nonneg` says that x is known to be ≥ 0."""
    if n & (n - 1) == 0:  # signed shifts and masks round down as well
        shifted = binary(b, "shr", x, Const(u32, n.bit_length() - 1))
        return shifted, binary(b, "and", x, Const(x.dtype, n - 1))
    if x.dtype is i32:
        quotient = _by_reciprocal(b, x, n, nonneg)
    elif nonneg or x.dtype.kind == "u":
        quotient = binary(b, "div", x, Const(x.dtype, n))
    else:
        return divide(b, x, Const(x.dtype, n), nonneg=False)
    return quotient, _rest(b, x, quotient, Const(x.dtype, n))


def divide(b: Builder, x: Operand, y: Operand, *, nonneg: bool) -> tuple[Operand, Operand]:
    """⌊x / y⌋ and x − y·⌊x / y⌋; `nonneg` says that both are known to be ≥ 0."""
    quotient = binary(b, "div", x, y)
    rest = _rest(b, x, quotient, y)
    if nonneg or x.dtype.kind == "u":
        return quotient, rest
    zero, one = Const(x.dtype, 0), Const(x.dtype, 1)
    opposite = compare(b, "lt", binary(b, "xor", rest, y), zero)
    truncated = binary(b, "and", compare(b, "ne", rest, zero), opposite)
    lower, moved = binary(b, "sub", quotient, one), binary(b, "add", rest, y)
    return select(b, truncated, lower, quotient), select(b, truncated, moved, rest)


def _by_reciprocal(b: Builder, x: Operand, n: int, nonneg: bool) -> Operand:
    """⌊x / n⌋ of an i32 by a product with m / 2^(31+l), a little more than 1 / n.

    With 2^(l−1) < n ≤ 2^l and m = ⌊2^(31+l) / n⌋ + 1, the product exceeds x / n by less than
    x / 2^(31+l) < 1 / n for x < 2^31, so that rounding down gives the quotient; and m < 2^32. For
    x < 0, ⌊x / n⌋ = ~⌊~x / n⌋, where ~x is not negative.
    """
    sign = None if nonneg else binary(b, "shr", x, Const(u32, _NUMBER_BITS))
    magnitude = x if sign is None else binary(b, "xor", x, sign)
    shift = (n - 1).bit_length()
    factor = Const(u32, (1 << _NUMBER_BITS + shift) // n + 1)
    upper = binary(b, "mulhi", bitcast(b, magnitude, u32), factor)
    quotient = bitcast(b, binary(b, "shr", upper, Const(u32, shift - 1)), i32)
    return quotient if sign is None else binary(b, "xor", quotient, sign)


def _rest(b: Builder, x: Operand, quotient: Operand, y: Operand) -> Operand:
    return binary(b, "sub", x, binary(b, "mul", quotient, y))
