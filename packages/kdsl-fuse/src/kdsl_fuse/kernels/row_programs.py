"""What row-wise kernels compute: reductions, and the usual programs made of them.

    rows(outputs…, row outputs…, inputs…, extras…, row inputs…, program=softmax(…), config=…)

All of it is traced: functions take and give kdsl scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import kdsl_core as kd
from kdsl_core.dtypes import DType, f32

Scalars: TypeAlias = "tuple[Any, ...]"
_CHAINS = 4  # sums that a thread computes side by side, as additions take four cycles
LOG2_E, LN_2 = math.log2(math.e), math.log(2.0)
INFINITY = float("inf")


class Reduction(Protocol):
    """A total over a row: states that are combined in any grouping, in a fixed order.

    `stats` are the statistics of the phases before; `finish` gives those of this one.
    """

    def extend(self, state: Scalars, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The state of more elements than before, at least one."""
        return self.combine(state, self.local(values, stats))

    def identity(self, dtype: DType) -> Scalars:
        """The state of no elements; of elements of a type."""

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """A value that changes no total, for places behind the row's end; None if there is none."""

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The state of some elements, at least one."""

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The state of both; commutes."""

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The statistics of a row of `count` (an integer) elements."""


@dataclass(frozen=True)
class RowProgram:
    """A row-wise computation.

    `prologue(*inputs)` is the value of each element, `phases` reduce the row of values one after
    the other, `epilogue(value, extras, stats)` gives the `outputs`, `row_results(stats, row inputs,
    picked)` the `row_outputs`. `picks(label, columns, condition)` says where the element in the
    column that the first row input names is to be read, which is `picked` then. Elements narrower
    than 32 bits are widened first; results are rounded once, to the outputs' types.
    """

    phases: tuple[Reduction, ...]
    prologue: Callable[..., Any]
    epilogue: Callable[..., Scalars] | None = None
    row_results: Callable[..., Scalars] | None = None
    picks: Callable[..., Any] | None = None
    inputs: int = 1
    extras: int = 0
    row_inputs: int = 0
    outputs: int = 0
    row_outputs: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Outputs, row outputs, inputs, extras and row inputs: the order of a launch's arrays."""
        return self.outputs, self.row_outputs, self.inputs, self.extras, self.row_inputs


