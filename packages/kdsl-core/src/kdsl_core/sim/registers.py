"""The register file: one array per IR register over all threads of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.ir import Const, Op, Operand, Reg, Var
from kdsl_core.ir.flat import FlatProgram
from kdsl_core.ir.protocols import Array, Evaluation, Inputs, Sum
from kdsl_core.sim.accumulators import Accumulators, Spread
from kdsl_core.sim.groups import LANES, Group
from kdsl_core.sim.postponed import Postponed
from kdsl_core.sim.shares import Shares


def warp_bytes(program: FlatProgram) -> int:
    """What all registers that a program writes take for one warp; at least 1."""
    ops = (op for op in program.instructions if isinstance(op, Op))
    registers = {reg for op in ops for reg in op.writes()}
    return max(LANES * sum(reg.dtype.bytes for reg in registers), 1)


class RegisterFile:
    """Registers of a batch of warps.

    Arrays are never changed once they are here: a partial write makes a new one. So a read gives
    the array itself, and one array may be the content of several registers. An array may have
    1 for either extent where all its warps or lanes agree.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._content: dict[Reg, Array] = {}
        self._undefined: dict[Reg, Array] = {}
        self._sums: dict[Reg, Sum] = {}
        self._accumulators = Accumulators()
        self._shares = Shares()
        self._kept_apart = self._shares.of
        self._postponed = Postponed()
        self._stale = self._postponed.registers, self._accumulators.owner

    def set_uniform(self, reg: Reg, value: int | float) -> None:
        """Give all threads one value: a kernel parameter."""
        self._content[reg] = Const(reg.dtype, value).array()

    def read(self, operand: Operand, group: Group) -> Array:
        """The operand's value in a group's warps, broadcastable to (W, 32)."""
        if isinstance(operand, Const):
            return operand.array()
        waiting, owned = self._stale
        if operand in waiting or operand in owned:
            self._make_current(operand, group)
        if operand in self._kept_apart:
            share = self._shares.get(operand, group)
            if share is not None:
                return share
            self._join(operand)
        content = self._content.get(operand)
        if content is None and operand in self._sums:
            content = self._content[operand] = self._sums[operand].whole
        if content is None:
            return np.zeros((1, 1), operand.dtype.numpy)
        if group.full or content.shape[0] == 1:
            return content
        return content[group.rows]

    def undefined(self, operand: Operand, group: Group) -> Array | None:
        """Lanes of the group, bool (W, 32), that read a register nobody wrote; None for none."""
        if not isinstance(operand, Var) or self._postponed.has(operand, group):
            return None
        self._make_current(operand, group)
        if operand in self._kept_apart:
            if self._shares.get(operand, group) is not None:
                return None
            self._join(operand)
        if operand not in self._content:
            return group.lanes()
        undefined = self._undefined.get(operand)
        if undefined is None:
            return None
        here = undefined[group.rows] if group.mask is None else undefined[group.rows] & group.mask
        return here if here.any() else None

    def write(self, reg: Reg, value: Array, group: Group, where: Array | None) -> None:
        """Set a register in the group's lanes (and in `where` when given)."""
        if value.dtype != reg.dtype.numpy:
            value = value.astype(reg.dtype.numpy)
        if value.ndim < 2:
            value = value.reshape(1, -1) if value.ndim else value.reshape(1, 1)
        waiting, owned = self._stale
        if reg in waiting or reg in owned:
            self._make_current(reg, group)
        known = self._sums.pop(reg, None)
        if group.full and group.mask is None and where is None:
            self._content[reg] = value
            self._undefined.pop(reg, None)
            self._kept_apart.pop(reg, None)
            return
        if known is not None:
            self._content[reg] = known.whole
        if where is None and self._shares.put(reg, group, value):
            return
        self._join(reg)
        mask = group.mask
        if where is not None:
            mask = where if mask is None else mask & where
        self._write_some(reg, value, group, mask)

    def _join(self, reg: Reg) -> None:
        """Bring what groups wrote by themselves into the register of all warps."""
        for group, value in self._shares.take(reg):
            self._write_some(reg, value, group, group.mask)

    def _write_some(self, reg: Reg, value: Array, group: Group, mask: Array | None) -> None:
        shape = (self._rows, LANES)
        old = self._content.get(reg)
        if old is None:
            new = np.zeros(shape, reg.dtype.numpy)
            if isinstance(reg, Var):
                self._undefined[reg] = np.ones(shape, bool)
        else:
            new = old.copy() if old.shape == shape else np.broadcast_to(old, shape).copy()
        undefined = self._undefined.get(reg)
        if mask is None:
            new[group.rows] = value
            if undefined is not None:
                undefined[group.rows] = False
        else:
            new[group.rows] = np.where(mask, value, new[group.rows])
            if undefined is not None:
                undefined[group.rows] &= ~mask
        if undefined is not None and not undefined.any():
            del self._undefined[reg]
        self._content[reg] = new

    # -- sums ----------------------------------------------------------------------------------
    def sums(self, operands: Sequence[Operand], group: Group) -> list[Sum] | None:
        """What all warps have in registers as sums of a column and a row; None where one has not.

        None, too, where a column or a row of numbers is all there is.
        """
        found: list[Sum] = []
        for operand in operands:
            known = self._sums.get(operand) if isinstance(operand, Reg) else None
            if known is None:
                content = self.read(operand, group)
                rows, columns = content.shape
                if rows > 1 and columns > 1:
                    return None
                nothing = np.zeros((1, 1), content.dtype)
                known = Sum(content, nothing) if columns == 1 else Sum(nothing, content)
            found.append(known)
        tall, wide = (any(x[part].size > 1 for x in found) for part in (0, 1))
        return found if tall and wide else None

    def write_sum(self, reg: Reg, value: Sum, group: Group) -> None:
        """Set a register of all warps."""
        if value.column.size == 1 or not value.row.any():
            self.write(reg, value.whole if value.column.size == 1 else value.column, group, None)
            return
        self.write(reg, value.column, group, None)
        del self._content[reg]
        self._sums[reg] = value

    # -- accumulators of wgmma -----------------------------------------------------------------
    def matrices(self, registers: tuple[Reg, ...], group: Group) -> Any:
        """What `write_matrices` gave a group's registers last; None where they changed since."""
        return None if group.mask is not None else self._accumulators.of(registers, group)

    def write_matrices(
        self, registers: tuple[Reg, ...], matrices: Any, spread: Spread, group: Group
    ) -> None:
        """Set registers to what `spread` makes of matrices, when somebody reads them."""
        if group.mask is None and self._accumulators.replace(registers, group, matrices):
            return
        for reg in registers:
            self._make_current(reg, group)
        if group.mask is None:
            self._accumulators.hold(registers, group, matrices, spread)
            return
        for reg, value in zip(registers, spread(matrices), strict=True):
            self.write(reg, value, group, None)

    # -- what is not written yet ---------------------------------------------------------------
    def write_later(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Operand],
        inputs: Inputs,
        evaluate: Evaluation,
        group: Group,
    ) -> None:
        """Set registers to what `evaluate` makes of old ones, together with others like it."""
        postponed, shape = self._postponed, (group.size, LANES)
        if postponed.go_on(registers, old, inputs, evaluate, group):
            return
        start = [np.broadcast_to(self.read(operand, group), shape) for operand in old]
        if not postponed.start(registers, start, inputs, evaluate, group):
            self._write_postponed()
            postponed.start(registers, start, inputs, evaluate, group)

    def _write_postponed(self) -> None:
        group, values = self._postponed.finish()
        for reg, value in values:
            self.write(reg, value, group, None)

    def _make_current(self, register: object, group: Group) -> None:
        """Give a group's register, and those that belong to it, values that were postponed."""
        if register in self._postponed.registers:
            self._write_postponed()
        if self._accumulators.hold_for(register, group):
            registers, parts = self._accumulators.release(register, group)
            for held in parts:
                for reg, value in zip(registers, held.spread(held.matrices), strict=True):
                    self.write(reg, value, held.group, None)
