"""The pytest plugin: a fixture `simulate`, and the seeds of the orders that it runs kernels in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdsl_core.errors import ArgumentError

SEEDS = "kdsl_seeds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting `kdsl_seeds`."""
    parser.addini(
        SEEDS,
        "seeds of the shuffled orders in which the fixture `simulate` runs kernels, "
        "besides the linear one",
        type="args",
        default=["0", "1"],
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker of the same name."""
    config.addinivalue_line(
        "markers", f"{SEEDS}(*seeds): run kernels in the orders of these seeds, besides the linear"
    )


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`simulate(kernel, grid, block, *args)` runs a kernel with all checks; see docs/testing.md."""
    from kdsl_core import testing

    seeds = seeds_of(request)

    def run(kernel: Any, grid: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return testing.simulate(kernel, grid, block, *args, **{"seeds": seeds, **kwargs})

    return run


def seeds_of(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """The seeds of the test's marker, or else of the project's settings.

    Raises: ArgumentError K534 for what is no whole number.
    """
    marker = request.node.get_closest_marker(SEEDS)
    given = request.config.getini(SEEDS) if marker is None else marker.args
    try:
        return tuple(int(seed) for seed in given)
    except ValueError:
        raise ArgumentError(
            f"{SEEDS} expects whole numbers, got {' '.join(map(str, given))}",
            code="K534",
            fix=f"write {SEEDS} = 0 1 2 in the pytest settings",
        ) from None
