"""Tensors seen the other way round."""

from __future__ import annotations

import kdsl_core as kd


def turned(matrix: kd.Tensor) -> kd.Tensor:
    """The tensor with its first two modes exchanged."""
    rest = range(2, len(matrix.layout))
    return matrix.with_layout(kd.select(matrix.layout, (1, 0, *rest)))
