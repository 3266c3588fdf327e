"""Long rows one after another through rings of shared memory, in blocks that stay.

A warp of each block does nothing but copy the block's parts of rows ahead, turn by turn; groups of
the other warps take rows by turns, reduce them where they lie, and write results meanwhile.

Each group has a ring of its own, and the copying warp goes through all rows in their order. Nobody
waits in vain: a stage that a row needs was held by an earlier row of the same group, as a ring has
stages for all turns of a row. So when all rows before it are done in all blocks of the cluster, a
row comes as a whole to each of them, and its groups, which have nothing else to do, meet.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.collective.pipeline import RingPosition
from kdsl_fuse.kernels.row_exchange import WARP, Totals
from kdsl_fuse.kernels.row_staging import Chunks
from kdsl_fuse.kernels.row_turns import Turns, take_row
from kdsl_fuse.kernels.vectors import begin

_MEETINGS = 2


@kd.func
def take_from_rings(program, operands, share):
    """The rows of a cluster: its own number, and each that is a grid's clusters further on.

    A block ends when it has met its peers for the last row. Nobody writes to it then any more: what
    they give comes before their arrivals, for all of which it has waited.

    Threads: the whole block, and all blocks of the cluster.
    """
    config = share.config
    rings, exchange = Rings(operands, config), RingTotals(config)
    kd.collective.init_together(rings.pipeline, exchange)
    begin(config)
    group = kd.warp_uniform(kd.warp_idx()) // exchange.warps
    if group == config.groups:
        fill_rings(rings, share)
    else:
        take_rows(program, operands, share, rings.of(group), exchange)


@kd.func
def fill_rings(rings, share):
    """Copy the rows of all groups in their order. Threads: one warp, of which one thread copies."""
    groups = range(share.config.groups)
    writers = [rings.of(number).pipeline.writer() for number in groups]
    if kd.elect_one():
        for first in kd.range(kd.cluster_idx()[0], share.height, clusters() * len(groups)):
            fill_row(rings.of(0), writers[0], share.of(first))
            for number in groups[1:]:
                row = first + clusters() * number
                if row < share.height:
                    fill_row(rings.of(number), writers[number], share.of(row))


@kd.func
def fill_row(ring, write, share):
    """Copy the block's part of a row to the next stages."""
    for turn in kd.range(share.config.staged):
        ring.fill(write, share, turn)


@kd.func
def take_rows(program, operands, share, ring, exchange):
    """Reduce and write the rows of a group of warps."""
    first = kd.cluster_idx()[0] + clusters() * ring.group
    for row in kd.range(first, share.height, clusters() * share.config.groups):
        take_row(RingTurns(program, operands, share.of(row), ring), exchange)


def clusters() -> Any:
    """Clusters of the grid."""
    return kd.grid_dim()[0] // kd.cluster_dim()[0]


class Rings:
    """The stages of all groups, each for what a block takes of a row in a turn."""

    def __init__(self, operands: Any, config: Any) -> None:
        self.chunks = Chunks(operands, config, config.ring * config.groups)
        self.pipeline = kd.collective.TmaPipeline(
            config.ring,
            config.chunk * self.chunks.column_bytes,
            config.lanes // WARP,
            rings=config.groups,
            scope="cta",
        )

    def of(self, group: Any) -> Ring:
        """The ring of a group."""
        return Ring(self, group)


class Ring:
    """The stages of a group, and where its next row begins."""

    def __init__(self, rings: Rings, group: Any) -> None:
        self.group, self.chunks = group, rings.chunks
        self.pipeline = rings.pipeline.ring(group)
        self.stages = self.pipeline.stages
        self.next = RingPosition(self.stages, 0, 0)

    def fill(self, write: Any, share: Any, turn: Any) -> None:
        """Copy a turn of a row to the next stage, once it is free."""
        part = turn * share.config.cluster + kd.cluster_rank()
        size = self.chunks.size(share, part)
        stage, full = write.acquire(size * self.chunks.column_bytes)
        self.chunks.copy_chunk(share, part, size, self.place(stage), full)
        write.advance()

    def place(self, stage: Any) -> Any:
        """The place of a stage among those of all groups."""
        return self.group * self.stages + stage


