"""A launch with its arguments, ready to run now or to be made again later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Work(NamedTuple):
    """`launch(*arrays, **statics)`, not yet done."""

    launch: Any
    arrays: tuple[Any, ...]
    statics: Mapping[str, Any]

    def run(self) -> None:
        """Launch, on the arrays' current stream."""
        self.launch(*self.arrays, **self.statics)
