"""Totals over a row: of a thread, by shuffles in a warp, by shared memory between warps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import kdsl_core as kd

WARP = 32


def reduced(
    phase: Any, vectors: Any, inside: Sequence[Any], stats: Any, state: Any = None
) -> tuple[Any, ...]:
    """A phase's state of vectors, joined to a state; but for those that are not `inside`.

    `inside` has a condition for each vector, or None where it is certain.
    """
    dtype = vectors[0][0].dtype
    if any(x is not None for x in inside) and phase.fill(dtype, stats) is None:
        state = phase.identity(dtype) if state is None else state
        for values, here in zip(vectors, inside, strict=True):
            more = phase.extend(state, values, stats)
            pairs = zip(more, state, strict=True)
            state = more if here is None else tuple(kd.where(here, *pair) for pair in pairs)
        return tuple(state)
    found = [
        value if here is None else kd.where(here, value, phase.fill(dtype, stats))
        for values, here in zip(vectors, inside, strict=True)
        for value in values
    ]
    made = phase.local(found, stats) if state is None else phase.extend(state, found, stats)
    return tuple(made)


class SideBySide:
    """A phase of several rows: their states one behind the other."""

    def __init__(self, phase: Any, rows: int) -> None:
        self.phase, self.rows = phase, rows

    def identity(self, dtype: Any) -> tuple[Any, ...]:
        """The states of no elements."""
        return tuple(self.phase.identity(dtype)) * self.rows

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """The states of both, row by row."""
        pairs = zip(self.split(a), self.split(b), strict=True)
        return tuple(x for pair in pairs for x in self.phase.combine(*pair))

    def split(self, states: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Each row's state."""
        each = len(states) // self.rows
        return [states[row * each : (row + 1) * each] for row in range(self.rows)]


class Totals(ABC):
    """Combines what each thread found in its part of a row; all of them get the total.

    Warps of a row write their states into shared memory of every block that has a part in it, wait
    for each other, and each combines all states in the same order.
    """

    def __init__(self, config: Any) -> None:
        self.lanes, self.groups, self.cluster = config.lanes, config.groups, config.cluster
        self.warps = -(-config.lanes // WARP)
        self.slots = self.warps * self.cluster

    def totals(self, number: int, phase: Any, states: list[tuple[Any, ...]]) -> list[Any]:
        """The combined states of the threads of each row that they take together."""
        if len(states) == 1:
            return [self.total(number, phase, states[0])]
        rows = SideBySide(phase, len(states))
        return rows.split(self.total(number, rows, tuple(x for row in states for x in row)))

    def total(self, number: int, phase: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The combined states of a row's threads. `number` counts phases."""
        state = tuple(kd.as_scalar(x) for x in state)
        state = over_lanes(phase, state, min(self.lanes, WARP))
        return state if self.slots == 1 else self._over_warps(number, phase, state)

    @abstractmethod
    def _over_warps(self, number: int, phase: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same of warps with totals of their own."""

    def _buffers(self, number: int, state: tuple[Any, ...], count: int) -> list[Any]:
        """Places for the states of all warps of a row, so many times, of each number."""
        shape = (self.slots, count)
        return [kd.smem(x.dtype, shape, name=f"phase{number}") for x in state]

    def _give(self, held: Any, state: Any, lane: Any, among: Any, group: Any) -> None:
        """Write the state of the row's warp number `among` to every block that has a part in it."""
        if self.cluster == 1:
            for there, value in zip(held, state, strict=True):
                there.store((among, group), value, lane == 0)
            return
        slot = kd.cluster_rank() * self.warps + among
        for own, value in zip(held, state, strict=True):
            peer = kd.peer(own, lane % self.cluster)
            peer.store((slot, group), value, lane < self.cluster)

    def _gathered(self, phase: Any, held: Any, state: Any, lane: Any, group: Any) -> Any:
        """The combination of all slots of a row, from shared memory."""
        across = min(1 << (self.slots - 1).bit_length(), WARP)
        total: Any = None
        for first in range(0, self.slots, WARP):
            slot = lane % across + first
            found = tuple(self._slot(there, slot, first, group) for there in held)
            if first + across > self.slots:
                nothing = phase.identity(state[0].dtype)
                exists = slot < self.slots
                found = tuple(kd.where(exists, *x) for x in zip(found, nothing, strict=True))
            total = found if total is None else phase.combine(total, found)
        return over_lanes(phase, total, across)

    def _slot(self, there: Any, slot: Any, first: int, group: Any) -> Any:
        whole = first + WARP <= self.slots or self.slots & (self.slots - 1) == 0
        return there.load((slot, group), None if whole else slot < self.slots)


class Exchange(Totals):
    """Totals of blocks that have a row each: one barrier of all in each phase.

    Threads: the whole block, and all blocks of the cluster.
    Memory: a buffer for each phase, so that none is written while it is read.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.met = self.cluster == 1
        if not self.met:
            kd.cluster_arrive(relaxed=True)  # this block runs: peers may write to it

    def _over_warps(self, number: int, phase: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        held = self._buffers(number, state, self.groups)
        warp, lane = kd.warp_idx(), kd.lane_idx()
        group, among = warp // self.warps, warp % self.warps
        if not self.met:  # once, before the first of all rows and phases
            kd.cluster_wait()
            self.met = True
        self._give(held, state, lane, among, group)
        if self.cluster == 1:
            kd.sync_threads()
        else:
            kd.cluster_sync()
        return self._gathered(phase, held, state, lane, group)


def over_lanes(phase: Any, state: tuple[Any, ...], lanes: int) -> tuple[Any, ...]:
    """The combined states of neighbouring lanes, a power of two of them, in each of them."""
    step = lanes // 2
    while step:
        state = phase.combine(state, tuple(kd.shfl_xor(x, step) for x in state))
        step //= 2
    return state
