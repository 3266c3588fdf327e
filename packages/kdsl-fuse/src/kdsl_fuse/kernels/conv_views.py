"""Images, filters and results of a convolution as the views that its kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.strided import Strided


def group_of(x: Any, mode: int, group: int, groups: int) -> Any:
    """The part of an array that belongs to one of the groups that `mode` is split into."""
    if groups == 1:
        return x
    facts = facts_of(x, "operand")
    shape, strides = list(facts.shape), tuple(facts.strides)
    shape[mode] //= groups
    return arrays.view(x, Strided(tuple(shape), strides, group * shape[mode] * strides[mode]))


def filter_view(w: Any) -> Any:
    """Filters (k, r, s, c) as (k, c, taps); None where that takes a copy."""
    facts = facts_of(w, "w")
    k, r, s, c = facts.shape
    if r > 1 and s > 1 and facts.strides[1] != s * facts.strides[2]:
        return None
    tap = facts.strides[2] if s > 1 else facts.strides[1]
    return arrays.view(w, Strided((k, c, r * s), (facts.strides[0], facts.strides[3], tap)))


def matrix_view(x: Any, shape: Sequence[int]) -> Any:
    """An array that broadcasts to (n, p, q, k) as a matrix of pixels × channels.

    None where that takes a copy.
    """
    facts = facts_of(x, "x")
    n, p, q, k = shape
    seen = Strided(tuple(facts.shape), tuple(facts.strides)).broadcast((n, p, q, k))
    rows = Strided(seen.shape[:3], seen.strides[:3]).reshaped((n * p * q,))
    if rows is None:
        return None
    return arrays.view(x, Strided((n * p * q, k), (rows.strides[0], seen.strides[3])))
