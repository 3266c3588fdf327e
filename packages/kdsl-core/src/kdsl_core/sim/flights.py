"""Registers that an unfinished wgmma reads or writes."""

from __future__ import annotations

import numpy as np

from kdsl_core.dtypes import boolean, u64
from kdsl_core.ir import Op, Reg
from kdsl_core.ir.flat import FlatProgram
from kdsl_core.ir.protocols import Array

WGMMA = "wgmma"  # the name of the operation
_NEVER = -1


def wgmma_registers(program: FlatProgram) -> frozenset[Reg]:
    """All accumulators and A registers of a program's wgmma."""
    found: set[Reg] = set()
    for op in program.instructions:
        if isinstance(op, Op) and op.NAME == WGMMA:
            operands = (*op.reads(), *op.writes())
            found |= {x for x in operands if isinstance(x, Reg) and x.dtype not in (u64, boolean)}
    return frozenset(found)


class RegisterFlights:
    """Which registers of which warps the tensor core is using, by groups of wgmma.

    `watched` are all registers that some wgmma of the kernel takes; `committed` and `finished`
    count the groups of each warp. Time counts changes and fences, so that a register that was
    written since the warp's last `wgmma.fence` can be told.
    """

    def __init__(self, rows: int, watched: frozenset[Reg]) -> None:
        self.watched = watched
        self.committed = np.zeros(rows, np.int64)
        self.finished = np.zeros(rows, np.int64)
        self.open = np.zeros(rows, bool)
        self.any = False
        self._rows = rows
        self._group: dict[Reg, Array] = {}
        self._pc: dict[Reg, int] = {}
        self._accumulators: set[Reg] = set()
        self._time = 1
        self._fenced = np.full(rows, _NEVER, np.int64)
        self._changed: dict[Reg, Array] = {}
        self._changed_pc: dict[Reg, int] = {}

    # -- in use --------------------------------------------------------------------------------
    def use(self, registers: tuple[Reg, ...], rows: Array, pc: int, *, writes: bool) -> None:
        """A wgmma of the open group of warps reads registers, or `writes` them."""
        for reg in registers:
            if writes:
                self._accumulators.add(reg)
            group = self._group.get(reg)
            if group is None:
                group = self._group[reg] = np.full(self._rows, _NEVER, np.int64)
            group[rows] = self.committed[rows]
            self._pc[reg] = pc
        self.open[rows] = True
        self.any = True

    def written(self, reg: Reg) -> bool:
        """Whether some wgmma writes a register."""
        return reg in self._accumulators

    def of(self, reg: Reg, rows: Array) -> tuple[Array, int] | None:
        """Which of the warps use a register, bool (W,), and since which instruction; or None."""
        group = self._group.get(reg)
        if group is None:
            return None
        flying = group[rows] >= self.finished[rows]
        return (flying, self._pc[reg]) if flying.any() else None

    def commit(self, rows: Array) -> None:
        """Close the open groups of warps."""
        self.committed[rows] += 1
        self.open[rows] = False

    def wait(self, rows: Array, pending: int) -> None:
        """All but the last `pending` groups of warps are finished."""
        done = np.maximum(self.committed[rows] - pending, self.finished[rows])
        self.finished[rows] = done
        if not pending and not self.open.any() and (self.finished == self.committed).all():
            self.any = False
            self._group.clear()

    @property
    def last_pc(self) -> int:
        """Some wgmma that is not waited for."""
        return max(self._pc.values())

    def unfinished(self, rows: Array) -> Array:
        """Which warps have started wgmma that they have not waited for, bool (W,)."""
        return np.asarray(self.open[rows] | (self.finished[rows] < self.committed[rows]))

    # -- changes -------------------------------------------------------------------------------
    def changed(self, reg: Reg, rows: Array, pc: int) -> None:
        """Another instruction wrote a watched register."""
        at = self._changed.get(reg)
        if at is None:
            at = self._changed[reg] = np.zeros(self._rows, np.int64)
        self._time += 1
        at[rows] = self._time
        self._changed_pc[reg] = pc

    def fence(self, rows: Array) -> None:
        """Order what warps did to registers before later wgmma."""
        self._time += 1
        self._fenced[rows] = self._time

    def unfenced(self, registers: tuple[Reg, ...], rows: Array) -> tuple[Array, int | None] | None:
        """Which warps have not fenced since a register was written, and where it was; or None."""
        for reg in registers:
            at = self._changed.get(reg)
            late = self._fenced[rows] < (0 if at is None else at[rows])
            if late.any():
                return late, self._changed_pc.get(reg)
        return None
