"""Mathematical functions on scalars; on Python numbers they are meta code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kdsl_core.dtypes import f32, f64
from kdsl_core.ir import Operand
from kdsl_core.isa import arith, compare, functions
from kdsl_core.isa import math as isa_math
from kdsl_core.lang.scalar import Scalar, as_scalar, unify
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import int_tuple


def _function(name: str, x: Any, approx: bool, python: Callable[[float], float]) -> Any:
    if not isinstance(x, Scalar):
        return python(x)
    return Scalar(isa_math.function(builder(), name, x.operand, approx))


def exp(x: Any, approx: bool = False) -> Any:
    """e to the power x."""
    return _function("exp", x, approx, math.exp)


def exp2(x: Any, approx: bool = False, *, ftz: bool = False) -> Any:
    """2 to the power x; with `ftz`, which is approximate, 0 for subnormal results.

    `ftz` takes one instruction where `approx` alone takes four: the assembler scales around it.
    """
    if ftz and isinstance(x, Scalar) and x.dtype is f32:
        return Scalar(functions.direct(builder(), "exp2_ftz_approx", x.operand))
    return _function("exp2", x, approx or ftz, lambda v: 2.0**v)


def log(x: Any, approx: bool = False) -> Any:
    """The natural logarithm."""
    return _function("log", x, approx, math.log)


def log2(x: Any, approx: bool = False) -> Any:
    """The logarithm to base 2."""
    return _function("log2", x, approx, math.log2)


def sqrt(x: Any, approx: bool = False) -> Any:
    """The square root."""
    return _function("sqrt", x, approx, math.sqrt)


def rsqrt(x: Any, approx: bool = False) -> Any:
    """One over the square root."""
    return _function("rsqrt", x, approx, lambda v: 1.0 / math.sqrt(v))


def tanh(x: Any, approx: bool = False) -> Any:
    """The hyperbolic tangent."""
    return _function("tanh", x, approx, math.tanh)


def sin(x: Any, approx: bool = False) -> Any:
    """The sine of an angle in radians."""
    return _function("sin", x, approx, math.sin)


def cos(x: Any, approx: bool = False) -> Any:
    """The cosine of an angle in radians."""
    return _function("cos", x, approx, math.cos)


def erf(x: Any, approx: bool = False) -> Any:
    """The error function."""
    return _function("erf", x, approx, math.erf)


def ndtr(x: Any, approx: bool = False) -> Any:
    """The distribution function of the standard normal distribution, ½ (1 + erf(x / √2)).

    The result is within 2^-23 of the true one; towards −∞ digits of it are lost, with `approx` ten
    times fewer.
    """
    return _function("ndtr", x, approx, lambda v: 0.5 * math.erfc(-v * math.sqrt(0.5)))


def sigmoid(x: Any, approx: bool = False) -> Any:
    """1 / (1 + exp(−x))."""
    return _function("sigmoid", x, approx, lambda v: 1.0 / (1.0 + math.exp(-v)))


def floor(x: Any) -> Any:
    """The largest integer value not above x."""
    return _function("floor", x, False, math.floor)


def ceil(x: Any) -> Any:
    """The smallest integer value not below x."""
    return _function("ceil", x, False, math.ceil)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x · y + z, rounded once."""
    a, b = unify(x, y)
    a, c = unify(a, z)
    b, c = unify(b, c)
    return Scalar(arith.fma(builder(), a.operand, b.operand, c.operand))


def minimum(x: Any, y: Any, *, nan: bool = False) -> Any:
    """The smaller of two numbers; for floats the one that is not NaN, or with `nan` NaN."""
    if not isinstance(x, Scalar) and not isinstance(y, Scalar):
        return min(x, y)
    return _extreme("min", x, y, nan)


def maximum(x: Any, y: Any, *, nan: bool = False) -> Any:
    """The larger of two numbers; for floats the one that is not NaN, or with `nan` NaN."""
    if not isinstance(x, Scalar) and not isinstance(y, Scalar):
        return max(x, y)
    return _extreme("max", x, y, nan)


def _extreme(name: str, x: Any, y: Any, nan: bool) -> Scalar:
    a, b = unify(x, y)
    operand = _chosen(name, a, b, nan and a.dtype.is_float)
    bounds = [v.bound for v in (a, b) if v.bound is not None]
    known = bounds and (name == "min" or len(bounds) == 2) and a.nonneg and b.nonneg
    bound = (min if name == "min" else max)(bounds) if known else None
    return Scalar(operand, nonneg=a.nonneg and b.nonneg, bound=bound)


def _chosen(name: str, a: Scalar, b: Scalar, nan: bool) -> Operand:
    if nan and a.dtype is not f64:
        return arith.binary(builder(), f"{name}_nan", a.operand, b.operand)
    plain = arith.binary(builder(), name, a.operand, b.operand)
    if not nan:
        return plain
    return as_scalar(where(a != a, a, where(b != b, b, Scalar(plain)))).operand


def absolute(x: Any) -> Any:
    """The absolute value."""
    return abs(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y; both are computed."""
    if isinstance(condition, bool):
        return x if condition else y
    a, b = unify(x, y)
    chosen = compare.select(builder(), as_scalar(condition).operand, a.operand, b.operand)
    return Scalar(chosen, nonneg=a.dtype.is_int and a.nonneg and b.nonneg)


def ceil_div(x: Any, y: Any) -> Any:
    """x / y rounded up, for integers ≥ 0; of a tuple as `kd.layout.ceil_div` has it, by modes.

    Raises: LayoutError K104 where y has more modes than x.
    """
    if isinstance(x, tuple):
        return int_tuple.ceil_div(x, y)
    return (x + y - 1) // y
