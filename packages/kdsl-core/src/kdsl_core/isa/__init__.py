"""The instruction set: every operation, with its type rule, PTX and meaning in one place.

Families are loaded one by one, when they are first used: a process that finds its kernels built
needs few of them. `ALL_OPS` lists the operations of all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdsl_core.isa.all_ops import ALL_OPS

__all__ = ["ALL_OPS"]


def __getattr__(name: str) -> Any:
    if name != "ALL_OPS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.all_ops").ALL_OPS
