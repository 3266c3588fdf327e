"""The machine's barriers, fences and synchronisation of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_core.ir import Operand
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.barriers import NUMBERS, Barriers, LaneSync
from kdsl_core.sim.cluster_barriers import ClusterBarriers
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.machine_base import MachineBase
from kdsl_core.sim.register_pool import RegisterPool

_BITS = np.arange(LANES, dtype=np.uint32)
_FULL_MASK = 0xFFFFFFFF

_FIX_NUMBER = "use kd.named_barrier with a number from 0 to 15"
_FIX_THREADS = "count the threads of whole warps, a multiple of 32 up to 1024"
_FIX_LANES = (
    "move it out of the branch that only some lanes of the warp take, or let the branch depend on "
    "kd.warp_idx() only"
)
_FIX_ENDED = "let no thread return before the barrier, or count those that come: kd.named_barrier"
_FIX_COUNT = "give the barrier the number of threads of all warps that come, the same in each"
_FIX_TWICE = "let the other side wait at the barrier in between, or use two barriers by turns"
_FIX_OVERTAKING = "wait for the other warps before arriving again, or use another barrier"
_FIX_CLUSTER = "call kd.cluster_arrive() and kd.cluster_wait() by turns, or kd.cluster_sync()"
_FIX_MASK = "name the lanes that are here, and only those"


class OrderPart(MachineBase):
    """What orders threads and their memory accesses."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.barriers = Barriers(self.batch)
        self.lane_sync = LaneSync(self.batch)
        self.cluster_barriers = ClusterBarriers(self.batch)
        self.register_pool = RegisterPool(self.batch, self._kernel.registers_at_entry)
        self._check_barriers = self.reporter.findings.wants("barrier")

    # -- order ------------------------------------------------------------------------------
    def barrier(self, number: Operand, threads: int | None, *, wait: bool = True) -> None:
        if self._check_barriers:
            self._check_barrier(threads, wait)
        self.batch.clocks.loads.end(self.group)
        waits = np.zeros(self.warps, bool)
        for which, here in self._numbers(number):
            if not 0 <= which < NUMBERS:
                text = f"uses barrier {which}; a block has barriers 0 to 15"
                self.hazard("barrier", text, fix=_FIX_NUMBER)
                continue
            index = self.group.index if here.all() else self.group.index[here]
            if self._check_barriers:
                self._check_arrival(index, which, threads)
            freed = self.barriers.arrive(index, which, threads, wait, self.pc)
            if freed is index:  # all that there are
                continue
            if wait:
                waits[here] = ~np.isin(index, freed, assume_unique=True)
            self.free("barrier", freed)
        self.hold("barrier", waits)

    def _numbers(self, number: Operand) -> list[tuple[int, Array]]:
        """Each barrier that warps of the group name, and which do, bool (W,)."""
        given = self.read(number)
        if given.size == 1:
            return [(int(given.item()), np.ones(self.warps, bool))]
        numbers = np.broadcast_to(given, (self.warps, LANES))
        wanted = numbers[np.arange(self.warps), self.active.argmax(axis=1)].astype(np.int64)
        return [(which, wanted == which) for which in np.unique(wanted).tolist()]

    def _check_barrier(self, threads: int | None, wait: bool) -> None:
        batch, group = self.batch, self.group
        if threads is not None and (threads % LANES or not 0 < threads <= 1024):
            text = f"expects {threads} threads at a barrier, not whole warps"
            self.hazard("barrier", text, fix=_FIX_THREADS)
        if group.mask is not None:
            missing = batch.alive[group.rows] & ~group.mask
            if missing.any():
                self._partial("reaches a block barrier without the other lanes of its warp")
        if threads is None and not np.array_equal(batch.alive, batch.exist):
            blocks = np.unique(batch.block_of[~np.equal(batch.alive, batch.exist).all(axis=1)])
            gone = np.isin(batch.block_of[group.index], blocks)
            if gone.any():
                text = "waits at a barrier of the whole block, of which some threads have ended"
                self.hazard("barrier", text, where=gone[:, None], fix=_FIX_ENDED)

    def _check_arrival(self, index: Array, number: int, threads: int | None) -> None:
        crowded = self.barriers.overfull(index, number, threads)
        rows = np.isin(self.group.index, index[crowded])
        if rows.any():
            text = f"is one of more warps at barrier {number} than it counts"
            self.hazard("barrier", text, where=rows[:, None], fix=_FIX_COUNT)
        again = self.barriers.already_arrived(index, number)
        rows = np.isin(self.group.index, index[again])
        if rows.any() and self.group.mask is None:
            text = f"arrives twice at barrier {number} before it completed"
            self.hazard("barrier", text, where=rows[:, None], fix=_FIX_TWICE)
        rows = np.isin(self.group.index, index[self.barriers.overtaking(index, number)])
        if rows.any():
            text = (
                f"may arrive at barrier {number} before other warps have completed the phase before"
                ": nothing orders its arrival behind theirs"
            )
            self.hazard("barrier", text, where=rows[:, None], fix=_FIX_OVERTAKING)
        need = self.barriers.needed(index, threads)
        other = self.barriers.expected_elsewhere(index, number)
        rows = np.isin(self.group.index, index[(other != 0) & (other != need)])
        if rows.any():
            text = f"expects another number of threads at barrier {number} than those before it"
            self.hazard("barrier", text, where=rows[:, None], fix=_FIX_COUNT)

    def require_converged(self, *, whole: bool) -> None:
        """Report lanes that are missing at an instruction for all lanes of a warp together.

        With `whole` the warp must have 32 threads, too.
        """
        group = self.group
        exist = self.batch.exist[group.rows]
        if (exist & ~group.lanes()).any():
            self._partial("executes an instruction of the whole warp without its other lanes")
        elif whole and not exist.all():
            self._partial("executes an instruction of the whole warp in a warp of fewer threads")

    def meet(self) -> None:
        """All lanes of the group's warps execute an instruction together."""
        self.batch.clocks.lanes.meet(self.group.index)

    def _partial(self, text: str) -> None:
        mask = self.active
        partial = mask & ~mask.all(axis=1, keepdims=True)
        self.hazard("barrier", text, where=partial, fix=_FIX_LANES)

    def sync_lanes(self, mask: Array) -> None:
        group = self.group
        if group.mask is None and not self.lane_sync.any_waiting and (mask == _FULL_MASK).all():
            self.batch.clocks.lanes.meet(group.index)
            self.batch.clocks.tick(group.index)
            return
        named = (mask.astype(np.uint32)[..., None] >> _BITS & 1).astype(bool)
        named = np.broadcast_to(named, (group.size, LANES, LANES))
        lanes = group.lanes()
        asked = np.asarray((named & lanes[:, :, None]).any(axis=1))
        gone: Array = asked & ~self.batch.alive[group.rows] & self.batch.exist[group.rows]
        if gone.any():
            self.hazard(
                "barrier",
                "names lanes that have ended",
                where=np.asarray(gone.any(axis=1, keepdims=True)),
                fix=_FIX_MASK,
            )
        unnamed = lanes & ~named[:, np.arange(LANES), np.arange(LANES)]
        if unnamed.any():
            text = "synchronises lanes without naming its own"
            self.hazard("barrier", text, where=unnamed, fix=_FIX_MASK)
        go_on = self.lane_sync.arrive(group.index, lanes, asked)
        self.batch.clocks.lanes.meet(group.index[go_on])
        self.hold("lanes", ~go_on)
        self._free_lanes(group.index[go_on])

    def _free_lanes(self, rows: Array) -> None:
        if self.lane_sync.any_waiting:
            self.lane_sync.any_waiting = bool(self.lane_sync.here.any())
            self.freed.append(("lanes", rows))
        self.lane_sync.any_waiting |= self.held is not None

    def fence(self, scope: str) -> None:
        index = self.group.index
        self.batch.clocks.fence(index)
        self.batch.clocks.loads.end(self.group)
        if scope != "cta":
            clocks = self.batch.clocks
            self._global.releases.fence(self.batch.first_block[index], clocks.known[index])

    def fence_proxy(self, space: str) -> None:
        index = self.group.index
        self.batch.clocks.fence_proxy(index, space)
        if space != "global":
            self.mbarriers.fence(index)
            self.batch.clocks.loads.end(self.group)

    # -- the launch ----------------------------------------------------------------------------
    def set_max_registers(self, count: int, *, increase: bool) -> None:
        pool, index = self.register_pool, self.group.index
        alone = pool.alone(index)
        if alone.any():
            text = "changes the registers of a warp group of fewer than four warps"
            self.hazard("barrier", text, where=alone[:, None])
        strange = (pool.held[index] > count) if increase else (pool.held[index] < count)
        if strange.any():
            held = int(pool.held[index][strange.argmax()])
            verb = "asks for more" if increase else "gives back"
            text = f"{verb} registers to have {count}, and has {held}"
            self.hazard("value", text, where=strange[:, None])
            return
        go_on = pool.change(index, count, self.pc)
        self.free("registers", pool.hopeful())
        self.hold("registers", ~go_on, again=True)

    def wait_for_dependencies(self) -> None:
        self.batch.clocks.finish_launch_ahead(self.group.index)

    # -- clusters ------------------------------------------------------------------------------
    def cluster_arrive(self, *, release: bool) -> None:
        index = self.group.index
        twice = self.cluster_barriers.twice(index)
        if twice.any():
            text = "arrives at the cluster's barrier again before it has waited for it"
            self.hazard("barrier", text, where=twice[:, None], fix=_FIX_CLUSTER)
        if release:
            self.batch.clocks.loads.end(self.group)
        self.free("cluster", self.cluster_barriers.arrive(index, release))

    def cluster_wait(self, *, acquire: bool) -> None:
        index = self.group.index
        early = self.cluster_barriers.early(index)
        if early.any():
            text = "waits at the cluster's barrier without having arrived"
            self.hazard("barrier", text, where=early[:, None], fix=_FIX_CLUSTER)
        go_on = self.cluster_barriers.wait(index, acquire)
        self._shared.meet(self.batch.block_of[index[go_on]])
        self.hold("cluster", ~go_on, again=True)

    def require_lanes(self, source: Array, *, where: Array | None = None) -> None:
        group = self.group
        if group.mask is None:
            return
        lanes = np.broadcast_to(source, (group.size, LANES)).astype(np.int64) & (LANES - 1)
        missing = ~np.take_along_axis(group.mask, lanes, axis=1)
        if missing.any():
            bad = missing if where is None else missing & where
            text = "reads from a lane that does not take part"
            self.hazard("barrier", text, where=bad, fix=_FIX_LANES)
