"""Launches that are asked for and not yet made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kdsl_core.lang.launch import Launch, launches_go_to


class Work(NamedTuple):
    """`launch(*arrays, **statics)`."""

    launch: Launch
    arrays: tuple[Any, ...]
    statics: Mapping[str, Any]

    def run(self) -> None:
        """Launch, on the arrays' current stream."""
        self.launch(*self.arrays, **self.statics)


def work_of(function: Callable[[], Any]) -> list[Work]:
    """The launches that `function` makes, in order, without one of them made."""
    found: list[Work] = []
    with launches_go_to(lambda *launched: found.append(Work(*launched))):
        function()
    return found
