"""Elementary functions of f32 within 2 ulp, built from instructions that round exactly.

Each reduces its argument to a short interval, where a polynomial has the function's value. The
coefficients are near-minimax fits of relative error (Lawson's iteration on Chebyshev nodes, the
coefficients rounded to f32 one after another); lists go from the highest power down. Nothing
branches, and simulator and hardware agree bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kdsl_core.dtypes import f32, i32, u32
from kdsl_core.ir import Builder, Const, Operand
from kdsl_core.isa.arith import binary, fma, unary
from kdsl_core.isa.compare import compare, select
from kdsl_core.isa.convert import bitcast
from kdsl_core.isa.functions import direct

# 1.5·2^23: added to |x| < 2^22 it leaves x, rounded to an integer, in the low bits of the sum
_TO_INTEGER = 12582912.0
_TO_INTEGER_BITS = 0x4B400000
_ONE_BITS = 0x3F800000
_LOG2_E, _LOG2_E_LOW = 1.4426950216293335, 1.925963033500011e-08
_LN_2, _LN_2_LOW = 0.6931471824645996, -1.9046542121259336e-09
_SQRT_HALF = math.sqrt(0.5)
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
# (e^f − 1 − f) / f² on |f| ≤ ln2/2: 2^-28
_EXP = (
    0.0013818697771057487,
    0.008368715643882751,
    0.04166829213500023,
    0.1666652113199234,
    0.4999999403953552,
)
# (2^f − 1) / f on |f| ≤ 1/2: 2^-28, and one term less: 2^-23
_EXP2 = (
    0.0001532646274426952,
    0.0013390806270763278,
    0.009618505835533142,
    0.05550359934568405,
    0.24022647738456726,
    0.6931471824645996,
)
_EXP2_SHORT = (
    0.0013269535265862942,
    0.009671292267739773,
    0.0555071085691452,
    0.24022246897220612,
    0.6931470036506653,
)
# (ln(1 + f) − f + f²/2) / f³ on √½ ≤ 1 + f ≤ √2: 2^-27
_LOG = (
    -0.07636439055204391,
    0.12762217223644257,
    -0.13159610331058502,
    0.14201579988002777,
    -0.166234090924263,
    0.2000124156475067,
    -0.2500081956386566,
    0.3333333134651184,
)
# (tanh x − x) / x³ in x² on x ≤ 0.55: 2^-29
_TANH = (
    -0.00624284939840436,
    0.02105071395635605,
    -0.0538475476205349,
    0.13332544267177582,
    -0.33333316445350647,
)
# (erf x − x) / x in x² on x ≤ 0.9: 2^-26
_ERF = (
    -0.0006053007673472166,
    0.005004285369068384,
    -0.026773378252983093,
    0.11281978338956833,
    -0.3761250674724579,
    0.12837915122509003,
)
# log2(1 − erf x) on 0.9 ≤ x ≤ 3.93: 2^-29 of erf
_LOG2_ERFC = (
    0.000285958347376436,
    -0.004422481171786785,
    0.03219381347298622,
    -0.15020398795604706,
    -0.9189624190330505,
    -1.6270674467086792,
    -0.00024013337679207325,
)
# log2 of the normal distribution function at −x on 0 ≤ x ≤ 5.6: 2^-24 · max(1, |log2| / 2)
_LOG2_NDTR = (
    -2.220724582002731e-08,
    6.821123292866105e-07,
    -8.99909900908824e-06,
    6.456961273215711e-05,
    -0.00023733757552690804,
    -9.054287511389703e-05,
    0.007060755044221878,
    -0.052520379424095154,
    -0.45919403433799744,
    -1.1511075496673584,
    -0.9999999403953552,
)
# (sin r − r) / r³ and (cos r − 1 + r²/2) / r⁴ in r² on r ≤ 0.83: 2^-27 and 2^-32
_SIN = (-0.00019473339489195496, 0.008331838063895702, -0.16666649281978607)
_COS = (2.439222407701891e-05, -0.00138869509100914, 0.04166663810610771)


# -- words of the expansions -------------------------------------------------------------------
def _f(value: float) -> Const:
    return Const(f32, value)


def _add(b: Builder, x: Operand, y: Operand) -> Operand:
    return binary(b, "add", x, y)


def _mul(b: Builder, x: Operand, y: Operand) -> Operand:
    return binary(b, "mul", x, y)


def _polynomial(b: Builder, x: Operand, coefficients: Sequence[float]) -> Operand:
    """Horner's rule in fused steps."""
    value: Operand = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(b, value, x, _f(coefficient))
    return value


def _to_integer(b: Builder, shifted: Operand) -> tuple[Operand, Operand]:
    """(f32, i32) of the integer in the low bits of `shifted`, a sum with _TO_INTEGER."""
    whole = binary(b, "sub", shifted, _f(_TO_INTEGER))
    bits = bitcast(b, shifted, i32)
    return whole, binary(b, "sub", bits, Const(i32, _TO_INTEGER_BITS))


