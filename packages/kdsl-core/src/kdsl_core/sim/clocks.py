"""Vector clocks: what each warp knows of the past of the other agents of its cluster.

Agents are the warps of a cluster, then the tensor cores of its warp groups, then one for each
mbarrier that transfers complete at: what a transfer wrote is that agent's, so only those who waited
for the phase may touch it, and what a warp group's wgmma read is the tensor core's, so only those
may change it who waited for the wgmma.
"""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.lane_releases import LaneReleases
from kdsl_core.sim.loads_under_way import LoadsUnderWay

MOST_AGENTS = 1 << 10
UNIT_EPOCH = 1 << 24  # of units' first work: later than those of all warps
GROUP_WARPS = 4
_GROWTH = 8
# Kinds of knowledge: everything, what reaches asynchronous units in shared memory, what is past
# even where nothing was released, and what reaches those units in global memory.
_KNOWN, _REACHED, _KINDS = 0, 2, 4


class ClockTable:
    """Clocks that somebody keeps for later, such as those released at a barrier.

    Shapes: `rows` (count, 4, agents), like `Clocks.past`.
    """

    __slots__ = ("rows",)

    def __init__(self, count: int, agents: int) -> None:
        self.rows = np.zeros((count, _KINDS, agents), np.int64)

    def widen(self, agents: int) -> None:
        """Make room for more agents."""
        more = agents - self.rows.shape[2]
        self.rows = np.pad(self.rows, ((0, 0), (0, 0), (0, more)))

    def lengthen(self, count: int) -> None:
        """Make room for more clocks."""
        now, *each = self.rows.shape
        self.rows = np.concatenate([self.rows, np.zeros((count - now, *each), np.int64)])

    def add(self, at: Array, clocks: Array) -> None:
        """Join clocks into those at some places, which may repeat."""
        np.maximum.at(self.rows, at, clocks)


