"""A space: the configurations that a kernel may run in, declared beside the kernel."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.errors import ArgumentError, KdslError
from kdsl_core.lang.launch import Launch
from kdsl_core.lang.spec import ArraySpec
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem

Arrays: TypeAlias = Mapping[str, Any]
"""Arguments by name: `kd.spec`s where a kernel is built, NumPy arrays where it is simulated,
arrays on a device where it is measured."""

Constraint: TypeAlias = Callable[[Problem, Config], str | None]
"""Why a configuration cannot serve a problem; None if it can."""

Options: TypeAlias = Mapping[str, Sequence[Any] | Callable[[Problem], Iterable[Any]]]
"""Option → its values, or a function that gives the values for a problem."""

Listing: TypeAlias = Callable[[Problem], Iterable[Config]]
"""The configurations worth a look, where they are no product of options."""


@dataclass(frozen=True)
class Call:
    """One launch of a candidate: `launch` is `kernel.configure(…)` or `kernel[grid, block]`."""

    launch: Launch
    args: tuple[Any, ...]
    statics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejection:
    """A configuration that cannot be, and why."""

    config: Config
    reason: str


def random_data(
    problem: Problem, specs: Mapping[str, ArraySpec], rng: np.random.Generator
) -> dict[str, np.ndarray[Any, Any]]:
    """Normal numbers for floats, −8 … 7 for integers; results hold them, too, before a launch."""
    return {name: _random(spec.shape, spec.dtype, rng) for name, spec in specs.items()}


def _random(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    low = -8 if dtype.kind == "i" else 0
    return rng.integers(low, 8 if dtype.is_int else 2, shape).astype(dtype.numpy)


def _itself(problem: Problem) -> Problem:
    return problem


def _none(problem: Problem, config: Config) -> Mapping[str, ArraySpec]:
    return {}


@dataclass(frozen=True, eq=False)
class Space:
    """What may be chosen for a kernel, what a choice launches, and how its result is judged.

    `options` span the configurations, or list those of a problem; each of `constraints` may refuse
    one with its reason, and so does a KdslError that it raises. `model` predicts how long one
    takes, in any unit: smaller ones are tried first. `tensors` describes the arguments of a problem
    (contiguous ones), `scratch` what one configuration needs besides. `calls` gives the launches
    that compute the problem on such arrays. `data` fills the arguments; `reference` gives the right
    results by name, from which a candidate's may differ by `bound` of their largest element.
    `shape_class` maps problems that are to share records and table entries to one of them.
    `origin`, "file.py:NAME" or "module:NAME", is where another process finds the space; without it,
    its functions must be importable there.
    """

    name: str
    options: Options | Listing
    tensors: Callable[[Problem], Mapping[str, ArraySpec]]
    calls: Callable[[Problem, Config, Arrays], Sequence[Call]]
    reference: Callable[[Problem, Arrays], Arrays]
    bound: float
    constraints: tuple[Constraint, ...] = ()
    model: Callable[[Problem, Config], float] | None = None
    scratch: Callable[[Problem, Config], Mapping[str, ArraySpec]] = _none
    data: Callable[..., Arrays] = random_data
    shape_class: Callable[[Problem], Problem] = _itself
    origin: str | None = None

    def __reduce__(self) -> Any:
        """How it travels: by its origin, or field by field.

        Raises: ArgumentError K769 when it is no longer what lies at its origin.
        """
        if self.origin is None:
            return super().__reduce__()
        from kdsl_runtime.tune.origins import load_space

        if vars(load_space(self.origin)) != vars(self):
            raise ArgumentError(
                f"the space {self.name} was changed after it was loaded from {self.origin}, where "
                "other processes would find it as it was",
                code="K769",
                fix="declare the changed space in a file or module, too, and load that one",
            )
        return load_space, (self.origin,)

    def listed(self, problem: Problem) -> Iterator[Config]:
        """Every combination of the options' values, whether it can be or not."""
        options = self.options
        if callable(options):
            yield from options(problem)
            return
        values = [v(problem) if callable(v) else v for v in options.values()]
        for chosen in itertools.product(*values):
            yield dict(zip(options, chosen, strict=True))

    def refusal(self, problem: Problem, config: Config) -> str | None:
        """Why a configuration cannot serve a problem, as far as constraints know; None if it can.

        A configuration with other options than the space's is refused, too.
        """
        if not callable(self.options) and config.keys() != self.options.keys():
            return f"its options are {', '.join(config)}, not {', '.join(self.options)}"
        try:
            reasons = (constraint(problem, config) for constraint in self.constraints)
            return next((reason for reason in reasons if reason is not None), None)
        except KdslError as error:
            return brief(error)

    def examine(self, problem: Problem) -> tuple[list[Config], list[Rejection]]:
        """The configurations that can be, those first that the model finds fast, and the others.

        Raises: ArgumentError K762 when none can be.
        """
        accepted: list[Config] = []
        rejected: list[Rejection] = []
        for config in self.listed(problem):
            reason = self.refusal(problem, config)
            if reason is None:
                accepted.append(config)
            else:
                rejected.append(Rejection(config, reason))
        if not accepted:
            raise _empty(self, problem, rejected)
        return self.ranked(problem, accepted), rejected

    def points(self, problem: Problem) -> list[Config]:
        """The configurations that can be, those first that the model finds fast.

        Raises: ArgumentError K762 when none can be.
        """
        return self.examine(problem)[0]

    def ranked(self, problem: Problem, configs: Sequence[Config]) -> list[Config]:
        """Configurations in the order of the model's predictions; as given without a model."""
        model = self.model
        if model is None:
            return list(configs)
        return sorted(configs, key=lambda config: model(problem, config))


def config_text(config: Config) -> str:
    """A configuration as one line, the same for equal ones."""
    return json.dumps(config, sort_keys=True)


def brief(error: KdslError) -> str:
    """An error in one line."""
    return f"{type(error).__name__}[{error.code}]: {' '.join(error.message.split())}"


def _empty(space: Space, problem: Problem, rejected: Sequence[Rejection]) -> ArgumentError:
    reasons = list(dict.fromkeys(rejection.reason for rejection in rejected))[:3]
    said = "; ".join(reasons) or "an option has no value"
    return ArgumentError(
        f"the space {space.name} has no configuration for {problem}: {said}",
        code="K762",
        fix="give options values that serve such problems, or tune other ones",
    )
