"""Ways to sum a matrix product, to find out which one gave some bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.isa.tensor_core import multiply_accumulate
from kdsl_runtime.compare.recording import Array

Partials: TypeAlias = Iterator[Array]
_SPLITS = (2, 4, 8)
_CHUNKS = (32, 64, 128)


@dataclass(frozen=True)
class Way:
    """Sums of a[s] · b[s] for rows of operands (S, K), step after step.

    `partials` gives (S,) after each `step` elements of K where `ascending`, else the total only.
    """

    words: str
    step: int
    partials: Callable[[Array, Array], Partials]
    ascending: bool = True

    def total(self, a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
        """The sums, rounded to a type."""
        *_, last = self.partials(a, b)
        return np.asarray(last.astype(dtype))


def way_of(a: Array, b: Array, wanted: Array) -> Way | None:
    """The first way that gives every bit of the sums `wanted` (S,) of rows (S, K)."""
    bits = wanted.tobytes()
    with np.errstate(all="ignore"):
        ways = (way for way in ways_of(a.dtype) if a.shape[1] % way.step == 0)
        return next((w for w in ways if w.total(a, b, wanted.dtype).tobytes() == bits), None)


def first_parting(one: Way, other: Way, a: Array, b: Array) -> tuple[int, int] | None:
    """The elements [begin, end) of K behind whose step two ways have different sums so far.

    Shapes: one row each, (1, K). None where one of them does not go up along K.
    """
    if not (one.ascending and other.ascending):
        return None
    step = int(np.lcm(one.step, other.step))
    sums = [
        np.concatenate([*way.partials(a, b)])[step // way.step - 1 :: step // way.step]
        for way in (one, other)
    ]
    apart = np.nonzero(sums[0].astype(np.float64) != sums[1].astype(np.float64))[0]
    return (int(apart[0]) * step, int(apart[0] + 1) * step) if apart.size else None


def ways_of(dtype: np.dtype[Any]) -> list[Way]:
    """Ways to sum products of operands of a type, the usual ones first."""
    base = [*_tensor_ways(dtype)]
    if dtype.itemsize > 1:
        base.append(Way("fused multiply-adds in f32, one after the other", 1, _fused))
        base.append(Way("products rounded to f32, added one after the other", 1, _rounded))
    turned = [
        Way(f"{way.words}, from the last step to the first", way.step, partial(_down, way), False)
        for way in base
    ]
    split = [
        Way(f"{count} parts of K apart, each by {way.words}", way.step * count,
            partial(_split, way, count), False)
        for way in base for count in _SPLITS
    ]  # fmt: skip
    promoted = [
        Way(f"parts of {chunk} along K by {way.words}, added in f32", chunk,
            partial(_promoted, way, chunk))
        for way in base for chunk in _CHUNKS
    ]  # fmt: skip
    exact = Way("exact sums, rounded once", 1, _exact)
    return [*base, *turned, *promoted, *split, exact]


def _tensor_ways(dtype: np.dtype[Any]) -> Iterator[Way]:
    depth = 32 // dtype.itemsize
    kinds = [(np.float32, "f32")] + [(np.float16, "f16")] * (dtype == np.float16)
    for kind, name in kinds:
        for step in (depth, depth // 2):
            words = f"tensor-core steps of {step} along K into {name}"
            yield Way(words, step, partial(_tensor, kind, step))


def _tensor(kind: type, step: int, a: Array, b: Array) -> Partials:
    total: Array = np.zeros((len(a), 1, 1), kind)
    for k in range(0, a.shape[1], step):
        x, y = (operand[:, None, k : k + step] for operand in (a, b))
        total = multiply_accumulate(x, y, total)
        yield total[:, 0, 0]


def _fused(a: Array, b: Array) -> Partials:
    total = np.zeros(len(a), np.float32)
    for x, y in zip(a.T, b.T, strict=True):
        total = (x.astype(np.longdouble) * y.astype(np.longdouble) + total).astype(np.float32)
        yield total


def _rounded(a: Array, b: Array) -> Partials:
    total = np.zeros(len(a), np.float32)
    for x, y in zip(a.astype(np.float32).T, b.astype(np.float32).T, strict=True):
        total = total + x * y
        yield total


def _exact(a: Array, b: Array) -> Partials:
    yield from np.add.accumulate(a.T.astype(np.float64) * b.T.astype(np.float64))


def _down(way: Way, a: Array, b: Array) -> Partials:
    order = np.arange(a.shape[1]).reshape(-1, way.step)[::-1].reshape(-1)
    *_, last = way.partials(a[:, order], b[:, order])
    yield last


def _promoted(way: Way, chunk: int, a: Array, b: Array) -> Partials:
    total = np.zeros(len(a), np.float32)
    for k in range(0, a.shape[1], chunk):
        *_, part = way.partials(a[:, k : k + chunk], b[:, k : k + chunk])
        total = total + part.astype(np.float32)
        yield total


def _split(way: Way, count: int, a: Array, b: Array) -> Partials:
    parts = zip(*(np.split(x, count, axis=1) for x in (a, b)), strict=True)
    totals = [[*way.partials(x, y)][-1].astype(np.float32) for x, y in parts]
    yield sum(totals[1:], totals[0])
