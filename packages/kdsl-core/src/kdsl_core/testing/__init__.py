"""Tests of kernels: run in the simulator with every check, in several orders, and compare.

The fixture `simulate` of the pytest plugin is `kdsl_core.testing.simulate` with the seeds of the
project's settings. Nothing here but the plugin imports pytest, and pytest loads the plugin in every
run of an environment that has kdsl, so names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdsl_core.testing.compare import Tolerance, differences, tolerance_of
    from kdsl_core.testing.runs import Checked, simulate

__all__ = ["Checked", "Tolerance", "differences", "simulate", "tolerance_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kdsl_core.testing' has no attribute {name!r}")
    module = "runs" if name in ("Checked", "simulate") else "compare"
    return getattr(importlib.import_module(f"kdsl_core.testing.{module}"), name)
