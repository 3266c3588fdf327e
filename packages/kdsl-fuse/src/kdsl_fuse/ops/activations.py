"""Activation functions, each as the formula that both NumPy and the kernel evaluate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, pointwise

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_erf_of_each = np.frompyfunc(math.erf, 1, 1)
FLOAT = pointwise("float")


def erf(x: Any) -> Any:
    """The error function of each element, in f64, returned in the dtype of `x`."""
    return np.asarray(_erf_of_each(np.asarray(x, np.float64)), np.float64).astype(x.dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ); e⁻ˣ may overflow to infinity, whose reciprocal is the right limit."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    """ln(1 + eˣ), as max(x, 0) + ln(1 + e^−|x|), which does not overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softplus_kernel(kd: Any, x: Any) -> Any:
    return kd.where(x > 0.0, x, 0.0) + kd.log(1.0 + kd.exp(-kd.abs(x)))


def gelu(x: Any, approximate: str) -> Any:
    """x·Φ(x), with Φ from erf ("none") or from the tanh formula ("tanh").

    Source: Hendrycks & Gimpel, Gaussian Error Linear Units (2016).
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * _SQRT_HALF))


def _gelu_kernel(kd: Any, x: Any, approximate: str) -> Any:
    """The same; ½ (1 + tanh y) is the sigmoid of 2 y."""
    if approximate == "tanh":
        return x * kd.sigmoid(2 * _SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))
    return x * kd.ndtr(x)


def _mish_kernel(kd: Any, x: Any) -> Any:
    return x * kd.tanh(_softplus_kernel(kd, x))


def _limited(kd: Any, x: Any) -> Any:
    """x limited to 0 … 1; NaN goes through."""
    return kd.where(x < 0.0, 0.0, kd.where(x > 1.0, 1.0, x))


def _infer_gelu(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    if op["approximate"] not in ("none", "tanh"):
        raise FusionError(
            f"gelu has the forms 'none' and 'tanh', got approximate={op['approximate']!r}",
            code="K919",
            loc=loc,
            notes=[operands[0].note()],
        )
    return FLOAT(op, operands, loc)


ACTIVATIONS = (
    OpDef("Relu", FLOAT, lambda x: np.maximum(x, 0), lambda kd, x: kd.where(x < 0.0, 0.0, x)),
    OpDef("Gelu", _infer_gelu, gelu, _gelu_kernel),
    OpDef("Sigmoid", FLOAT, sigmoid, lambda kd, x: kd.sigmoid(x)),
    OpDef("Silu", FLOAT, lambda x: x * sigmoid(x), lambda kd, x: x * kd.sigmoid(x)),
    OpDef(
        "LeakyRelu",
        FLOAT,
        lambda x, alpha: np.where(x < 0, alpha * x, x),
        lambda kd, x, alpha: kd.where(x < 0.0, alpha * x, x),
    ),
    OpDef(
        "Elu",
        FLOAT,
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        lambda kd, x, alpha: kd.where(x < 0.0, alpha * (kd.exp(x) - 1.0), x),
    ),
    OpDef("Softplus", FLOAT, softplus, _softplus_kernel),
    OpDef(
        "HardSigmoid",
        FLOAT,
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        lambda kd, x, alpha, beta: _limited(kd, alpha * x + beta),
    ),
    OpDef(
        "HardSwish",
        FLOAT,
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        lambda kd, x: x * _limited(kd, x * (1 / 6) + 0.5),
    ),
    OpDef("Mish", FLOAT, lambda x: x * np.tanh(softplus(x)), _mish_kernel),
    OpDef("Tanh", FLOAT, np.tanh, lambda kd, x: kd.tanh(x)),
    OpDef("Erf", FLOAT, erf, lambda kd, x: kd.erf(x)),
)
