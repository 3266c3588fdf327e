"""What every part of the simulated machine stands on: a group of warps, registers, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kdsl_core.ir import Const, Kernel, Operand, Reg, TensorMap
from kdsl_core.ir.protocols import Accumulation, Array, Evaluation, Inputs, Sum
from kdsl_core.sim.access import Access, access_of
from kdsl_core.sim.analysis import Analysis
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.flights import RegisterFlights
from kdsl_core.sim.global_access import GlobalAccess
from kdsl_core.sim.groups import LANES, Group
from kdsl_core.sim.mbarriers import Mbarriers
from kdsl_core.sim.plain_access import PlainAccess
from kdsl_core.sim.registers import RegisterFile
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.shared_access import SharedAccess

_MANY = 64  # warps, from which on sums are worth their while
_OF_WARPS = ("ldmatrix", "mbarrier")  # accesses that leave nothing of single lanes to release


class MachineBase:
    """One batch of blocks, and the group of its warps that executes an operation.

    The scheduler sets `group`, `pc`, `fills_in` and `in_wgmma` before it runs an operation.
    Afterwards `held` (W,) names the warps of the group that must wait, for something of the kind
    `waits_for`; with `again` they execute the operation once more when they are set free. `freed`
    are the rows of warps that need no longer wait for something of a kind.
    """

    def __init__(
        self,
        kernel: Kernel,
        batch: Batch,
        memory: GlobalAccess,
        reporter: Reporter,
        counters: Counters,
        numerics: Literal["exact", "fast"],
        maps: dict[int, TensorMap],
        known: Analysis,
    ) -> None:
        self.numerics: Literal["exact", "fast"] = numerics
        self.checks_values = reporter.findings.wants("value")
        self.batch = batch
        self.reporter = reporter
        self.registers = RegisterFile(batch.rows)
        self.group = Group(np.arange(batch.rows), batch.exist, 0, batch.rows, 0)
        self.pc = 0
        self.fills_in = False
        self.in_wgmma = False
        self.held: Array | None = None
        self.waits_for = ""
        self.again = False
        self.freed: list[tuple[str, Array]] = []
        self.mbarriers = Mbarriers(batch)
        self._check_registers = reporter.findings.wants("uninit")
        self._check_flights = reporter.findings.wants("inflight")
        watched = known.watched if self._check_flights else frozenset()
        self.flights = RegisterFlights(batch.rows, watched)
        self._known = known
        self._kernel = kernel
        self._counters = counters
        self._shared = SharedAccess(batch, reporter)
        reporter.mbarriers, reporter.shadow = self.mbarriers, self._shared.shadow
        self._global = memory
        hurried = not batch.clocks.kept and not counters.enabled
        self._plain = PlainAccess(batch, memory.allocations) if hurried else None
        self._maps = maps

    # -- the scheduler's part ------------------------------------------------------------------
    def hold(self, waits_for: str, held: Array, *, again: bool = False) -> None:
        """Let warps of the group wait, bool (W,)."""
        self.held = held if held.any() else None
        self.waits_for, self.again = waits_for, again

    def free(self, waits_for: str, rows: Array) -> None:
        """Set warps free that wait for something of this kind, those of the group excepted."""
        elsewhere = np.setdiff1d(rows, self.group.index, assume_unique=True)
        if elsewhere.size:
            self.freed.append((waits_for, elsewhere))

    # -- who is here -----------------------------------------------------------------------
    @property
    def warps(self) -> int:
        return self.group.size

    @property
    def active(self) -> Array:
        return self.group.lanes()

    @property
    def _keeps_sums(self) -> bool:
        group = self.group
        return self._plain is not None and group.full and group.mask is None and group.size >= _MANY

    def sums(self, operands: Sequence[Operand]) -> list[Sum] | None:
        return self.registers.sums(operands, self.group) if self._keeps_sums else None

    def write_sum(self, reg: Reg, value: Sum) -> None:
        self.registers.write_sum(reg, value, self.group)

    def special_sum(self, name: str) -> Sum | None:
        return self.batch.special_sum(name) if self._keeps_sums else None

    def special(self, name: str) -> Array:
        value = self.batch.special(name)
        return value if value.shape[0] == 1 else value[self.group.rows]

    # -- registers --------------------------------------------------------------------------
    def read(self, operand: Operand) -> Array:
        if self._check_registers or self.flights.any:
            self._check_read(operand)
        return self.registers.read(operand, self.group)

    def _check_read(self, operand: Operand) -> None:
        if self._check_registers and not self.fills_in:
            undefined = self.registers.undefined(operand, self.group)
            if undefined is not None:
                name = getattr(operand, "hint", "") or "a register"
                self.hazard(
                    "uninit", f"reads {name} before it was written", where=undefined,
                    fix="write it on every path to this line, or give it a first value",
                )  # fmt: skip
        if self.flights.any and not self.in_wgmma and not isinstance(operand, Const):
            self._check_flight(operand, "reads")

    def write(self, reg: Reg, value: Array, *, where: Array | None = None) -> None:
        if reg in self.flights.watched:
            self._check_write(reg)
        self.registers.write(reg, value, self.group, where)

    def _check_write(self, reg: Reg) -> None:
        self._check_flight(reg, "writes")
        self.flights.changed(reg, self.group.index, self.pc)

    def compute(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Operand],
        inputs: Inputs,
        evaluate: Evaluation,
    ) -> None:
        if self.group.mask is None:
            if self._check_registers or self.flights.any:
                for operand in old:
                    self._check_read(operand)
            for reg in self.flights.watched.intersection(registers):
                self._check_write(reg)
            self.registers.write_later(registers, old, inputs, evaluate, self.group)
            return
        start = [np.broadcast_to(self.read(x), (self.group.size, LANES)) for x in old]
        (values,) = evaluate([Accumulation(start, [inputs])])
        for reg, value in zip(registers, values, strict=True):
            self.write(reg, value)

    def _check_flight(self, reg: Reg, verb: str) -> None:
        flying = self.flights.of(reg, self.group.index)
        if flying is not None:
            which, pc = flying
            name = reg.hint or "a register"
            self.reporter.at_thread(
                "inflight",
                self.pc,
                int(self.group.index[which.argmax()]),
                int(self.group.lanes()[which.argmax()].argmax()),
                f"{verb} {name}, which a wgmma that nobody has waited for still uses",
                other_loc=self.reporter.loc(pc),
                other_did="the wgmma was started",
                fix="kd.wgmma_commit() after the wgmma and kd.wgmma_wait(0) before this line",
            )

    # -- findings ---------------------------------------------------------------------------
    def hazard(
        self, code: str, message: str, *, where: Array | None = None, fix: str | None = None
    ) -> None:
        lanes = self.active if where is None else self.active & where
        count = int(lanes.sum())
        if not count or not self.reporter.findings.new(
            code, self.reporter.loc(self.pc), times=count
        ):
            return
        row, lane = np.argwhere(lanes)[0].tolist()
        at = int(self.group.index[row])
        self.reporter.at_thread(code, self.pc, at, lane, message, count=count, fix=fix)

    def count(self, what: str | tuple[str, str], amount: float = 1.0) -> None:
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

    # -- parts ---------------------------------------------------------------------------------
    def access(self, address: Array, size: int, where: Array | None, kind: str) -> Access:
        """The access of the group's active lanes at addresses (W, n)."""
        access = access_of(self.group, address, size, where, kind, self.pc)
        if self._shared.has_barriers and self.batch.clocks.kept and kind not in _OF_WARPS:
            lanes = self.group.lanes() if access.active is None else access.active
            if lanes.shape[1] == LANES:
                self.batch.clocks.lanes.touch(self.group.index, lanes)
        return access

    def _count(self, space: str, access: Access, kind: str) -> None:
        if not self._counters.enabled:
            return
        address = access.address
        if access.active is not None:
            address = np.full(access.shape, address[0], np.int64)
            address[access.active] = access.address
        self._counters.access(
            access.pc, space, kind, address.reshape(access.shape), access.active, access.size
        )