def tree(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """Values combined in pairs, pairs of pairs and so on: short chains, small errors."""
    values = list(values)
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else []
        values = [combine(*pair) for pair in zip(values[::2], values[1::2], strict=False)] + odd
    return values[0]


def add(a: Any, b: Any) -> Any:
    """a + b."""
    return a + b


def multiply(a: Any, b: Any) -> Any:
    """a · b."""
    return a * b


def itself(value: Any, *_: Any) -> Any:
    """The value; a prologue of one input."""
    return value


def plain(total: Any, count: Any, stats: Scalars) -> Scalars:
    """The total."""
    return (total,)


def mean_of(total: Any, count: Any, stats: Scalars) -> Scalars:
    """The total over the number of elements, a float."""
    return ((total.to(f32) if total.dtype.is_int else total) / count,)


# -- reductions ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sum(Reduction):
    """Σ value, finished by a function of (total, count, stats)."""

    finished: Callable[[Any, Any, Scalars], Scalars] = plain

    def identity(self, dtype: DType) -> Scalars:
        """Zero."""
        return (0,)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """Zero."""
        return 0

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The sum, in pairs."""
        return (tree(add, values),)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The sum."""
        return (a[0] + b[0],)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """What `finished` makes of the sum."""
        return self.finished(state[0], count, stats)


@dataclass(frozen=True)
class Product(Reduction):
    """Π value."""

    def identity(self, dtype: DType) -> Scalars:
        """One."""
        return (1,)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """One."""
        return 1

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The product, in pairs."""
        return (tree(multiply, values),)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The product."""
        return (a[0] * b[0],)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The product."""
        return state


@dataclass(frozen=True)
class Extreme(Reduction):
    """The largest value of a row, or the smallest; NaN where there is one."""

    largest: bool = True

    def identity(self, dtype: DType) -> Scalars:
        """What every value replaces."""
        if dtype.is_float:
            return (-INFINITY if self.largest else INFINITY,)
        low = -(1 << dtype.bits - 1) if dtype.kind == "i" else 0
        return (low if self.largest else low + (1 << dtype.bits) - 1,)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """The same."""
        return self.identity(dtype)[0]

    def chosen(self, a: Any, b: Any) -> Any:
        """The larger or the smaller of two."""
        return (kd.maximum if self.largest else kd.minimum)(a, b, nan=True)

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The extreme of some values."""
        return (tree(self.chosen, values),)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The extreme of both."""
        return (self.chosen(a[0], b[0]),)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The extreme."""
        return state


# -- norms -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReciprocalRoot:
    """1 / √(mean + eps), of a sum."""

    eps: float

    def __call__(self, total: Any, count: Any, stats: Scalars) -> Scalars:
        """The statistic."""
        return (kd.rsqrt(total / count + self.eps),)


@dataclass(frozen=True)
class SumOfSquares(Reduction):
    """Σ value², or where `centred` Σ (value − mean)², of a mean that is the first statistic."""

    centred: bool
    finished: Callable[[Any, Any, Scalars], Scalars] = plain

    def identity(self, dtype: DType) -> Scalars:
        """Zero."""
        return (0,)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """Zero, or the mean, whose distance from itself is zero."""
        return stats[0] if self.centred else 0

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The sum of squares, in a few chains of fused steps that are added up in pairs."""
        parts = [value - stats[0] for value in values] if self.centred else list(values)
        chains = [part * part for part in parts[:_CHAINS]]
        for i, part in enumerate(parts[_CHAINS:]):
            chains[i % _CHAINS] = kd.fma(part, part, chains[i % _CHAINS])
        return (tree(add, chains),)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The sum."""
        return (a[0] + b[0],)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """What `finished` makes of the sum."""
        return self.finished(state[0], count, stats)


@dataclass(frozen=True)
class Moments(Reduction):
    """The mean and Σ (value − mean)² in one phase: states are count, mean and squares.

    Parts of a row have means of their own, whose distance is added when they meet: as accurate as
    two phases. `finished` makes the last statistic of the squares.

    Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances (1979).
    """

    finished: Callable[[Any, Any, Scalars], Scalars]

    def identity(self, dtype: DType) -> Scalars:
        """No elements."""
        return (0.0, 0.0, 0.0)

    def fill(self, dtype: DType, stats: Scalars) -> None:
        """Every element counts."""

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The moments of some values."""
        mean = tree(add, values) * (1.0 / len(values))
        return (float(len(values)), mean, *SumOfSquares(centred=True).local(values, (mean,)))

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The moments of both; where means are equal, theirs exactly."""
        count = a[0] + b[0]
        share = kd.reciprocal(kd.maximum(count, 1.0), approx=True)
        apart = a[1] - b[1]
        mean = kd.fma(0.5 * apart, (a[0] - b[0]) * share, 0.5 * (a[1] + b[1]))
        return count, mean, kd.fma(apart * apart, a[0] * b[0] * share, a[2] + b[2])

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The mean, and what `finished` makes of the squares."""
        return (state[1], *self.finished(state[2], count, stats))


@dataclass(frozen=True)
class Normalised:
    """(value − mean) · scale · weight + bias, each where there is one; then perhaps the value."""

    centred: bool
    weight: bool
    bias: bool
    total: bool

    def __call__(self, value: Any, extras: Scalars, stats: Scalars) -> Scalars:
        """The results for one element."""
        result = (value - stats[0]) * stats[1] if self.centred else value * stats[0]
        if self.weight and self.bias:
            result = kd.fma(result, *extras)
        elif self.weight:
            result = result * extras[0]
        elif self.bias:
            result = result + extras[0]
        return (result, value) if self.total else (result,)


def norm(
    eps: float, *, centred: bool, weight: bool = True, bias: bool = False, residual: bool = False,
    total: bool = False, online: bool = False,
) -> RowProgram:  # fmt: skip
    """RMSNorm, or LayerNorm where it is `centred`, of x, or of x + `residual`.

    Extras are weight and bias; a second output gets the sum where `total` is true. `online` takes
    one phase for LayerNorm, too.
    """
    scale = ReciprocalRoot(eps)
    phases: tuple[Reduction, ...] = (SumOfSquares(centred, scale),)
    if centred:
        phases = (Moments(scale),) if online else (Sum(finished=mean_of), *phases)
    return RowProgram(
        phases, add if residual else itself, Normalised(centred, weight, bias, total),
        inputs=1 + residual, extras=weight + bias, outputs=1 + total,
    )  # fmt: skip


# -- softmax and what belongs to it ----------------------------------------------------------------
@dataclass(frozen=True)
class Exponential:
    """e^(value − top); `fast` by the hardware's 2^x, within 2 ulp and an ulp of the exponent.

    2^(value·log₂e − top·log₂e) with the second product rounded: the same factor, near 1, for all
    values with the same top, which a quotient of two does not see.
    """

    fast: bool

    def of(self, value: Any, top: Any) -> Any:
        """The power, at most 1."""
        if self.fast:
            return kd.exp2(kd.fma(value, LOG2_E, -(top * LOG2_E)), ftz=True)
        return kd.exp(value - top)

    def scale(self, top: Any, base: Any) -> Any:
        """From powers relative to `top` to those relative to `base`: 1 if they are equal."""
        if self.fast:
            return kd.exp2(top * LOG2_E - base * LOG2_E, ftz=True)
        return kd.exp(top - base)

    def log_of_sum(self, total: Any, top: Any) -> Any:
        """log Σ e^(value − top) of a sum of such powers."""
        if not self.fast:
            return kd.log(total)
        rounding = kd.fma(top, LOG2_E, -(top * LOG2_E))
        return (kd.log2(total) - rounding) * LN_2


@dataclass(frozen=True)
class SumOfPowers(Reduction):
    """Σ e^(value − top), of a top that is known: statistics 0 and 1 are the top and the sum."""

    exponential: Exponential

    def identity(self, dtype: DType) -> Scalars:
        """Zero."""
        return (0.0,)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """−∞, whose power is 0."""
        return -INFINITY

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The sum of powers, in pairs."""
        return (tree(add, [self.exponential.of(value, stats[0]) for value in values]),)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The sum."""
        return (a[0] + b[0],)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The sum."""
        return state


@dataclass(frozen=True)
class TopAndSum(Reduction):
    """The top and Σ e^(value − top) in one phase: sums are scaled when tops meet."""

    exponential: Exponential

    def identity(self, dtype: DType) -> Scalars:
        """No value: the top is −∞, the sum 0."""
        return (-INFINITY, 0.0)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """−∞, whose power is 0."""
        return -INFINITY

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The largest of the values, and the sum of powers relative to it."""
        top = tree(kd.maximum, values)
        return top, self._sum(values, _finite(top))

    def extend(self, state: Scalars, values: Sequence[Any], stats: Scalars) -> Scalars:
        """The same of more values: the sum so far is scaled once."""
        top = kd.maximum(state[0], tree(kd.maximum, values))
        base = _finite(top)
        return top, kd.fma(
            state[1], self.exponential.scale(state[0], base), self._sum(values, base)
        )

    def _sum(self, values: Sequence[Any], base: Any) -> Any:
        return tree(add, [self.exponential.of(value, base) for value in values])

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """The larger top, and both sums relative to it."""
        top = kd.maximum(a[0], b[0])
        base = _finite(top)
        return top, sum(x[1] * self.exponential.scale(x[0], base) for x in (a, b))

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """Top and sum."""
        return state


def _finite(top: Any) -> Any:
    """A number to subtract from values up to `top`: 0 where all of them are −∞."""
    return kd.where(top == -INFINITY, 0.0, top)


def powers(exponential: Exponential, online: bool) -> tuple[Reduction, ...]:
    """Top and sum of powers: in one phase, or in two, with half as many powers to compute."""
    if online:
        return (TopAndSum(exponential),)
    return (Extreme(), SumOfPowers(exponential))


@dataclass(frozen=True)
class Quotient:
    """e^(value − top) / sum."""

    exponential: Exponential

    def __call__(self, value: Any, extras: Scalars, stats: Scalars) -> Scalars:
        """The probability."""
        return (self.exponential.of(value, stats[0]) * stats[2],)


@dataclass(frozen=True)
class LogQuotient:
    """value − top − log sum."""

    def __call__(self, value: Any, extras: Scalars, stats: Scalars) -> Scalars:
        """The logarithm of the probability."""
        return ((value - stats[0]) - stats[2],)


@dataclass(frozen=True)
class Finished(Reduction):
    """A reduction that adds one more statistic, computed once for a row from those before."""

    reduction: Any
    more: Callable[[Scalars], Any]

    def identity(self, dtype: DType) -> Scalars:
        """As of the reduction."""
        return self.reduction.identity(dtype)

    def fill(self, dtype: DType, stats: Scalars) -> Any:
        """As of the reduction."""
        return self.reduction.fill(dtype, stats)

    def local(self, values: Sequence[Any], stats: Scalars) -> Scalars:
        """As of the reduction."""
        return self.reduction.local(values, stats)

    def extend(self, state: Scalars, values: Sequence[Any], stats: Scalars) -> Scalars:
        """As of the reduction."""
        return self.reduction.extend(state, values, stats)

    def combine(self, a: Scalars, b: Scalars) -> Scalars:
        """As of the reduction."""
        return self.reduction.combine(a, b)

    def finish(self, state: Scalars, count: Any, stats: Scalars) -> Scalars:
        """The reduction's statistics and one more."""
        found = self.reduction.finish(state, count, stats)
        return (*found, self.more((*stats, *found)))


def reciprocal_of_sum(stats: Scalars) -> Any:
    """1 / sum, correctly rounded."""
    return 1.0 / stats[1]


@dataclass(frozen=True)
class LogOfSum:
    """log Σ e^(value − top)."""

    exponential: Exponential

    def __call__(self, stats: Scalars) -> Any:
        """The logarithm."""
        return self.exponential.log_of_sum(stats[1], stats[0])


def _and(phases: tuple[Reduction, ...], more: Callable[[Scalars], Any]) -> tuple[Reduction, ...]:
    return (*phases[:-1], Finished(phases[-1], more))


def softmax(*, fast: bool, online: bool = False) -> RowProgram:
    """e^value / Σ e^value over the row. `fast` is for results that are rounded to 16 bits."""
    power = Exponential(fast)
    phases = _and(powers(power, online), reciprocal_of_sum)
    return RowProgram(phases, itself, Quotient(power), outputs=1)


def log_softmax(*, fast: bool, online: bool = False) -> RowProgram:
    """log(e^value / Σ e^value)."""
    power = Exponential(fast)
    phases = _and(powers(power, online), LogOfSum(power))
    return RowProgram(phases, itself, LogQuotient(), outputs=1)


@dataclass(frozen=True)
class Labelled:
    """Where the value in the column of a label is to be read, unless the label is ignored."""

    ignore_index: int

    @kd.func
    def __call__(self, label: Any, columns: Any, first: Any) -> Any:
        """Whether the label's value is to be read by this thread: labels count columns."""
        wanted = first & (label != self.ignore_index)
        named = (label >= 0) & (label < columns.to(label.dtype))
        assert named | ~wanted, "a label must be a column or the ignored one"
        return wanted & named


@dataclass(frozen=True)
class Loss:
    """−log of the probability of the label; 0 where the label is to be ignored."""

    ignore_index: int

    def __call__(self, stats: Scalars, labels: Scalars, picked: Any) -> Scalars:
        """The loss of a row."""
        return (kd.where(labels[0] == self.ignore_index, 0.0, stats[2] - (picked - stats[0])),)


def cross_entropy(*, fast: bool, ignore_index: int = -100, online: bool = False) -> RowProgram:
    """The loss of each row of logits, given the column of its true class."""
    power = Exponential(fast)
    phases = _and(powers(power, online), LogOfSum(power))
    return RowProgram(
        phases,
        itself,
        row_results=Loss(ignore_index),
        picks=Labelled(ignore_index),
        row_inputs=1,
        row_outputs=1,
    )


# -- plain reductions ------------------------------------------------------------------------------
REDUCTIONS: dict[str, Reduction] = {
    "sum": Sum(),
    "mean": Sum(finished=mean_of),
    "max": Extreme(),
    "min": Extreme(largest=False),
    "prod": Product(),
}


def statistic(stats: Scalars, labels: Scalars, picked: Any) -> Scalars:
    """The last phase's statistic."""
    return (stats[-1],)


def reduction(name: str, prologue: Callable[..., Any] = itself, inputs: int = 1) -> RowProgram:
    """One number a row: "sum", "mean", "max", "min" or "prod" of prologue(*inputs)."""
    return RowProgram(
        (REDUCTIONS[name],), prologue, row_results=statistic, row_outputs=1, inputs=inputs
    )
