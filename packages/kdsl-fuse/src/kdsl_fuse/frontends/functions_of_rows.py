"""Reductions, normalisations, attention and losses, for use inside `@kf.fuse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_fuse.frontends.traced import TracedArray, apply

Axes = int | Sequence[int] | None


def _reduce(name: str, x: Any, axis: Axes, keepdims: bool) -> TracedArray:
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    counted = tuple(sorted(a + x.ndim if a < 0 else a for a in axes))
    return apply(name, x, axes=counted, keepdims=bool(keepdims))


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The sum over axes, all when none is given, accumulated in f32."""
    return _reduce("ReduceSum", x, axis, keepdims)


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The mean over axes, accumulated in f32."""
    return _reduce("ReduceMean", x, axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The largest over axes; NaN if any is NaN."""
    return _reduce("ReduceMax", x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The smallest over axes; NaN if any is NaN."""
    return _reduce("ReduceMin", x, axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The product over axes."""
    return _reduce("ReduceProd", x, axis, keepdims)


def var(x: Any, axis: Axes = None, keepdims: bool = False) -> TracedArray:
    """The mean of squared distances from the mean (divided by the count, as NumPy does)."""
    centred = x - mean(x, axis, keepdims=True)
    return mean(centred * centred, axis, keepdims)


def softmax(x: Any, axis: int = -1) -> TracedArray:
    """eˣ / Σ eˣ along an axis."""
    return apply("Softmax", x, axis=_axis(x, axis))


def log_softmax(x: Any, axis: int = -1) -> TracedArray:
    """ln(eˣ / Σ eˣ) along an axis."""
    return apply("LogSoftmax", x, axis=_axis(x, axis))


def layer_norm(
    x: Any, scale: Any = None, bias: Any = None, axis: int = -1, epsilon: float = 1e-5
) -> TracedArray:
    """(x − mean) / √(variance + ε) · scale + bias over the axes from `axis` on."""
    at = _axis(x, axis)
    if scale is None:
        result = apply("LayerNormalization", x, axis=at, epsilon=float(epsilon))
        return result if bias is None else apply("Add", result, bias)
    operands = (x, scale) if bias is None else (x, scale, bias)
    return apply("LayerNormalization", *operands, axis=at, epsilon=float(epsilon))


def rms_norm(x: Any, scale: Any = None, axis: int = -1, epsilon: float = 1e-5) -> TracedArray:
    """x / √(mean of x² + ε) · scale over the axes from `axis` on."""
    operands = (x,) if scale is None else (x, scale)
    return apply("RMSNormalization", *operands, axis=_axis(x, axis), epsilon=float(epsilon))


def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = 1e-5
) -> TracedArray:
    """(x − mean) / √(variance + ε) · scale + bias with given statistics of each channel, axis 1."""
    return apply("BatchNormalization", x, scale, bias, mean, variance, epsilon=float(epsilon))


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> TracedArray:
    """softmax(q · kᵀ · scale + mask) · v for […, heads, rows, columns]; scale is 1/√columns.

    Each head of k and v serves as many heads of q as there are more of them. A mask of truth values
    says which keys a query sees, one of numbers is added. `causal` hides the keys behind a query's
    own place, counted from the first.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return apply("Attention", *operands, causal=bool(causal), scale=factor)


def cross_entropy(
    scores: Any, labels: Any, reduction: str = "mean", ignore_index: int | None = None
) -> TracedArray:
    """−log softmax(scores)[label] of each row, or their sum, or their mean.

    `scores` is [n, classes, …], `labels` [n, …]. Rows whose label is `ignore_index` count nothing.
    """
    options = {"reduction": reduction, "ignore_index": ignore_index}
    return apply("SoftmaxCrossEntropyLoss", scores, labels, **options)


def _axis(x: Any, axis: int) -> int:
    return axis + int(x.ndim) if axis < 0 else axis
