"""The waiting warps of a cluster, and who of them could set whom free."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from kdsl_core.records import dataclass
from kdsl_core.sim.arrivals import Arrivals, Target
from kdsl_core.sim.clocks import GROUP_WARPS
from kdsl_core.sim.groups import Group
from kdsl_core.sim.machine import SimMachine
from kdsl_core.sim.parties import span_text
from kdsl_core.sim.waits import Awaited, Wait


@dataclass(frozen=True, eq=False)
class Node:
    """Warps (rows of one block) of a parked group that wait for one barrier.

    `target` is what an instruction that arrives there names; `completes` says that only bytes are
    missing. `missing` are the rows that have not arrived, where that is known.
    """

    group: Group
    rows: tuple[int, ...]
    awaited: Awaited
    target: Target | None = None
    completes: bool = False
    missing: frozenset[int] = frozenset()


class WaitGraph:
    """The waiting warps of one cluster (or block), and who of them could set whom free."""

    def __init__(self, machine: SimMachine, parked: list[Group], cluster: int) -> None:
        self._machine = machine
        self._cluster = cluster
        self.nodes = [node for group in parked for node in self._split(group)]

    # -- the nodes -----------------------------------------------------------------------------
    def _split(self, group: Group) -> list[Node]:
        """A group by block and by what its warps wait for."""
        batch, kinds = self._machine.batch, {"mbarrier": self._mbarriers, "barrier": self._barriers}
        mine = group.index[batch.clocks.cluster[group.index] == self._cluster]
        find = kinds.get(group.waits_for, self._without_number)
        found: dict[tuple[int, int], list[int]] = {}
        for row in mine.tolist():
            for number in find(group, row):
                found.setdefault((int(batch.block_of[row]), number), []).append(row)
        return [
            self._node(group, number, tuple(rows)) for (_, number), rows in sorted(found.items())
        ]

    def _mbarriers(self, group: Group, row: int) -> list[int]:
        return self._machine.mbarriers.awaited(row)

    def _barriers(self, group: Group, row: int) -> list[int]:
        batch, waiting = self._machine.batch, self._machine.barriers.waiting
        here = waiting[batch.block_of[row], :, batch.local[row]]
        return [int(number) for number in np.nonzero(here)[0]]

    def _without_number(self, group: Group, row: int) -> list[int]:
        return [row if group.waits_for in ("lanes", "warp group") else 0]

    def _node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        make = {
            "mbarrier": self._mbarrier_node,
            "barrier": self._barrier_node,
            "cluster": self._cluster_node,
            "lanes": self._lanes_node,
            "warp group": self._warp_group_node,
            "registers": self._registers_node,
        }[group.waits_for]
        return make(group, number, rows)

    def _mbarrier_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        barriers, places = self._machine.mbarriers, self._machine.reporter.places
        place = places.mbarrier(barriers.address(number))
        phase, pending = int(barriers.phase[number]), int(barriers.pending[number])
        awaited = Awaited(
            place.text, place.stage, phase, phase & 1, pending, int(barriers.count[number]),
            int(barriers.bytes[number]),
        )  # fmt: skip
        alloc = places.allocation(place.address)
        return Node(group, rows, awaited, alloc, completes=not pending)

    def _barrier_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        batch, barriers = self._machine.batch, self._machine.barriers
        block = int(batch.block_of[rows[0]])
        arrived = barriers.arrived[block, number]
        count = int(barriers.expected[block, number])
        awaited = Awaited(f"barrier {number}", None, None, None, count - int(arrived.sum()), count)
        others = block * batch.warps_per_block + np.nonzero(~arrived)[0]
        return Node(group, rows, awaited, number, missing=frozenset(others.tolist()))

    def _cluster_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        batch, arrivals = self._machine.batch, self._machine.cluster_barriers.arrivals
        inside = batch.clocks.cluster == self._cluster
        behind = np.nonzero(inside & (arrivals < arrivals[list(rows)].max()))[0]
        name, count = "the cluster's barrier", int(inside.sum())
        awaited = Awaited(name, None, None, None, int(behind.size), count)
        return Node(group, rows, awaited, missing=frozenset(behind.tolist()))

    def _lanes_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        return Node(group, rows, Awaited("other lanes of the warp"), missing=frozenset(rows))

    def _warp_group_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        first = rows[0] - int(self._machine.batch.local[rows[0]]) % GROUP_WARPS
        others = frozenset(range(first, first + GROUP_WARPS)) - frozenset(rows)
        name = "the other warps of its warp group, which have not started the same wgmma"
        return Node(group, rows, Awaited(name), missing=others)

    def _registers_node(self, group: Group, number: int, rows: tuple[int, ...]) -> Node:
        pool = self._machine.register_pool
        spare = pool.spare[int(self._machine.batch.block_of[rows[0]])]
        name = (
            f"{pool.wanted[rows[0]]} registers a thread, of which it has {pool.held[rows[0]]} and "
            f"the block {spare} to spare"
        )
        return Node(group, rows, Awaited(name))

    # -- the edges -----------------------------------------------------------------------------
    @cached_property
    def arrivals(self) -> Arrivals:
        """Which instructions of the kernel arrive where."""
        return Arrivals(self._machine.reporter.instructions)

    def arrivers(self, node: Node) -> list[tuple[Node, int | None]]:
        """Waiting warps that could set `node` free once they are, and where (an instruction)."""
        found: list[tuple[Node, int | None]] = []
        for other in self.nodes:
            if node.missing and not node.missing & set(other.rows):
                continue
            if node.target is None:
                if node.missing and other is not node:
                    found.append((other, None))
                continue
            ahead = self.arrivals.reachable(other.group.pc)
            at = self.arrivals.at(node.target, completes=node.completes)
            where = next((pc for pc in at if pc in ahead), None)
            if where is not None:
                found.append((other, where))
        return found

    # -- in words ------------------------------------------------------------------------------
    @cached_property
    def waits(self) -> list[Wait]:
        """One entry for each node, in the order of its first warp."""
        return [
            replace(self.wait(node), arrivers=tuple(self._named(node)))
            for node in sorted(self.nodes, key=lambda node: node.rows)
        ]

    def wait(self, node: Node) -> Wait:
        """A node as reports have it, without those who could arrive."""
        batch, row = self._machine.batch, node.rows[0]
        rank = int(batch.block_of[row]) % batch.blocks_per_cluster
        return Wait(
            tuple(int(batch.local[r]) for r in node.rows),
            batch.block_coordinate(row),
            rank if batch.blocks_per_cluster > 1 else None,
            self._machine.reporter.loc(node.group.stopped),
            node.awaited,
        )

    def _named(self, node: Node) -> list[str]:
        named = []
        for other, pc in self.arrivers(node):
            loc = None if pc is None else self._machine.reporter.loc(pc)
            at = f" at {loc.short()}" if loc else ""
            named.append(f"{self.wait(other).who}{at}")
        return named

    def places(self, instructions: list[int]) -> str:
        """The author's lines of some instructions."""
        locs = [self._machine.reporter.loc(pc) for pc in instructions]
        return ", ".join(dict.fromkeys(loc.short() for loc in locs if loc))

    def lines(self) -> list[str]:
        """A line for each waiting group, and one for the warps that have ended."""
        batch = self._machine.batch
        inside = batch.clocks.cluster == self._cluster
        ended = np.nonzero(inside & ~batch.alive.any(axis=1))[0]
        text = [str(wait) for wait in self.waits]
        for block in np.unique(batch.block_of[ended]).tolist():
            warps = batch.local[ended[batch.block_of[ended] == block]].tolist()
            rank = f" of rank {block % batch.blocks_per_cluster}"
            where = rank if batch.blocks_per_cluster > 1 else ""
            text.append(f"warp{'s' if len(warps) > 1 else ''} {span_text(warps)}{where} ended")
        return text