class Reading:
    """The turns of a row in their order: the `first` time as they come, the `last` time freed."""

    def __init__(self, ring: Ring, first: bool, last: bool) -> None:
        self.ring, self.first, self.last = ring, first, last
        start = ring.next
        self.at = start if last else RingPosition(ring.stages, start.index, start.parity)

    def read(self, row: Any, share: Any) -> list[list[list[Any]]]:
        """Vectors of each input, of the turn that comes next."""
        stage, pipeline = self.at.stage, self.ring.pipeline
        if self.first:
            pipeline.full[stage].wait(self.at.parity, scope=pipeline.scope)
        return self.ring.chunks.vectors(row, share, self.ring.place(stage))

    def leave(self, stored: bool) -> None:
        """Go on to the next turn; what was read of this one was `stored`, or only computed with.

        An arrival does not wait for loads that are on their way, but for stores of their data. A
        fence waits for all loads, those of the next turn's operands, too.
        """
        if self.last:
            if not stored:
                kd.fence_proxy_async()
            kd.sync_warp()
            self.ring.pipeline.empty[self.at.stage].arrive(pred=kd.lane_idx() == 0)
        self.at.advance()


class RingTurns(Turns):
    """The turns of a row that comes through a ring, once for each phase and for the results."""

    def __init__(self, program: Any, operands: Any, share: Any, ring: Ring) -> None:
        super().__init__(program, operands, share, None)
        self.ring, self.readings = ring, 0

    def reduced(self, phase: Any, stats: Any) -> Any:
        """This thread's state of a phase."""
        self._begin_reading()
        return super().reduced(phase, stats)

    def write(self, stats: Any) -> None:
        """Compute and write the results."""
        self._begin_reading()
        super().write(stats)

    def _begin_reading(self) -> None:
        readings = len(self.program.phases) + bool(self.program.outputs)
        self.readings += 1
        self.source = Reading(self.ring, self.readings == 1, self.readings == readings)

    def _extended(
        self, phase: Any, stats: Any, part: Any, state: Any = None, read: Any = None
    ) -> list[Any]:
        found = super()._extended(phase, stats, part, state, read)
        self.source.leave(stored=False)
        return found

    def _write(self, part: Any, read: Any, stats: Any, after: Any) -> None:
        super()._write(part, read, stats, after)
        self.source.leave(stored=True)


class RingTotals(Totals):
    """Totals of groups of warps that do not wait for other groups.

    Warps write their states to all blocks of the cluster, arrive at an mbarrier in each, and wait
    at that of their own block. There are two sets of buffers and barriers for each group, taken by
    turns. Two are enough: a warp writes for the meeting after next when the next one is complete in
    its block, so all warps of all blocks have arrived at that, behind their reads of this one. And
    two are needed: when this meeting is complete in one block, arrivals may still be on their way
    to another one, and slow warps still read.

    Threads: all of a group, in all blocks of the cluster.
    Memory: 16 bytes of shared memory a group, and two sets of buffers for each phase.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.slots > 1:
            self.met = kd.mbarrier(self.slots, _MEETINGS * self.groups, name="met")
        self.at = RingPosition(_MEETINGS, 0, 0)

    def init(self) -> None:
        """Initialise the barriers. Threads: one, before a barrier of the cluster."""
        if self.slots > 1:
            self.met.init()

    def _over_warps(self, number: int, phase: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        count = _MEETINGS * self.groups
        held, lane = self._buffers(number, state, count), kd.lane_idx()
        group, among = kd.warp_idx() // self.warps, kd.warp_idx() % self.warps
        here = group * _MEETINGS + self.at.stage
        kd.sync_warp()  # no lane arrives before another one has read the totals before these
        self._give(held, state, lane, among, here)
        if self.cluster == 1:
            self.met[here].arrive(pred=lane == 0)
        else:
            self.met[here].arrive(rank=lane % self.cluster, pred=lane < self.cluster)
        self.met[here].wait(self.at.parity)
        self.at.advance()
        return self._gathered(phase, held, state, lane, here)
