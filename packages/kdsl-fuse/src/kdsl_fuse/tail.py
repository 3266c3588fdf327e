"""The epilogue of a kernel as a value: a straight-line pointwise program that can be hashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType, boolean, f32, i32, u8, u16, u32
from kdsl_core.errors import KdslError
from kdsl_core.loc import Loc, stated
from kdsl_fuse.ops import op_named


@dataclass(frozen=True)
class Step:
    """One operator on earlier values: 0 is the accumulator, then the extras, then the steps.

    Where there are several accumulators, they come first.

    A Constant's number is kept as text (`repr`), because 0.0 and −0.0, and 1 and 1.0, are equal as
    numbers but not the same program. A `quick` step may take the hardware's approximate functions.
    `loc` is where it was written, which makes no difference.
    """

    op: str
    args: tuple[int, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    loc: Loc | None = field(default=None, compare=False, repr=False)
    quick: bool = False


@dataclass(frozen=True)
class Tail:
    """A pointwise function `epilogue(acc, *extras)` from an accumulator to the value to store.

    Of several `sums` it takes the accumulators one by one: `epilogue(acc0, acc1, *extras)`.

    Two tails with equal steps are equal and share one kernel, whose locations are those of the tail
    that was traced. Extras narrower than 32 bits are widened
    first, all arithmetic is f32, and a Cast rounds and widens again. The kernel rounds the result
    once, to the output's dtype.
    """

    extras: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    result: int = 0
    sums: int = 1

    def __call__(self, *values: Any) -> Any:
        """The value to store, as kdsl_core scalars; called while a kernel is traced."""
        import kdsl_core as kd

        return self.evaluate(kd, *values)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names for what it takes: accumulators, then extras."""
        sums = ["acc"] if self.sums == 1 else [f"acc{index}" for index in range(self.sums)]
        return (*sums, *(f"x{index}" for index in range(len(self.extras))))

    def evaluate(self, kd: Any, *given: Any) -> Any:
        """The same with the words of the language taken from `kd`."""
        sums, extras = given[: self.sums], given[self.sums :]
        values = [
            *sums,
            *(widen(BY_NAME[name], x) for name, x in zip(self.extras, extras, strict=True)),
        ]
        return run_steps(kd, self.steps, values)[self.result]

    def __str__(self) -> str:
        dtypes = (*("f32",) * self.sums, *self.extras)
        typed = [f"{name}: {dtype}" for name, dtype in zip(self.parameters, dtypes, strict=True)]
        head = f"def epilogue({', '.join(typed)}):"
        return listing(head, self.parameters, self.steps, (self.result,))


_QUICK = frozenset({"erf", "exp", "log", "ndtr", "rsqrt", "sigmoid", "sqrt", "tanh"})


class QuickWords:
    """The words of the language, with the hardware's approximate functions for the exact ones."""

    def __init__(self, kd: Any) -> None:
        self._kd = kd

    def __getattr__(self, word: str) -> Any:
        found = getattr(self._kd, word)
        return partial(found, approx=True) if word in _QUICK else found


def number_step(value: bool | int | float) -> Step:
    """The Constant that holds a Python number."""
    return Step("Constant", (), (("value", repr(value)),))


def _number(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def widen(dtype: DType, x: Any) -> Any:
    """`x` in the 32 bits in which a tail computes and compares; a truth value stays one."""
    if dtype is boolean or dtype.bits >= 32:
        return x
    return x.to(f32 if dtype.is_float else u32 if dtype in (u8, u16) else i32)


def run_steps(kd: Any, steps: Sequence[Step], given: Sequence[Any]) -> list[Any]:
    """The values `given` and those of all steps, with the words of the language from `kd`."""
    values = list(given)
    for step in steps:
        values.append(run_step(kd, step, [values[arg] for arg in step.args]))
    return values


def listing(
    head: str, parameters: Sequence[str], steps: Sequence[Step], results: Sequence[int]
) -> str:
    """A function as text: `head`, a line for each step that computes something, and its results."""
    names, lines = list(parameters), [head]
    for step in steps:
        if step.op == "Constant":
            names.append(dict(step.attrs)["value"])
            continue
        options = [f"{key}={value!r}" for key, value in step.attrs]
        options += ["approx=True"] * step.quick
        called = ", ".join([*(names[arg] for arg in step.args), *options])
        names.append(f"v{len(lines) - 1}")
        lines.append(f"    {names[-1]} = {step.op}({called})")
    return "\n".join([*lines, f"    return {', '.join(names[x] for x in results)}"])


def run_step(kd: Any, step: Step, args: list[Any]) -> Any:
    """One operator on values, with the words of the language taken from `kd`."""
    if step.op == "Constant":
        return _number(dict(step.attrs)["value"])
    kd = QuickWords(kd) if step.quick else kd
    rule = op_named(step.op)
    assert rule.kernel is not None, f"{step.op} has no code for one element"
    try:
        with stated(step.loc):
            result = rule.kernel(kd, *args, **dict(step.attrs))
            return widen(BY_NAME[dict(step.attrs)["to"]], result) if step.op == "Cast" else result
    except KdslError as problem:
        problem.loc = problem.loc or step.loc
        raise
