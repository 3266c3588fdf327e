"""Array functions for use inside `@kf.fuse`, named as in NumPy and ONNX."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import dtype_of
from kdsl_fuse.frontends.traced import TracedArray, apply


def matmul(a: Any, b: Any) -> TracedArray:
    """The matrix product a @ b, accumulated in f32."""
    return apply("MatMul", a, b)


def transpose(x: Any) -> TracedArray:
    """The matrix with its axes swapped, as a view."""
    return apply("Transpose", x)


def cast(x: Any, dtype: Any) -> TracedArray:
    """`x` rounded to `dtype`: one of the stated casts of the function."""
    return apply("Cast", x, to=dtype_of(dtype).name)


def where(condition: Any, a: Any, b: Any) -> TracedArray:
    """`a` where `condition` holds, `b` elsewhere."""
    return apply("Where", condition, a, b)


def maximum(a: Any, b: Any) -> TracedArray:
    """The larger of two; NaN if either is NaN."""
    return apply("Max", a, b)


def minimum(a: Any, b: Any) -> TracedArray:
    """The smaller of two; NaN if either is NaN."""
    return apply("Min", a, b)


def clip(x: Any, low: Any = None, high: Any = None) -> TracedArray:
    """`x` limited to low … high; a bound that is None does not limit."""
    if low is None:
        return minimum(x, high)
    return maximum(x, low) if high is None else apply("Clip", x, low, high)


def absolute(x: Any) -> TracedArray:
    """|x|."""
    return apply("Abs", x)


def exp(x: Any) -> TracedArray:
    """eˣ."""
    return apply("Exp", x)


def log(x: Any) -> TracedArray:
    """The natural logarithm."""
    return apply("Log", x)


def sqrt(x: Any) -> TracedArray:
    """The square root."""
    return apply("Sqrt", x)


def rsqrt(x: Any) -> TracedArray:
    """1 / √x."""
    return apply("Rsqrt", x)


def square(x: Any) -> TracedArray:
    """x²."""
    return apply("Pow", x, exponent=2)


def tanh(x: Any) -> TracedArray:
    """The hyperbolic tangent."""
    return apply("Tanh", x)


def erf(x: Any) -> TracedArray:
    """The error function."""
    return apply("Erf", x)


def relu(x: Any) -> TracedArray:
    """max(x, 0)."""
    return apply("Relu", x)


def gelu(x: Any, approximate: str = "none") -> TracedArray:
    """x·Φ(x); `approximate="tanh"` takes the tanh formula for Φ."""
    return apply("Gelu", x, approximate=approximate)


def silu(x: Any) -> TracedArray:
    """x·σ(x), also called swish."""
    return apply("Silu", x)


def sigmoid(x: Any) -> TracedArray:
    """1 / (1 + e⁻ˣ)."""
    return apply("Sigmoid", x)
