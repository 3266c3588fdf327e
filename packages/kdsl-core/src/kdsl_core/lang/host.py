"""The one place where the core finds the runtime, by name, and only when a launch needs it."""

from __future__ import annotations

import importlib
from typing import Any

from kdsl_core.errors import ArgumentError


def runtime(why: str) -> Any:
    """The package kdsl_runtime.

    Raises: ArgumentError K602 when it is not installed; `why` says what needed it.
    """
    try:
        return importlib.import_module("kdsl_runtime")
    except ModuleNotFoundError as problem:
        if problem.name != "kdsl_runtime":
            raise
        raise ArgumentError(
            f"{why} needs the package kdsl-runtime, which is not installed",
            code="K602",
            fix="install kdsl-runtime, or pass NumPy arrays to run in the simulator",
        ) from problem
