"""Arithmetic, comparison, selection and casts: one element of the result from one of each operand.

NaN goes through Max, Min, Clip and Relu as it does in NumPy; therefore they are written with
comparisons, because the hardware's plain max and min drop NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.dtypes import boolean, dtype_of
from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, broadcast, compare, pointwise, promote, require

NUMBER, FLOAT, BOOLEAN = pointwise("number"), pointwise("float"), pointwise("boolean")


def _select(kd: Any, condition: Any, a: Any, b: Any) -> Any:
    """`a` where `condition`, else `b`; between two Python numbers it is decided while tracing."""
    if isinstance(condition, bool):
        return a if condition else b
    return kd.where(condition, a, b)


def _maximum(kd: Any, a: Any, b: Any) -> Any:
    return _select(kd, b != b, b, _select(kd, a < b, b, a))


def _minimum(kd: Any, a: Any, b: Any) -> Any:
    return _select(kd, b != b, b, _select(kd, a > b, b, a))


def _clip(kd: Any, x: Any, low: Any, high: Any) -> Any:
    return _minimum(kd, _maximum(kd, x, low), high)


def _sign(kd: Any, x: Any) -> Any:
    return kd.where(x > 0.0, 1.0, kd.where(x < 0.0, -1.0, x))  # ±0 and NaN are their own sign


def _infer_is_nan(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    return FLOAT(op, operands, loc)[0], boolean


def _power(kd: Any, x: Any, exponent: int) -> Any:
    """x multiplied with itself by repeated squaring; a negative exponent divides 1 by it."""
    result: Any = None
    square, left = x, abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        square = square * square if left else square
    return 1.0 / result if exponent < 0 else result


def _infer_power(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (base,), exponent = operands, op["exponent"]
    if not isinstance(exponent, int) or exponent == 0 or abs(exponent) > 64:
        raise FusionError(
            f"Pow takes an exponent that is a Python int from −64 to 64 and not 0, "
            f"got {exponent!r}",
            code="K914",
            loc=loc,
            notes=[base.note()],
            fix="kf.sqrt(x) for 0.5, kf.rsqrt(x) for −0.5, kf.exp(y * kf.log(x)) in general",
        )
    require("float" if exponent < 0 else "number", op, operands, loc)
    return base.shape, base.dtype


def _infer_cast(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    return operands[0].shape, dtype_of(op["to"])


def _cast_reference(x: Any, to: str) -> Any:
    return np.asarray(x).astype(dtype_of(to).numpy)


def _cast_kernel(kd: Any, x: Any, to: str) -> Any:
    return x.to(dtype_of(to))


def _infer_where(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    require("boolean", op, operands[:1], loc)
    return broadcast(op, operands, loc), promote(op, operands[1:], loc)


POINTWISE = (
    OpDef("Add", NUMBER, np.add, lambda kd, a, b: a + b),
    OpDef("Sub", NUMBER, np.subtract, lambda kd, a, b: a - b),
    OpDef("Mul", NUMBER, np.multiply, lambda kd, a, b: a * b),
    OpDef("Div", FLOAT, np.divide, lambda kd, a, b: a / b),
    OpDef("Neg", NUMBER, np.negative, lambda kd, x: -x),
    OpDef("Abs", NUMBER, np.abs, lambda kd, x: kd.abs(x)),
    OpDef("Reciprocal", FLOAT, lambda x: 1 / x, lambda kd, x: 1.0 / x),
    OpDef("Sign", FLOAT, np.sign, _sign),
    OpDef("Floor", FLOAT, np.floor, lambda kd, x: kd.floor(x)),
    OpDef("Ceil", FLOAT, np.ceil, lambda kd, x: kd.ceil(x)),
    OpDef("Max", NUMBER, np.maximum, _maximum),
    OpDef("Min", NUMBER, np.minimum, _minimum),
    OpDef("Clip", NUMBER, lambda x, low, high: np.minimum(np.maximum(x, low), high), _clip),
    OpDef("Pow", _infer_power, lambda x, exponent: np.power(x, x.dtype.type(exponent)), _power),
    OpDef("Sqrt", FLOAT, np.sqrt, lambda kd, x: kd.sqrt(x)),
    OpDef("Rsqrt", FLOAT, lambda x: 1 / np.sqrt(x), lambda kd, x: kd.rsqrt(x)),
    OpDef("Exp", FLOAT, np.exp, lambda kd, x: kd.exp(x)),
    OpDef("Log", FLOAT, np.log, lambda kd, x: kd.log(x)),
    OpDef("Sin", FLOAT, np.sin, lambda kd, x: kd.sin(x)),
    OpDef("Cos", FLOAT, np.cos, lambda kd, x: kd.cos(x)),
    OpDef("IsNaN", _infer_is_nan, np.isnan, lambda kd, x: x != x),
    OpDef("Equal", compare, np.equal, lambda kd, a, b: a == b),
    OpDef("Less", compare, np.less, lambda kd, a, b: a < b),
    OpDef("LessOrEqual", compare, np.less_equal, lambda kd, a, b: a <= b),
    OpDef("Greater", compare, np.greater, lambda kd, a, b: a > b),
    OpDef("GreaterOrEqual", compare, np.greater_equal, lambda kd, a, b: a >= b),
    OpDef("And", BOOLEAN, np.logical_and, lambda kd, a, b: a & b),
    OpDef("Or", BOOLEAN, np.logical_or, lambda kd, a, b: a | b),
    OpDef("Xor", BOOLEAN, np.logical_xor, lambda kd, a, b: a ^ b),
    OpDef("Not", BOOLEAN, np.logical_not, lambda kd, x: ~x),
    OpDef("Where", _infer_where, np.where, lambda kd, c, a, b: kd.where(c, a, b)),
    OpDef("Cast", _infer_cast, _cast_reference, _cast_kernel),
)
