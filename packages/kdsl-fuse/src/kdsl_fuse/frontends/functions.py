"""Products and functions of each element, for use inside `@kf.fuse`, named as in NumPy and ONNX."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import dtype_of
from kdsl_fuse.frontends.traced import TracedArray, apply


def matmul(a: Any, b: Any) -> TracedArray:
    """The matrix product a @ b, accumulated in f32."""
    return apply("MatMul", a, b)


def gemm(
    a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0,
    transA: bool = False, transB: bool = False,
) -> TracedArray:  # fmt: skip
    """alpha·a·b + beta·c for matrices, each of a and b turned on request: ONNX's Gemm."""
    turned = {"alpha": alpha, "beta": beta, "transA": transA, "transB": transB}
    return apply("Gemm", *((a, b) if c is None else (a, b, c)), **turned)


def linear(x: Any, weight: Any, bias: Any = None) -> TracedArray:
    """x · weightᵀ + bias for a weight [outputs, inputs], as in torch."""
    product = apply("MatMul", x, apply("Transpose", weight, perm=(1, 0)))
    return product if bias is None else apply("Add", product, bias)


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


def reciprocal(x: Any) -> TracedArray:
    """1 / x."""
    return apply("Reciprocal", x)


def sign(x: Any) -> TracedArray:
    """−1, 0 or 1; NaN stays."""
    return apply("Sign", x)


def floor(x: Any) -> TracedArray:
    """The largest whole number not above x."""
    return apply("Floor", x)


def ceil(x: Any) -> TracedArray:
    """The smallest whole number not below x."""
    return apply("Ceil", x)


def sin(x: Any) -> TracedArray:
    """The sine of an angle in radians."""
    return apply("Sin", x)


def cos(x: Any) -> TracedArray:
    """The cosine of an angle in radians."""
    return apply("Cos", x)


def isnan(x: Any) -> TracedArray:
    """Whether x is not a number."""
    return apply("IsNaN", x)


def logical_and(a: Any, b: Any) -> TracedArray:
    """Whether both hold."""
    return apply("And", a, b)


def logical_or(a: Any, b: Any) -> TracedArray:
    """Whether at least one holds."""
    return apply("Or", a, b)


def logical_xor(a: Any, b: Any) -> TracedArray:
    """Whether exactly one holds."""
    return apply("Xor", a, b)


def logical_not(a: Any) -> TracedArray:
    """Whether it does not hold."""
    return apply("Not", a)


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


def leaky_relu(x: Any, alpha: float = 0.01) -> TracedArray:
    """x, or alpha·x where x is negative."""
    return apply("LeakyRelu", x, alpha=float(alpha))


def elu(x: Any, alpha: float = 1.0) -> TracedArray:
    """x, or alpha·(eˣ − 1) where x is negative."""
    return apply("Elu", x, alpha=float(alpha))


def softplus(x: Any) -> TracedArray:
    """ln(1 + eˣ)."""
    return apply("Softplus", x)


def hard_sigmoid(x: Any, alpha: float = 0.2, beta: float = 0.5) -> TracedArray:
    """alpha·x + beta limited to 0 … 1."""
    return apply("HardSigmoid", x, alpha=float(alpha), beta=float(beta))


def hard_swish(x: Any) -> TracedArray:
    """x · hard_sigmoid(x, 1/6, 1/2)."""
    return apply("HardSwish", x)


def mish(x: Any) -> TracedArray:
    """x · tanh(softplus(x))."""
    return apply("Mish", x)
