"""Softmax and the normalisations: each row by its own statistics, or each channel by given ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, axes_of, promote, require


def softmax(x: Any, axis: int) -> Any:
    """eˣ / Σ eˣ along an axis, with the largest x taken off first; a row of −∞ is NaN."""
    powers = np.exp(x - np.max(x, axis, keepdims=True))
    return powers / np.sum(powers, axis, keepdims=True)


def log_softmax(x: Any, axis: int) -> Any:
    """The logarithm of `softmax`, without computing its small values."""
    shifted = x - np.max(x, axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def layer_norm(x: Any, scale: Any = 1, bias: Any = 0, *, axis: int, epsilon: float) -> Any:
    """(x − mean) / √(variance + ε) · scale + bias over the axes from `axis` on."""
    axes = tuple(range(axis, x.ndim))
    centred = x - np.mean(x, axes, keepdims=True)
    variance = np.mean(centred * centred, axes, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * scale + bias


def rms_norm(x: Any, scale: Any = 1, *, axis: int, epsilon: float) -> Any:
    """x / √(mean of x² + ε) · scale over the axes from `axis` on."""
    axes = tuple(range(axis, x.ndim))
    return x / np.sqrt(np.mean(x * x, axes, keepdims=True) + epsilon) * scale


def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    """(x − mean) / √(variance + ε) · scale + bias with one of each for a channel, axis 1."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (np.reshape(v, shape) for v in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def _infer_softmax(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    require("float", op, operands, loc)
    axes_of(op, (op["axis"],), x.rank, loc)
    return x.shape, x.dtype


def _infer_norm(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    x, *parameters = operands
    require("float", op, operands, loc)
    (axis,) = axes_of(op, (op["axis"],), x.rank, loc)
    for parameter in parameters:
        if parameter.shape != x.shape[axis:]:
            raise _parameter(op, x, parameter, x.shape[axis:], loc)
    return x.shape, promote(op, operands, loc)


def _infer_batch_norm(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    x, *parameters = operands
    require("float", op, operands, loc)
    axes_of(op, (1,), x.rank, loc)
    for parameter in parameters:
        if parameter.shape != (x.shape[1],):
            raise _parameter(op, x, parameter, (x.shape[1],), loc)
    return x.shape, promote(op, operands, loc)


def _parameter(
    op: Op, x: Node, parameter: Node, shape: tuple[int, ...], loc: Loc | None
) -> FusionError:
    return FusionError(
        f"{op.name} of {x} takes parameters of shape {list(shape)}, got {parameter}",
        code="K957",
        loc=loc,
        notes=[x.note(), parameter.note()],
        fix="give it one number for each element that is normalised together",
    )


NORMALIZATION = (
    OpDef("Softmax", _infer_softmax, softmax),
    OpDef("LogSoftmax", _infer_softmax, log_softmax),
    OpDef("LayerNormalization", _infer_norm, layer_norm),
    OpDef("RMSNormalization", _infer_norm, rms_norm),
    OpDef("BatchNormalization", _infer_batch_norm, batch_norm),
)
