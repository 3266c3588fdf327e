"""A ring of shared-memory stages that its readers fill again themselves: no warp only loads.

The last warp that has read a stage brings what comes next into its place. So no registers go to a
warp that does little: where a multiprocessor's quarter holds two warps, a third one that loads
would take a third of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kdsl_core as kd


class RefilledRing:
    """Stages that `readers` warps each read and release; turn number t takes stage t mod `stages`.

    Memory: 20 bytes of shared memory a stage.
    Threads: `init` by one thread, then a barrier of all.
    """

    def __init__(self, stages: int, readers: int) -> None:
        self.stages, self.readers = stages, readers
        self.arrived = kd.mbarrier(1, stages, name="arrived")
        self.emptied = kd.mbarrier(readers, stages, name="emptied")
        self.released = kd.smem(kd.i32, stages, name="released")

    def init(self) -> None:
        """Initialise barriers and counters."""
        self.arrived.init()
        self.emptied.init()
        for stage in range(self.stages):
            self.released[stage] = 0

    def at(self, turn: Any) -> tuple[Any, Any]:
        """The stage of a turn, and the parity of its phase."""
        return turn % self.stages, (turn // self.stages % 2).to(kd.u32)

    def expect(self, turn: Any, bytes: int) -> tuple[Any, Any]:
        """Announce the bytes of a turn whose stage is free: the stage, and what they complete at.

        Threads: the one that copies them.
        """
        stage, _ = self.at(turn)
        self.arrived[stage].arrive_expect(bytes)
        return stage, self.arrived[stage]

    def wait(self, turn: Any) -> Any:
        """Wait for the bytes of a turn; gives the stage."""
        stage, parity = self.at(turn)
        self.arrived[stage].wait(parity)
        return stage


@kd.func
def release(ring, turn, bring: Callable[[Any], None]):
    """Give a turn's stage free; the last warp to do so brings the turn that takes its place.

    `bring(turn)` starts copying a turn to its stage, which is free, if there is such a turn.

    Threads: one of each warp, behind the reads of all its lanes.
    """
    stage, parity = ring.at(turn)
    ring.emptied[stage].arrive()
    if kd.atomic_add(ring.released, stage, 1) % ring.readers == ring.readers - 1:
        ring.emptied[stage].wait(parity)  # what the others read comes before the copy
        bring(turn + ring.stages)