def _power_of_two(b: Builder, exponent: Operand) -> Operand:
    """2^exponent for an i32 in -126..127."""
    shifted = binary(b, "shl", exponent, Const(u32, 23))
    return bitcast(b, _add(b, shifted, Const(i32, _ONE_BITS)), f32)


def _times_power_of_two(b: Builder, x: Operand, exponent: Operand) -> Operand:
    """x·2^exponent for x near 1, rounded once; in two steps, as 2^exponent may be no f32."""
    half = binary(b, "shr", exponent, Const(u32, 1))
    rest = binary(b, "sub", exponent, half)
    return _mul(b, _mul(b, x, _power_of_two(b, half)), _power_of_two(b, rest))


def _clamp(b: Builder, x: Operand, low: float, high: float) -> Operand:
    """x within bounds; NaN stays."""
    return binary(b, "min_nan", binary(b, "max_nan", x, _f(low)), _f(high))


# -- exponentials ------------------------------------------------------------------------------
def _exp_parts(b: Builder, x: Operand) -> tuple[Operand, Operand]:
    """(p, n) with e^x = p·2^n, for |x| < 2^21."""
    whole, n = _to_integer(b, fma(b, x, _f(_LOG2_E), _f(_TO_INTEGER)))
    f = fma(b, whole, _f(-_LN_2), x)
    f = fma(b, whole, _f(-_LN_2_LOW), f)
    return _polynomial(b, f, (*_EXP, 1.0, 1.0)), n


def exp(b: Builder, x: Operand) -> Operand:
    """e^x; 0 and infinity where that is the nearest, subnormal results rounded."""
    return _times_power_of_two(b, *_exp_parts(b, _clamp(b, x, -105.0, 90.0)))


def _exp2_parts(b: Builder, x: Operand, coefficients: Sequence[float]) -> tuple[Operand, Operand]:
    """(p, n) with 2^x = p·2^n, for |x| < 2^22."""
    whole, n = _to_integer(b, _add(b, x, _f(_TO_INTEGER)))
    return _polynomial(b, binary(b, "sub", x, whole), (*coefficients, 1.0)), n


def exp2(b: Builder, x: Operand) -> Operand:
    """2^x; 0 and infinity where that is the nearest, subnormal results rounded."""
    return _times_power_of_two(b, *_exp2_parts(b, _clamp(b, x, -151.0, 129.0), _EXP2))


# -- logarithms --------------------------------------------------------------------------------
def _log_parts(b: Builder, x: Operand) -> tuple[Operand, Operand]:
    """(l, e) with ln x = l + e·ln 2 and |l| ≤ ln(2)/2, for finite x > 0."""
    subnormal = compare(b, "lt", x, _f(2.0**-126))
    normal = select(b, subnormal, _mul(b, x, _f(2.0**23)), x)
    bits = bitcast(b, normal, i32)
    above = binary(b, "sub", bits, Const(i32, 0x3F3504F3))  # √½
    exponent = binary(b, "shr", above, Const(u32, 23))
    scale = binary(b, "shl", exponent, Const(u32, 23))
    f = _add(b, bitcast(b, binary(b, "sub", bits, scale), f32), _f(-1.0))
    tail = _polynomial(b, f, (*_LOG, -0.5))
    logarithm = fma(b, tail, _mul(b, f, f), f)
    exponent = _add(b, exponent, select(b, subnormal, Const(i32, -23), Const(i32, 0)))
    return logarithm, _small_to_f32(b, exponent)


def _small_to_f32(b: Builder, x: Operand) -> Operand:
    """An i32 below 2^22 as f32, by adding instead of the slower conversion."""
    shifted = bitcast(b, _add(b, x, Const(i32, _TO_INTEGER_BITS)), f32)
    return binary(b, "sub", shifted, _f(_TO_INTEGER))


def _unless_special(b: Builder, x: Operand, value: Operand) -> Operand:
    """`value` for finite x > 0; else what every logarithm is there: −∞ at 0, x or NaN."""
    bits = bitcast(b, x, u32)
    less = binary(b, "sub", bits, Const(u32, 1))
    ordinary = compare(b, "lt", less, Const(u32, 0x7F7FFFFF))
    return select(b, ordinary, value, direct(b, "log2_approx", x))


def log(b: Builder, x: Operand) -> Operand:
    """The natural logarithm; −∞ at 0, NaN below."""
    logarithm, exponent = _log_parts(b, x)
    low = fma(b, exponent, _f(_LN_2_LOW), logarithm)
    return _unless_special(b, x, fma(b, exponent, _f(_LN_2), low))


def log2(b: Builder, x: Operand) -> Operand:
    """The logarithm of base 2, exact for powers of two; −∞ at 0, NaN below."""
    logarithm, exponent = _log_parts(b, x)
    low = fma(b, logarithm, _f(_LOG2_E_LOW), exponent)
    return _unless_special(b, x, fma(b, logarithm, _f(_LOG2_E), low))


