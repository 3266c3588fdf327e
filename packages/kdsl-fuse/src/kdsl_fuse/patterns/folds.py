"""How kernels of two or three modes see values of more axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from kdsl_fuse.strided import Strided

Fold = Callable[[Strided], Strided | None]
"""From a view with a result's axes to one with a kernel's modes; None where strides forbid it."""


def as_is(layout: Strided) -> Strided:
    """All axes as they are; of what repeats along others, those of size 1 repeat as well."""
    axes = list(zip(layout.shape, layout.strides, strict=True))
    if all(step for size, step in axes if size > 1):
        return layout
    return replace(layout, strides=tuple(0 if size == 1 else step for size, step in axes))


def as_rows(layout: Strided) -> Strided | None:
    """A matrix (m, n): all axes but the last are rows."""
    if len(layout.shape) == 2:
        return layout
    return layout.reshaped((math.prod(layout.shape[:-1]), layout.shape[-1]))


def as_batch(layout: Strided) -> Strided | None:
    """Matrices (m, n, batch): all axes but the last two are one behind them."""
    *outer, m, n = layout.shape
    batch = layout.reshaped((math.prod(outer), m, n))
    return None if batch is None else batch.permuted((1, 2, 0))
