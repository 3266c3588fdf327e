"""When a tensor core's sums are worth compiled code, and whether there is any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

AddProducts: TypeAlias = Callable[..., None]

# Importing numba and its compiled loop from the disk takes as long as NumPy's way takes for so many
# products. So a process that sums few of them never waits for it, and no process for long.
_WORTH = 1 << 28


class CompiledSums:
    """The compiled loop, from when a process has formed `after` products without it."""

    def __init__(self, after: float = _WORTH) -> None:
        self._left = after
        self._loop: AddProducts | None = None

    def for_products(self, count: int) -> AddProducts | None:
        """`tensor_core_loop.add_products` for that many more products; None for NumPy's way."""
        if self._left > 0:
            self._left -= count
            if self._left <= 0:
                self._loop = _load()
        return self._loop


def _load() -> AddProducts | None:
    """None where numba is not installed, or can compile nothing, or has nowhere to keep it."""
    try:
        from kdsl_core.isa.tensor_core_loop import add_products
    except (ImportError, RuntimeError):
        return None
    found: AddProducts = add_products
    return found


COMPILED = CompiledSums()
