"""Entries of shadow memory: one integer that says who touched a byte, where and when.

An entry is epoch · 2³⁷ + instruction · 2¹⁷ + asynchronous · 2¹⁶ + atomic · 2¹⁵ + agent · 2⁵ + lane,
and 0 for "never". Comparing epochs is a shift, and a whole access is checked with a few array
operations. An agent is a column of the vector clocks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import Clocks

EPOCH_SHIFT = 37
PC_SHIFT, _PC = 17, (1 << 20) - 1
INFLIGHT = 1 << 62  # later than every epoch, so that no clock has seen it
ASYNC = 1 << 16  # by an asynchronous unit: TMA or the tensor core
ATOMIC = 1 << 15
AGENT_SHIFT, AGENT = 5, (1 << 10) - 1
SEVERAL = 1 << 5  # in a reader's entry: more lanes of the warp than the one named
THREAD = (1 << 15) - 1
BELOW_EPOCH = (1 << EPOCH_SHIFT) - 1


@dataclass(frozen=True, eq=False)
class Conflict:
    """Accesses of one instruction that are not ordered with earlier ones.

    `at` are positions in the access (L,); `entry` the other party's entries; `cluster` their
    clusters where that may differ; `column` says which of the access's `columns` granules it is
    about; `other` is what it did: "wrote", "read", "copies", "transfers", or "reads" for an
    unfinished asynchronous read, "multiplies" for one of the tensor core, "loads" for a load that
    the instruction `passed_by` did not wait for, None where that is the access itself.
    """

    code: str
    at: Array
    entry: Array
    other: str
    cluster: Array | None = None
    column: Array | None = None
    columns: int = 1
    passed_by: int | None = None

    def byte(self, number: int, size: int) -> int:
        """Where in an access of `size` bytes the conflict number `number` is."""
        return 0 if self.column is None else int(self.column[number]) * size // self.columns

    def take(self, chosen: Array) -> Conflict:
        """The part with the chosen positions, bool (L,)."""
        cluster = None if self.cluster is None else self.cluster[chosen]
        column = None if self.column is None else self.column[chosen]
        at, entry = self.at[chosen], self.entry[chosen]
        return replace(self, at=at, entry=entry, cluster=cluster, column=column)


def entry_pc(entry: Array) -> Array:
    """The instructions of entries."""
    return entry >> PC_SHIFT & _PC


def entry_thread(entry: int) -> tuple[int, int]:
    """(agent, lane) of an entry."""
    return entry >> AGENT_SHIFT & AGENT, entry & 31


def entries(clocks: Clocks, access: Access) -> Array:
    """The entry of each thread of an access (L,)."""
    thread = clocks.local[access.row] << AGENT_SHIFT | access.lane
    return (clocks.epoch[access.row] << EPOCH_SHIFT) + (access.pc << PC_SHIFT) + thread


def unordered(clocks: Clocks, access: Access, old: Array) -> Array:
    """Which entries (L, k) of the same cluster do not happen before the access, bool (L, k)."""
    row = access.row[:, None]
    late = (old >> EPOCH_SHIFT) > clocks.known[row, old >> AGENT_SHIFT & AGENT]
    if clocks.lanes.any:
        late |= _withheld(clocks, access, old)
    if late.any() and not access.whole_warp:
        me = clocks.local[row] << AGENT_SHIFT | access.lane[:, None]
        late &= ((old & THREAD) != me) | (old >= INFLIGHT)
    return np.asarray(late)


def _withheld(clocks: Clocks, access: Access, old: Array) -> Array:
    """Which entries (L, k) are of lanes for which another lane of their warp arrived."""
    row = np.broadcast_to(access.row[:, None], old.shape).reshape(-1)
    entry = old.reshape(-1)
    agent = entry >> AGENT_SHIFT & AGENT
    other = np.where(agent < clocks.warps, row // clocks.warps * clocks.warps + agent, -1)
    known, lane = clocks.known[row, agent], entry & 31
    return clocks.lanes.withheld(row, known, other, lane, entry >> EPOCH_SHIFT).reshape(old.shape)


def unfenced(proxy: Array, access: Access, old: Array) -> Array:
    """Which ordinary writes (L, k) do not reach asynchronous units of the access, bool (L, k).

    `proxy` is what of them is known to reach such units in their space: a part of the clocks.
    """
    row = access.row[:, None]
    hidden = (old >> EPOCH_SHIFT) > proxy[row, old >> AGENT_SHIFT & AGENT]
    return np.asarray(hidden & (old & ASYNC == 0) & (old != 0))


def first_of(code: str, which: Array, old: Array, other: str) -> list[Conflict]:
    """A conflict with one entry per thread of those chosen, bool (L, k); none for none."""
    at = np.nonzero(which.any(axis=1))[0]
    if not at.size:
        return []
    column = which[at].argmax(axis=1)
    return [Conflict(code, at, old[at, column], other, None, column, which.shape[1])]