# -- sigmoids ----------------------------------------------------------------------------------
def tanh(b: Builder, x: Operand) -> Operand:
    """The hyperbolic tangent: odd polynomial below 0.55, 1 − 2/(e^2x + 1) above."""
    magnitude = unary(b, "abs", x)
    square = _mul(b, x, x)
    cube = _mul(b, square, magnitude)
    small = fma(b, _polynomial(b, square, _TANH), cube, magnitude)
    doubled = binary(b, "min_nan", _add(b, magnitude, magnitude), _f(20.0))  # tanh 10 is 1
    p, n = _exp_parts(b, doubled)
    growth = fma(b, p, _power_of_two(b, n), _f(1.0))
    large = fma(b, direct(b, "rcp", growth), _f(-2.0), _f(1.0))
    near_zero = compare(b, "lt", magnitude, _f(0.55))
    return binary(b, "copysign", select(b, near_zero, small, large), x)


def erf(b: Builder, x: Operand) -> Operand:
    """The error function: odd polynomial below 0.9, 1 − 2^q(x) above."""
    magnitude = unary(b, "abs", x)
    small = fma(b, _polynomial(b, _mul(b, x, x), _ERF), x, x)
    bounded = binary(b, "min_nan", magnitude, _f(3.93))  # erf is 1 from there on
    p, n = _exp2_parts(b, _polynomial(b, bounded, _LOG2_ERFC), _EXP2_SHORT)
    large = fma(b, unary(b, "neg", p), _power_of_two(b, n), _f(1.0))
    near_zero = compare(b, "lt", magnitude, _f(0.9))
    return select(b, near_zero, small, binary(b, "copysign", large, x))


def ndtr(b: Builder, x: Operand) -> Operand:
    """½ (1 + erf(x / √2)), within 2^-23."""
    half = _f(0.5)
    return fma(b, erf(b, _mul(b, x, _f(_SQRT_HALF))), half, half)


def ndtr_approx(b: Builder, x: Operand) -> Operand:
    """The same by one polynomial and the hardware's 2^x: 2^q(|x|) below 0, 1 − that above.

    Beyond the interval of the fit q goes down without end, as its first coefficient does.
    """
    tail = direct(b, "exp2_approx", _polynomial(b, unary(b, "abs", x), _LOG2_NDTR))
    above = binary(b, "sub", _f(1.0), tail)
    return select(b, compare(b, "lt", x, _f(0.0)), tail, above)


def sigmoid(b: Builder, x: Operand) -> Operand:
    """1 / (1 + e^-x); 0 where that is below 2^-128."""
    return direct(b, "rcp", _add(b, exp(b, unary(b, "neg", x)), _f(1.0)))


def rsqrt(b: Builder, x: Operand) -> Operand:
    """1 / √x, each step correctly rounded."""
    return direct(b, "rcp", direct(b, "sqrt", x))


# -- circular functions ------------------------------------------------------------------------
def _circular(b: Builder, x: Operand, quarters: int) -> Operand:
    """sin(x + quarters·π/2); NaN beyond ±2^20, where the reduction has no digits left.

    Source: Cody and Waite, Software Manual for the Elementary Functions, 1980, with fused steps.
    """
    whole, n = _to_integer(b, fma(b, x, _f(2 / math.pi), _f(_TO_INTEGER)))
    r = x
    for part in _HALF_PI:
        r = fma(b, whole, _f(-part), r)
    square = _mul(b, r, r)
    sine = fma(b, _polynomial(b, square, _SIN), _mul(b, square, r), r)
    cosine = _polynomial(b, square, (*_COS, -0.5, 1.0))
    quadrant = _add(b, n, Const(i32, quarters))
    odd = compare(b, "ne", binary(b, "and", quadrant, Const(i32, 1)), Const(i32, 0))
    sign = binary(b, "shl", binary(b, "and", quadrant, Const(i32, 2)), Const(u32, 30))
    bits = bitcast(b, select(b, odd, cosine, sine), i32)
    value = bitcast(b, binary(b, "xor", bits, sign), f32)
    reducible = compare(b, "le", unary(b, "abs", x), _f(2.0**20))
    return select(b, reducible, value, _f(math.nan))


def sin(b: Builder, x: Operand) -> Operand:
    """The sine of x in radians; NaN beyond ±2^20."""
    return _circular(b, x, 0)


def cos(b: Builder, x: Operand) -> Operand:
    """The cosine of x in radians; NaN beyond ±2^20."""
    return _circular(b, x, 1)


ACCURATE = {
    "exp": exp,
    "exp2": exp2,
    "log": log,
    "log2": log2,
    "rsqrt": rsqrt,
    "tanh": tanh,
    "sin": sin,
    "cos": cos,
    "erf": erf,
    "ndtr": ndtr,
    "sigmoid": sigmoid,
}
