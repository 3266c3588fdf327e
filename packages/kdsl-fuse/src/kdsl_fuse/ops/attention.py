"""Scaled dot-product attention, and the cross-entropy loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.dtypes import boolean
from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, promote, require
from kdsl_fuse.ops.normalization import log_softmax, softmax
from kdsl_fuse.strided import broadcasts


def attention(q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool, scale: float) -> Any:
    """softmax(q · kᵀ · scale + mask) · v; each key and value head serves a group of query heads.

    A truth value of `mask` says whether a query sees a key, a number is added. `causal` hides the
    keys behind a query's own place, counted from the first.
    Source: Vaswani et al., Attention Is All You Need (2017).
    """
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    if groups > 1:
        k, v = (np.repeat(x, groups, axis=-3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        rows, columns = (np.arange(size) for size in scores.shape[-2:])
        scores = np.where(columns <= rows[:, None], scores, -np.inf)
    return softmax(scores, -1) @ v


def cross_entropy(scores: Any, labels: Any, reduction: str, ignore_index: int | None) -> Any:
    """−log softmax(scores)[label] of each row, or their sum or mean without those ignored."""
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    rows = np.where(counted, labels, 0)[:, None, ...]
    each = -np.take_along_axis(log_softmax(scores, 1), rows, 1)[:, 0, ...]
    each = np.where(counted, each, np.asarray(0, scores.dtype))
    if reduction == "none":
        return each
    total = each.sum(dtype=scores.dtype)
    return total if reduction == "sum" else total / counted.sum()


def _infer_attention(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    q, k, v, *masks = operands
    require("float", op, operands[:3], loc)
    dtype = promote(op, operands[:3], loc)
    *outer, rows, depth = q.shape if q.rank >= 2 else (0, 0)
    fits = q.rank == k.rank == v.rank >= 2 and (k.shape[-1], v.shape[:-1]) == (depth, k.shape[:-1])
    fits = fits and q.shape[:-3] == k.shape[:-3]
    fits = fits and (q.rank == 2 or (k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0))
    if fits and masks:
        scores = (*outer, rows, k.shape[-2])
        fits = broadcasts(masks[0].shape, scores)
        fits = fits and (masks[0].dtype is boolean or masks[0].dtype.is_float)
    if not fits:
        raise FusionError(
            "attention takes q: […, heads, m, d], k: […, groups, n, d], v: […, groups, n, e] and a "
            f"mask that broadcasts to […, heads, m, n], got "
            f"{', '.join(str(list(node.shape)) for node in operands)}",
            code="K958",
            loc=loc,
            notes=[node.note() for node in operands],
            fix="put the axis of the heads before rows and columns: kf.transpose(x, (0, 2, 1, 3))",
        )
    return (*outer, rows, v.shape[-1]), dtype


def _infer_cross_entropy(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    scores, labels = operands
    require("float", op, operands[:1], loc)
    fits = scores.rank >= 2 and labels.shape == (scores.shape[0], *scores.shape[2:])
    fits = fits and not labels.dtype.is_float and labels.dtype is not boolean
    if not fits or op["reduction"] not in ("none", "sum", "mean"):
        raise FusionError(
            "cross-entropy takes scores [n, classes, …], integer labels [n, …] and the reduction "
            f"none, sum or mean, got {scores}, {labels} and {op['reduction']!r}",
            code="K959",
            loc=loc,
            notes=[scores.note(), labels.note()],
            fix="move the classes to axis 1, and cast labels to integers",
        )
    return labels.shape if op["reduction"] == "none" else (), scores.dtype


ATTENTION = (
    OpDef("Attention", _infer_attention, attention),
    OpDef("SoftmaxCrossEntropyLoss", _infer_cross_entropy, cross_entropy),
)
