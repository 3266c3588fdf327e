"""Mathematical functions on scalars; on Python numbers they are meta code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kdsl_core.dtypes import f32
from kdsl_core.isa import functions
from kdsl_core.isa import math as isa_math
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder


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


def reciprocal(x: Any, approx: bool = False) -> Any:
    """One over x, correctly rounded or, if `approx`, within one ulp."""
    return _function("rcp", x, approx, lambda v: 1.0 / v)


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
