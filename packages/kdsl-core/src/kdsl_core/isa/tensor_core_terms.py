"""Products as a tensor core's sums take them, a block of outputs at a time, by one of two ways."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kdsl_core.isa.scratch import SCRATCH
from kdsl_core.isa.tensor_core_operands import NARROW, Array, Operand, exponents_of
from kdsl_core.records import dataclass

BLOCK_PRODUCTS = 1 << 17  # products formed at a time, so that they stay in cache
FIELD = np.int32(0x7F800000)  # of a float32: its exponent
LOWEST = -2 * NARROW  # E of narrow products, also of zeros
_EXPONENT_AT = np.int32(23)


def blocks(
    shape: tuple[int, ...], limit: int, longest: int | None = None
) -> Iterator[tuple[slice, ...]]:
    """Parts of an array that have about `limit` elements, long along the last axes.

    The last one is not longer than `longest`.
    """
    steps: list[int] = []
    for size in reversed(shape):
        most = limit if longest is None or steps else min(limit, longest)
        steps.insert(0, max(min(size, most), 1))
        limit = max(limit // steps[0], 1)
    ranges = (range(0, size, step) for size, step in zip(shape, steps, strict=True))
    for starts in product(*ranges):
        yield tuple(slice(i, i + step) for i, step in zip(starts, steps, strict=True))


@dataclass(frozen=True, slots=True)
class Terms:
    """One operand of products by broadcasting: values and exponents (int16).

    Shapes: [S, K, …], which broadcast to [S, K, *outputs]; of one instruction without S.
    """

    value: Array
    exponent: Array

    def __getitem__(self, at: Any) -> Terms:
        """A part of each array."""
        return Terms(self.value[at], self.exponent[at])

    def block(self, s: tuple[slice, ...]) -> Terms:
        """What some outputs need."""
        sizes = self.value.shape[2:]
        sides = (x if n > 1 else slice(None) for x, n in zip(s, sizes, strict=True))
        return self[(slice(None), slice(None), *sides)]


@dataclass(frozen=True, slots=True)
class SpreadProducts:
    """Products by broadcasting, of any operands; the inner loop is the longer, the better."""

    a: Terms
    b: Terms

    LONGEST: ClassVar[int | None] = None  # extent of a block of outputs

    def block(self, s: tuple[slice, ...]) -> SpreadProducts:
        """Those that some outputs need."""
        return SpreadProducts(self.a.block(s), self.b.block(s))

    def steps(self) -> Iterator[SpreadProducts]:
        """Those of each instruction."""
        return (SpreadProducts(self.a[i], self.b[i]) for i in range(len(self.a.value)))

    def some(self, which: Array) -> SpreadProducts:
        """Those of one instruction with some k, bool (K,)."""
        return SpreadProducts(self.a[which], self.b[which])

    @property
    def depth(self) -> int:
        """K, of one instruction."""
        return len(self.a.value)

    def terms(self) -> tuple[Terms, Terms]:
        """The operands."""
        return self.a, self.b

    def highest_powers(self, out: Array) -> None:
        """2^E of narrow products, as the bits of float32; E is `LOWEST` at least."""
        sums = self.a.exponent + self.b.exponent
        highest = np.maximum.reduce(sums, axis=0, initial=np.int16(LOWEST))
        np.add(highest, np.int32(127), out=out)
        out <<= _EXPONENT_AT

    def write(self, out: Array) -> None:
        """The products of one instruction, [K, *outputs]."""
        np.multiply(self.a.value, self.b.value, out=out)


@dataclass(frozen=True, slots=True)
class Factor:
    """One operand of products by BLAS, to which NumPy leaves no product of one column and one row.

    So a column of A for one k has zeros beside it, and a row of B whatever comes next.

    Shapes: `value` [S, K, B, M, 2], of B [S, K, B, 2, N]; `power` (float64) [S, B, M, K + 1], of B
    [S, B, K + 1, N]; of one instruction without S.
    """

    value: Array
    power: Array
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class OuterProducts:
    """Products by BLAS, of narrow operands [batch, M, K] and [batch, N, K].

    A power is 2^(8·exponent), of A divided by 2^7, and 0 for zero. A sum of fewer than 256 products
    of powers is 2^(8·E − 7) or more, but less than 2^(8·E + 1): E + 127, as a float32 has it for
    2^E, are the upper eight bits of its exponent's field. One more term, 2^(8·LOWEST − 7), keeps E
    from being lower.
    """

    a: Factor
    b: Factor

    LONGEST: ClassVar[int | None] = 256  # so that a block's part of B stays in the cache

    def block(self, s: tuple[slice, ...]) -> OuterProducts:
        """Those that some outputs need."""
        batch, rows, columns = s
        a, b = self.a, self.b
        return OuterProducts(
            Factor(a.value[:, :, batch, rows], a.power[:, batch, rows], a.dtype),
            Factor(b.value[:, :, batch, :, columns], b.power[:, batch, :, columns], b.dtype),
        )

    def steps(self) -> Iterator[OuterProducts]:
        """Those of each instruction."""
        for i in range(len(self.a.value)):
            a, b = (Factor(x.value[i], x.power[i], x.dtype) for x in (self.a, self.b))
            yield OuterProducts(a, b)

    def some(self, which: Array) -> OuterProducts:
        """Those of one instruction with some k, bool (K,)."""
        a, b, powers = self.a, self.b, np.append(which, True)
        return OuterProducts(
            Factor(a.value[which], a.power[..., powers], a.dtype),
            Factor(b.value[which], b.power[:, powers], b.dtype),
        )

    @property
    def depth(self) -> int:
        """K, of one instruction."""
        return len(self.a.value)

    def terms(self) -> tuple[Terms, Terms]:
        """The operands, as broadcasting takes them."""
        a, b = self.a.value[..., :1], self.b.value[..., :1, :]
        return Terms(a, exponents_of(a, self.a.dtype)), Terms(b, exponents_of(b, self.b.dtype))

    def highest_powers(self, out: Array) -> None:
        """2^E as the bits of float32; E is `LOWEST` at least."""
        sums = SCRATCH.room("powers", out.shape, np.float64)
        np.matmul(self.a.power, self.b.power, out=sums)
        np.bitwise_and(sums.view(np.int32)[..., 1::2], FIELD, out=out)

    def write(self, out: Array) -> None:
        """The products of one instruction, [K, *outputs]."""
        np.matmul(self.a.value, self.b.value, out=out)


Products: TypeAlias = "SpreadProducts | OuterProducts"


def products_of(a: Operand, b: Operand, batch: tuple[int, ...], wide: bool) -> Products:
    """The products of operands [S, ..., M, K] and [S, ..., N, K].

    Outputs are [batch, M, N] where they are wide, else [M, N, batch].
    """
    if wide and a.narrow and b.narrow:
        return OuterProducts(_left_factor(a, batch), _right_factor(b, batch))
    if wide:
        axes, no_n, no_m = (0, 3, 1, 2), 4, 3
    else:
        axes, no_n, no_m = (0, 3, 2, 1), 3, 2
    return SpreadProducts(_terms(a, batch, axes, no_n), _terms(b, batch, axes, no_m))


def _terms(x: Operand, batch: tuple[int, ...], axes: tuple[int, ...], lacking: int) -> Terms:
    """An operand of [S, B, R, K] in another order, with an axis that it lacks."""
    value, exponent = (
        np.expand_dims(np.ascontiguousarray(whole_batch(part, batch).transpose(axes)), lacking)
        for part in (x.value, x.exponent)
    )
    return Terms(value, exponent)


def whole_batch(part: Array, batch: tuple[int, ...]) -> Array:
    """[S, ..., R, K] as [S, B, R, K], with the whole batch."""
    steps, *own, rows, k = part.shape
    if tuple(own) != batch:
        part = part.reshape(steps, *(1,) * (len(batch) - len(own)), *own, rows, k)
        part = np.broadcast_to(part, (steps, *batch, rows, k))
    return part.reshape(steps, -1, rows, k)


def _left_factor(a: Operand, batch: tuple[int, ...]) -> Factor:
    value, exponent = whole_batch(a.value, batch), whole_batch(a.exponent, batch)
    steps, count, rows, k = value.shape
    pairs = np.zeros((steps, k, count, rows, 2), np.float32)
    pairs[..., 0] = value.transpose(0, 3, 1, 2)
    power = np.zeros((steps, count, rows, k + 1))
    _write_powers(power.view(np.int16)[..., 3::4], exponent, -7)
    return Factor(pairs, power, a.dtype)


def _right_factor(b: Operand, batch: tuple[int, ...]) -> Factor:
    value, exponent = whole_batch(b.value, batch), whole_batch(b.exponent, batch)
    steps, count, rows, k = value.shape
    lines = np.zeros((steps, count, k + 1, rows), np.float32)
    lines[..., :-1, :] = value.swapaxes(-1, -2)
    pairs = sliding_window_view(lines, 2, axis=2).transpose(0, 2, 1, 4, 3)
    power = np.zeros((steps, count, k + 1, rows))
    _write_powers(power.view(np.int16)[..., 3::4].swapaxes(-1, -2), exponent, 0)
    return Factor(pairs, power, b.dtype)


def _write_powers(upper: Array, exponent: Array, bias: int) -> None:
    """The upper 16 bits of 2^(8·exponent + bias), and beside them those of half of `LOWEST`."""
    field = exponent * np.int16(8) + np.int16(1023 + bias)
    upper[..., :-1] = np.maximum(field, 0, out=field) << 4  # less than 0 where the number is 0
    upper[..., -1] = 4 * LOWEST + 1023 + bias << 4
