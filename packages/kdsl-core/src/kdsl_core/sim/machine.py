"""The machine that operations talk to: one group of warps of a batch at one instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Kernel, Operand, Reg, SharedAlloc
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access, access_of
from kdsl_core.sim.async_copies import AsyncCopies
from kdsl_core.sim.barriers import NUMBERS, Barriers, LaneSync
from kdsl_core.sim.batch import SHARED_BASE, Batch
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.global_access import GlobalAccess
from kdsl_core.sim.groups import LANES, Group
from kdsl_core.sim.registers import RegisterFile
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.shared_access import SharedAccess

_BITS = np.arange(LANES, dtype=np.uint32)
_FULL_MASK = 0xFFFFFFFF


class SimMachine:
    """Implements `ir.protocols.Machine` for one batch of blocks.

    The scheduler sets `group`, `pc` and `fills_in` before it runs an operation; afterwards `held`
    (W,) names the warps of the group that must wait, and `freed` the rows of warps that need no
    longer wait.
    """

    def __init__(
        self,
        kernel: Kernel,
        batch: Batch,
        memory: GlobalAccess,
        reporter: Reporter,
        counters: Counters,
        numerics: Literal["exact", "fast"],
    ) -> None:
        self.numerics: Literal["exact", "fast"] = numerics
        self.batch = batch
        self.reporter = reporter
        self.registers = RegisterFile(batch.rows)
        self.barriers = Barriers(batch)
        self.lane_sync = LaneSync(batch)
        self.group = Group(np.arange(batch.rows), batch.exist, 0, batch.rows, 0)
        self.pc = 0
        self.fills_in = False
        self.held: Array | None = None
        self.freed: list[Array] = []
        self._kernel = kernel
        self._counters = counters
        self._shared = SharedAccess(batch, reporter)
        self._global = memory
        self._copies = AsyncCopies(batch)
        self._check_registers = reporter.findings.wants("uninit")

    # -- who is here -----------------------------------------------------------------------
    @property
    def warps(self) -> int:
        return self.group.size

    @property
    def active(self) -> Array:
        return self.group.lanes()

    def special(self, name: str) -> Array:
        value = self.batch.special[name]
        return value if value.shape[0] == 1 else value[self.group.rows]

    # -- registers --------------------------------------------------------------------------
    def read(self, operand: Operand) -> Array:
        if self._check_registers and not self.fills_in:
            undefined = self.registers.undefined(operand, self.group)
            if undefined is not None:
                name = getattr(operand, "hint", "") or "a register"
                self.hazard("uninit", f"reads {name} before it was written", where=undefined)
        return self.registers.read(operand, self.group)

    def write(self, reg: Reg, value: Array, *, where: Array | None = None) -> None:
        self.registers.write(reg, value, self.group, where)

    # -- memory -----------------------------------------------------------------------------
    def load(
        self,
        space: str,
        address: Array,
        size: int,
        *,
        where: Array | None = None,
        kind: str = "ld",
    ) -> Array:
        access = access_of(self.group, address, size, where, kind, self.pc)
        if not access.address.size:
            return np.zeros((*access.shape, size), np.uint8)
        self._count(space, access)
        memory = self._shared if space == "shared" else self._global
        return access.spread(memory.load(access))

    def store(
        self,
        space: str,
        address: Array,
        data: Array,
        *,
        where: Array | None = None,
        kind: str = "st",
    ) -> None:
        size = data.shape[-1]
        access = access_of(self.group, address, size, where, kind, self.pc)
        if not access.address.size:
            return
        self._count(space, access)
        memory = self._shared if space == "shared" else self._global
        memory.store(access, access.squeeze(np.broadcast_to(data, (*access.shape, size))))

    def atomic(
        self,
        space: str,
        address: Array,
        dtype: DType,
        update: Callable[[Array, Array, Array], Array],
        *,
        where: Array | None = None,
    ) -> Array:
        access = access_of(self.group, address, dtype.bytes, where, "atomic", self.pc)
        old = np.zeros(access.shape, dtype.numpy)
        if not access.address.size:
            return old
        self._count(space, access)
        memory = self._shared if space == "shared" else self._global
        warp = np.searchsorted(self.group.index, access.row)

        def for_threads(at: Array, now: Array) -> Array:
            return update(now, warp[at], access.lane[at])

        return access.spread(memory.atomic(access, dtype.numpy, for_threads)[:, None])[..., 0]

    def shared_address(self, alloc: SharedAlloc) -> int:
        return SHARED_BASE + alloc.offset

    def _count(self, space: str, access: Access) -> None:
        if not self._counters.enabled:
            return
        address = access.address
        if access.active is not None:
            address = np.full(access.shape, address[0], np.int64)
            address[access.active] = access.address
        counter = (
            self._counters.shared_access if space == "shared" else self._counters.global_access
        )
        counter(access.pc, address.reshape(access.shape), access.active, access.size)

    # -- asynchronous copies (cp.async) -----------------------------------------------------
    def async_copy(
        self, destination: Array, source: Array, size: int, source_bytes: Array | None
    ) -> None:
        to = access_of(self.group, destination, size, None, "cp.async", self.pc)
        if not to.address.size:
            return
        self._count("shared", to)
        data = np.zeros((*to.shape, size), np.uint8)
        limits = None if source_bytes is None else np.broadcast_to(source_bytes, to.shape)
        amounts = [size] if limits is None else np.unique(limits[self.active]).tolist()
        for amount in amounts:
            if amount > 0:
                where = None if limits is None or len(amounts) == 1 else limits == amount
                data[..., :amount] += self.load("global", source, min(amount, size), where=where)
        group = self._copies.group_of(to)
        self._shared.copy_in(to, to.squeeze(data), group)

    def async_commit(self) -> None:
        self._copies.commit(self.group)

    def async_wait(self, pending: int) -> None:
        self._copies.wait(self.group, pending)
        self._shared.complete(self._copies.finished)

    # -- order ------------------------------------------------------------------------------
    def barrier(self, number: Operand, threads: int | None, *, wait: bool = True) -> None:
        self._check_barrier(threads, wait)
        numbers = np.broadcast_to(self.read(number), (self.warps, LANES))
        first = self.active.argmax(axis=1)
        wanted = numbers[np.arange(self.warps), first].astype(np.int64)
        waits = np.zeros(self.warps, bool)
        for which in np.unique(wanted).tolist():
            if not 0 <= which < NUMBERS:
                self.hazard("barrier", f"uses barrier {which}; a block has barriers 0 to 15")
                continue
            here = wanted == which
            index = self.group.index[here]
            self._check_arrival(index, which, threads)
            freed = self.barriers.arrive(index, which, threads, wait, self.pc)
            if wait:
                waits[here] = ~np.isin(index, freed, assume_unique=True)
            self._free(freed)
        self.held = waits if waits.any() else None

    def _free(self, freed: Array) -> None:
        elsewhere = np.setdiff1d(freed, self.group.index, assume_unique=True)
        if elsewhere.size:
            self.freed.append(elsewhere)

    def _check_barrier(self, threads: int | None, wait: bool) -> None:
        batch, group = self.batch, self.group
        if threads is not None and (threads % LANES or not 0 < threads <= 1024):
            self.hazard("barrier", f"expects {threads} threads at a barrier, not whole warps")
        if group.mask is not None:
            missing = batch.alive[group.rows] & ~group.mask
            if missing.any():
                self._partial("reaches a block barrier without the other lanes of its warp")
        if threads is None and not np.array_equal(batch.alive, batch.exist):
            blocks = np.unique(batch.block_of[~np.equal(batch.alive, batch.exist).all(axis=1)])
            gone = np.isin(batch.block_of[group.index], blocks)
            if gone.any():
                text = "waits at a barrier of the whole block, of which some threads have ended"
                self.hazard("barrier", text, where=gone[:, None])

    def _check_arrival(self, index: Array, number: int, threads: int | None) -> None:
        crowded = self.barriers.overfull(index, number, threads)
        rows = np.isin(self.group.index, index[crowded])
        if rows.any():
            text = f"is one of more warps at barrier {number} than it counts"
            self.hazard("barrier", text, where=rows[:, None])
        again = self.barriers.already_arrived(index, number)
        rows = np.isin(self.group.index, index[again])
        if rows.any() and self.group.mask is None:
            text = f"arrives twice at barrier {number} before it completed"
            self.hazard("barrier", text, where=rows[:, None])
        need = self.barriers.needed(index, threads)
        other = self.barriers.expected_elsewhere(index, number)
        rows = np.isin(self.group.index, index[(other != 0) & (other != need)])
        if rows.any():
            text = f"expects another number of threads at barrier {number} than those before it"
            self.hazard("barrier", text, where=rows[:, None])

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

    def _partial(self, text: str) -> None:
        mask = self.active
        self.hazard("barrier", text, where=mask & ~mask.all(axis=1, keepdims=True))

    def sync_lanes(self, mask: Array) -> None:
        group = self.group
        if group.mask is None and not self.lane_sync.any_waiting and (mask == _FULL_MASK).all():
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
            )
        unnamed = lanes & ~named[:, np.arange(LANES), np.arange(LANES)]
        if unnamed.any():
            self.hazard("barrier", "synchronises lanes without naming its own", where=unnamed)
        go_on = self.lane_sync.arrive(group.index, lanes, asked)
        self.held = None if go_on.all() else ~go_on
        self._free_lanes(group.index[go_on])

    def _free_lanes(self, rows: Array) -> None:
        if self.lane_sync.any_waiting:
            self.lane_sync.any_waiting = bool(self.lane_sync.here.any())
            self.freed.append(rows)
        self.lane_sync.any_waiting |= self.held is not None

    def fence(self, scope: str) -> None:
        index = self.group.index
        self.batch.clocks.fence(index)
        if scope != "cta":
            self._global.releases.fence(self._block_numbers(index), self.batch.clocks.known[index])

    def _block_numbers(self, index: Array) -> Array:
        return self.batch.blocks[self.batch.block_of[index]]

    def require_lanes(self, source: Array, *, where: Array | None = None) -> None:
        group = self.group
        if group.mask is None:
            return
        lanes = np.broadcast_to(source, (group.size, LANES)).astype(np.int64) & (LANES - 1)
        missing = ~np.take_along_axis(group.mask, lanes, axis=1)
        if missing.any():
            bad = missing if where is None else missing & where
            self.hazard("barrier", "reads from a lane that does not take part", where=bad)

    # -- findings ---------------------------------------------------------------------------
    def hazard(self, code: str, message: str, *, where: Array | None = None) -> None:
        if not self.reporter.findings.new(code, self.reporter.loc(self.pc)):
            return
        lanes = self.active
        if where is not None:
            lanes = lanes & where
        if not lanes.any():
            return
        row, lane = np.argwhere(lanes)[0].tolist()
        at = int(self.group.index[row])
        self.reporter.at_thread(code, self.pc, at, lane, message)

    def count(self, what: str, amount: float = 1.0) -> None:
        if self._counters.enabled:
            self._counters.add(self.pc, what, amount * self.group.size)

    def print(self, template: str, values: tuple[Array, ...]) -> None:
        shape = (self.group.size, LANES)
        wide = [np.broadcast_to(value, shape) for value in values]
        for row, lane in np.argwhere(self.active).tolist():
            at = int(self.group.index[row])
            shown = template.format(*(value[row, lane] for value in wide))
            block = self.batch.block_coordinate(at)
            print(f"block {block} thread {self.batch.thread_coordinate(at, lane)}: {shown}")
