"""Arithmetic on scalars by name, and choices; on Python numbers they are meta code."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import f64
from kdsl_core.ir import Operand
from kdsl_core.isa import arith, compare
from kdsl_core.lang.scalar import Scalar, as_scalar, unify
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import int_tuple


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