class Clocks:
    """One vector clock per warp of a batch.

    `epoch[w]` counts the moments at which warp w published its past. `known[w, a]` is the last
    epoch of agent a (of w's cluster) whose accesses happened before what w does now; the entry of
    w itself is `epoch[w] − 1`, because lanes of one warp are ordered only by a synchronisation as
    well. `proxy[w, a]` is the same for asynchronous units that w starts: ordinary accesses to
    shared memory reach them through a proxy fence only, those to global memory (`global_proxy`)
    too. `reached[w, a]` is the last epoch that has ended, which relaxed arrivals tell, too.
    `everyone` is the least that warps know of each other: accesses of warps up to it are ordered
    for all. Where clocks are not `kept`, nobody may ask.
    """

    kept = True

    def __init__(
        self, blocks: int, warps_per_block: int, cluster: int = 1, *, wgmma: bool = False
    ) -> None:
        count = blocks * warps_per_block
        groups = -(-warps_per_block // GROUP_WARPS) if wgmma else 0
        self.warps = warps_per_block * cluster
        self.readers = self.warps + groups * cluster
        self.warps_per_block = warps_per_block
        self.epoch = np.ones(count, np.int64)
        self.local = np.arange(count) % self.warps
        self.cluster = np.arange(count) // self.warps
        rank, warp = np.divmod(self.local, warps_per_block)
        self.tensor_core = self.warps + rank * groups + warp // GROUP_WARPS
        self.everyone = 0
        self._tables: list[ClockTable] = []
        self.launch_ahead = self.readers  # the column of what ran before this kernel
        self._agents = np.full(blocks // cluster, self.readers + 1, np.int64)
        self._past = self.table(count)
        self._look()
        self._fenced = self.table(count)
        self._by_atomics = self.table(blocks // cluster)
        self._fences = False
        self.lanes = LaneReleases(self.epoch)
        self.loads = LoadsUnderWay(self.epoch)

    def _look(self) -> None:
        self.past = self._past.rows
        self.known, self.proxy, self.reached, self.global_proxy = self.past.transpose(1, 0, 2)

    def table(self, count: int) -> ClockTable:
        """A table of clocks that grows with the number of agents."""
        made = ClockTable(count, self.past.shape[2] if self._tables else self.readers + 1)
        self._tables.append(made)
        return made

    def new_agents(self, clusters: Array) -> Array:
        """One new agent for each of some clusters, which may repeat; gives their columns."""
        columns = np.empty(clusters.size, np.int64)
        for at, cluster in enumerate(clusters.tolist()):
            columns[at] = self._agents[cluster]
            self._agents[cluster] += 1
        most = int(self._agents.max())
        if most > self.past.shape[2]:
            for table in self._tables:
                table.widen(-(-most // _GROWTH) * _GROWTH)
            self._look()
        return columns

    def tick(self, index: Array) -> None:
        """Publish the past of warps: later accesses belong to their next epoch."""
        self.known[index, self.local[index]] = self.epoch[index]
        self.reached[index, self.local[index]] = self.epoch[index]
        self.epoch[index] += 1

    def join(self, index: Array, clock: Array) -> None:
        """Warps `index` learn `clock`, (W, 4, agents) or broadcast to it."""
        self.past[index] = np.maximum(self.past[index], clock)
        self.settle()

    def settle(self) -> None:
        """Recompute `everyone` after clocks were joined."""
        self.everyone = int(self.known[:, : self.warps].min())

    def join_blocks(self, blocks: Array) -> None:
        """All warps of each of `blocks` publish their past and learn that of the others."""
        per_block = self.warps_per_block
        index = (blocks[:, None] * per_block + np.arange(per_block)).reshape(-1)
        self.tick(index)
        rows = self.past.reshape(-1, per_block, *self.past.shape[1:])
        rows[blocks] = rows[blocks].max(axis=1, keepdims=True)
        self.settle()

    def fence(self, index: Array) -> None:
        """What these warps did so far is released by their next atomic."""
        self.tick(index)
        self._fenced.rows[index] = self.past[index]
        self._fences = True

    def fence_proxy(self, index: Array, space: str) -> None:
        """What these warps know now reaches asynchronous units, in one space or ("") in all."""
        for reaches, other in ((self.proxy, "global"), (self.global_proxy, "shared")):
            if not space.startswith(other):
                reaches[index] = np.maximum(reaches[index], self.known[index])
                reaches[index, self.local[index]] = self.epoch[index]
        self.epoch[index] += 1

    def publish(self, index: Array, *, relaxed: bool = False) -> Array:
        """The past of warps for others to learn, (W, 4, agents); their lanes stay unordered.

        When `relaxed`, only that they have come so far, and what units did that they waited for.
        """
        clocks = self.past[index]
        for kind in (_KNOWN, _REACHED):
            clocks[np.arange(index.size), kind, self.local[index]] = self.epoch[index]
        if relaxed:
            told = np.arange(_KINDS) != _REACHED
            clocks[:, told, : self.warps] = 0
            clocks[:, told, self.launch_ahead] = 0
        self.epoch[index] += 1
        return clocks

    def finish_wgmma(self, index: Array, groups: Array) -> None:
        """Warps know that the first `groups` (W,) of their warp group's wgmma are done."""
        column = self.tensor_core[index]
        epoch = np.where(groups > 0, UNIT_EPOCH + groups, 0)
        for knowledge in (self.known, self.reached):
            knowledge[index, column] = np.maximum(knowledge[index, column], epoch)

    def finish_launch_ahead(self, index: Array) -> None:
        """Warps know that the launches ahead of this one have ended."""
        self.past[index, :, self.launch_ahead] = UNIT_EPOCH

    def has_reached(self, index: Array, warps: Array, epochs: Array) -> Array:
        """Whether each warp is ordered behind the moments `epochs` of other warps, bool (W, n)."""
        return np.asarray(self.reached[index[:, None], self.local[warps]] >= epochs)

    def after_launch_ahead(self, index: Array) -> Array:
        """Which of the warps know that the launches ahead have ended, bool (W,)."""
        return np.asarray(self.known[index, self.launch_ahead] > 0)

    def atomic(self, index: Array) -> None:
        """Release what was fenced, and acquire what other warps of the cluster released."""
        if not self._fences:
            return
        clusters = self.cluster[index]
        self._by_atomics.add(clusters, self._fenced.rows[index])
        self.join(index, self._by_atomics.rows[clusters])
