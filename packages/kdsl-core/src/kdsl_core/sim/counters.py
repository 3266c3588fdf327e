"""What the hardware would count, per instruction of a flat program, while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

from kdsl_core.ir.flat import Instruction
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.footprint import Footprint
from kdsl_core.sim.groups import Group
from kdsl_core.sim.lanes_that_meet import served_at_once
from kdsl_core.sim.traffic import (
    LINE,
    SECTOR,
    WAVEFRONT,
    count_sectors,
    count_tag_requests,
    count_wavefronts,
)

_REMEMBERED = 8192
_Count: TypeAlias = Callable[[Array, Array | None, int], tuple[int, ...]]
_CLUSTER = ("requests", "sectors", "ideal_sectors", "bytes")
_GLOBAL = (*_CLUSTER, "tag_requests")
_SHARED = ("wavefronts", "ideal_wavefronts")


def _no_counts() -> dict[str | tuple[str, str], float]:
    return defaultdict(float)


def _count_global(address: Array, active: Array | None, size: int) -> tuple[int, ...]:
    found = count_sectors(address, active, size)
    return *found, count_tag_requests(address, active, size)


# how to count: the function, what it gives, and the bytes by which addresses may be shifted
_RULES: dict[str, tuple[_Count, tuple[str, ...], int]] = {
    "global": (_count_global, _GLOBAL, LINE),
    "cluster": (count_sectors, _CLUSTER, SECTOR),
    "shared": (count_wavefronts, _SHARED, WAVEFRONT),
    "shared, merged": (partial(count_wavefronts, merged=True), _SHARED, WAVEFRONT),
    "shared, in turn": (partial(count_wavefronts, in_turn=True), _SHARED, WAVEFRONT),
}
_OF_KIND = {
    "ld": "load",
    "st": "store",
    "atomic": "atomic",
    "cp.async": "async_copy",
    "ldmatrix": "ldmatrix",
    "stmatrix": "stmatrix",
}
_WITHOUT_SPACE = ("async_copy", "ldmatrix", "stmatrix")  # what the name says already


class Counters:
    """Counts per instruction of a flat program; repeated address patterns are counted once.

    `steps[i]` are the warps that executed instruction i, `idle[i]` the lanes that these lacked.
    `counts[i]` has the rest: what accesses move as (traffic, measure), other things by one name.
    """

    def __init__(self, instructions: list[Instruction]) -> None:
        self.enabled = False
        self.instructions = instructions
        self.counts: dict[int, dict[str | tuple[str, str], float]] = defaultdict(_no_counts)
        self.steps = [0] * len(instructions)
        self.idle = [0] * len(instructions)
        self.footprint: Footprint | None = None
        self._known: dict[tuple[str, bytes], tuple[int, ...]] = {}

    def start(self, *, footprint: bool = False) -> None:
        """Count more than steps from now on."""
        self.enabled = True
        self.footprint = Footprint() if footprint else None

    @cached_property
    def _served_at_once(self) -> frozenset[int]:
        return served_at_once(self.instructions)

    def step(self, pc: int, group: Group, times: int = 1) -> None:
        """Count that a group executed an instruction, or with −1 that it did not, after all."""
        self.steps[pc] += times * group.size
        self.idle[pc] += times * group.idle

    def add(self, pc: int, what: str | tuple[str, str], amount: float) -> None:
        """Add to a counter of an instruction."""
        self.counts[pc][what] += amount

    def access(
        self, pc: int, space: str, kind: str, address: Array, active: Array | None, size: int
    ) -> None:
        """Count an access of `size` bytes at int64 addresses (W, n).

        `space` is "global", "shared" or "cluster"; `kind` the machine's word for its kind.
        """
        name = _OF_KIND[kind]
        traffic = name if name in _WITHOUT_SPACE else f"{space}_{name}"
        if space == "global" and self.footprint is not None:
            self.footprint.access(kind, address, active, size)
        rule = space
        if traffic == "shared_load":
            rule = "shared, merged"
        elif traffic == "shared_atomic" and pc not in self._served_at_once:
            rule = "shared, in turn"
        row = self.counts[pc]
        for measure, amount in zip(
            _RULES[rule][1], self._count(rule, address, active, size), strict=True
        ):
            row[traffic, measure] += amount

    def _count(self, rule: str, address: Array, active: Array | None, size: int) -> tuple[int, ...]:
        """The count of an access, remembered by its pattern."""
        count, _, unit = _RULES[rule]
        key, relative = _pattern(address, active, size, unit)
        found = self._known.get((rule, key))
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[rule, key] = count(relative, active, size)
        return found


def _pattern(address: Array, active: Array | None, size: int, unit: int) -> tuple[bytes, Array]:
    """A key that equal counts share, and the addresses from a multiple of `unit` on."""
    base = int(address.min()) // unit * unit
    relative = np.ascontiguousarray(address - base)
    mask = b"" if active is None else np.packbits(active).tobytes()
    return b"%d %d %d " % (size, *address.shape) + mask + relative.tobytes(), relative
