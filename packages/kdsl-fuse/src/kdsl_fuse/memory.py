"""Where a plan keeps the values between its launches: one array of bytes, used over and over."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from kdsl_core.dtypes import u8
from kdsl_fuse import arrays
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Node

ALIGNMENT = 256  # of each value, in bytes: what TMA and vectors of any width can take


@dataclass(frozen=True)
class MemoryPlan:
    """A place in bytes for each value that only later launches of the plan read.

    `peak_bytes` is the size of the array that holds them, `live_bytes` what the values need that
    are alive at once at the worst time, and `unshared_bytes` what all of them would take.

    A place is given again only to launches behind the last one that reads it. All launches are in
    order on one stream, and one that starts early (`overlap`) waits for the launch before it before
    it touches memory.
    """

    values: dict[str, int]
    peak_bytes: int = 0
    live_bytes: int = 0
    unshared_bytes: int = 0

    def arena(self, like: Any) -> Any:
        """The array of bytes for one run; None where no value needs it."""
        return arrays.empty((self.peak_bytes,), u8, like) if self.peak_bytes else None

    def place(self, node: Node, arena: Any, like: Any) -> Any:
        """The array that a launch writes a value to: a part of the arena, or a new one."""
        if node.name not in self.values:
            return arrays.empty(node.shape, node.dtype, like)
        return arrays.part(arena, self.values[node.name], node.shape, node.dtype)

    def __str__(self) -> str:
        count = len(self.values)
        return (
            f"memory between launches: {count} value{'s' * (count > 1)} in {self.peak_bytes} bytes "
            f"({self.live_bytes} alive at once, {self.unshared_bytes} without reuse)"
        )


def plan_memory(
    calls: Sequence[KernelCall | None], reads: Sequence[Sequence[str]], kept: Set[str]
) -> MemoryPlan:
    """Places for what `calls` store, by the step at which each is written and last read.

    A step that is None keeps its value by itself; `kept` values leave the plan.
    """
    last = {name: step for step, names in enumerate(reads) for name in names}
    free = _FreeBytes()
    places: dict[str, int] = {}
    dying: dict[int, list[tuple[int, int]]] = {}
    live = most = total = 0
    for step, call in enumerate(calls):
        for node in call.outputs if call else ():
            if node.name in kept or node.bytes == 0:
                continue
            size = -(-node.bytes // ALIGNMENT) * ALIGNMENT
            places[node.name] = free.take(size)
            dying.setdefault(last.get(node.name, step), []).append((places[node.name], size))
            live, total = live + size, total + size
        most = max(most, live)
        for start, size in dying.pop(step, ()):
            free.give(start, size)
            live -= size
    return MemoryPlan(places, free.end, most, total)


class _FreeBytes:
    """The gaps of an arena, each (start, size), and its end, which moves up when none is enough."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """The smallest gap that is large enough; else the end, with a gap before it used up."""
        fitting = [gap for gap in self._gaps if gap[1] >= size]
        if fitting:
            start, room = min(fitting, key=lambda gap: gap[1])
            self._gaps.remove((start, room))
            if room > size:
                insort(self._gaps, (start + size, room - size))
            return start
        start = self.end
        if self._gaps and sum(self._gaps[-1]) == self.end:
            start = self._gaps.pop()[0]
        self.end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Make a part free again, in one piece with its neighbours."""
        insort(self._gaps, (start, size))
        self._gaps = list(_merged(self._gaps))


def _merged(gaps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    start, size = gaps[0]
    for other, more in gaps[1:]:
        if other == start + size:
            size += more
        else:
            yield start, size
            start, size = other, more
    yield start, size
