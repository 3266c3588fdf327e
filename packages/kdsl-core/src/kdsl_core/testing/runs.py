"""A kernel run in several orders on copies of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from kdsl_core.errors import ArgumentError, HazardError
from kdsl_core.lang.simulate import Simulated
from kdsl_core.lang.simulate import simulate as run_once
from kdsl_core.records import dataclass
from kdsl_core.testing.compare import EXACT, Array, Tolerance, differences, tolerance_of
from kdsl_core.testing.copies import copied

DEFAULT_SEEDS = (0, 1)


@dataclass(frozen=True)
class Checked:
    """What a kernel wrote, in each order, without a hazard.

    `results` are the runs by the name of their order, "linear" first.
    """

    results: Mapping[str, Simulated]
    _arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The array arguments after the linear run."""
        return next(iter(self.results.values())).outputs

    def __getitem__(self, name: str) -> Array:
        """The array argument of a name after the linear run."""
        return _array(next(iter(self.results.values())), name)

    def equals(self, *expected: Any, **named: Any) -> Self:
        """Fail unless each order left exactly these arrays.

        One array for each argument that the kernel writes, in their order, or by the arguments'
        names; or a function of the arguments that returns it, or a tuple of them.

        Raises: AssertionError; ArgumentError K533 when the arrays do not fit the arguments.
        """
        __tracebackhide__ = True
        self._compare(expected, named, lambda got, want: EXACT)
        return self

    def close_to(
        self,
        *expected: Any,
        rtol: float | None = None,
        atol: float | None = None,
        **named: Any,
    ) -> Self:
        """Fail unless each order left these arrays, but for rounding.

        `expected` and `named` are those of `equals`. A result may be off by `rtol` · |expected| +
        `atol`; without these by `tolerance_of` its dtype.

        Raises: AssertionError; ArgumentError K533 when the arrays do not fit the arguments.
        """
        __tracebackhide__ = True

        def tolerance(got: Array, want: Array) -> Tolerance:
            usual = tolerance_of(got.dtype, want)
            return Tolerance(
                usual.relative if rtol is None else rtol, usual.absolute if atol is None else atol
            )

        self._compare(expected, named, tolerance)
        return self

    def _compare(
        self,
        expected: tuple[Any, ...],
        named: dict[str, Any],
        tolerance: Callable[[Array, Array], Tolerance],
    ) -> None:
        __tracebackhide__ = True
        wanted = dict(self._by_name(expected, named))
        for order, result in self.results.items():
            for name, want in wanted.items():
                got = _array(result, name)
                found = differences(name, got, want, tolerance(got, np.asarray(want)))
                if found:
                    raise AssertionError(f"{result.launch}, order {order}:\n{found}")

    def _by_name(
        self, expected: tuple[Any, ...], named: dict[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """The expected array of each argument."""
        first = next(iter(self.results.values()))
        if len(expected) == 1 and callable(expected[0]):
            args, kwargs = self._arguments()
            given = expected[0](*args, **kwargs)
            expected = given if isinstance(given, tuple) else (given,)
        if expected and len(expected) != len(first.written):
            raise ArgumentError(
                f"{first.launch}: {len(expected)} arrays are expected, but the kernel writes "
                f"{len(first.written)} arguments ({', '.join(first.written) or 'none'})",
                code="K533",
                fix="give one array for each, or name some: .equals(y=…)",
            )
        yield from zip(first.written, expected, strict=False)
        yield from named.items()


def simulate(
    kernel: Any,
    grid: Any,
    block: Any,
    *args: Any,
    cluster: Any = None,
    seeds: Iterable[int] = DEFAULT_SEEDS,
    **kwargs: Any,
) -> Checked:
    """Run a kernel on copies of its arguments, once in linear order and once for each seed.

    `kwargs` are the kernel's keyword arguments; the arguments themselves stay as they are.

    Raises: AssertionError with the report of the first order in which a hazard is found.
    """
    __tracebackhide__ = True
    orders: dict[str, dict[str, Any]] = {"linear": {}}
    orders |= {f"shuffle, seed {seed}": {"order": "shuffle", "seed": seed} for seed in seeds}
    results = {}
    for name, options in orders.items():
        given, named = copied((args, kwargs))
        try:
            result = run_once(
                kernel, grid=grid, block=block, cluster=cluster, args=given, kwargs=named,
                on_hazard="collect", **options,
            )  # fmt: skip
        except HazardError as error:  # a run that cannot go on
            raise AssertionError(f"order {name}:\n{error}") from None
        if result.hazards:
            raise AssertionError(f"order {name}:\n{result}")
        results[name] = result
    return Checked(results, lambda: copied((args, kwargs)))


def _array(result: Simulated, name: str) -> Array:
    if name not in result.names:
        raise ArgumentError(
            f"{result.launch} has no array argument {name!r}",
            code="K533",
            fix=f"name one of {', '.join(result.names)}",
        )
    return result.outputs[result.names.index(name)]
