"""Zeros that kernels count in, for any number of streams at a time and inside CUDA graphs."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import i32
from kdsl_fuse import arrays


class Counters:
    """Arrays of i32 zeros that a launch counts in and leaves as zeros again.

    Memory: one array for each stream, made at its first use. What a stream's capture records may be
    replayed beside anything, so each capture gets an array of its own, zeroed in the graph.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self._kept: dict[tuple[str, int], Any] = {}

    def take(self, like: Any) -> Any:
        """The counters for the next launch on the current stream of the array's device."""
        stream = arrays.stream_of(like)
        if stream is None or arrays.is_capturing(stream):
            return arrays.zeros((self.elements,), i32, like)
        key = arrays.place(like), stream
        if key not in self._kept:
            self._kept.setdefault(key, arrays.zeros((self.elements,), i32, like))
        return self._kept[key]
