"""Accumulations that wait for others of their kind, until somebody wants a result.

Operands are arrays that nobody changes, so that it does not matter when they are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from kdsl_core.ir import Operand, Reg
from kdsl_core.ir.protocols import Accumulation, Array, Evaluation, Inputs
from kdsl_core.sim.groups import Group

_MOST = 1 << 18  # steps of warps


class Postponed:
    """Accumulations by one function, of one group of warps; `registers` wait for the results."""

    def __init__(self) -> None:
        self._evaluate: Evaluation | None = None
        self._group: Group | None = None
        self._steps = 0
        self._waiting: dict[tuple[Reg, ...], tuple[Sequence[Array], list[Inputs]]] = {}
        self.registers: set[object] = set()

    def has(self, register: object, group: Group) -> bool:
        """Whether a register of a group waits."""
        return register in self.registers and self._group is group

    def go_on(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Operand],
        inputs: Inputs,
        evaluate: Evaluation,
        group: Group,
    ) -> bool:
        """Add a step to what already waits for registers; False where nothing does."""
        known = self._waiting.get(registers)
        if known is None or tuple(old) != registers or not self._takes(evaluate, group):
            return False
        known[1].append(inputs)
        self._steps += 1
        return True

    def start(
        self,
        registers: tuple[Reg, ...],
        old: Sequence[Array],
        inputs: Inputs,
        evaluate: Evaluation,
        group: Group,
    ) -> bool:
        """Let registers wait for what becomes of old values; False when others must come first."""
        if not self.registers.isdisjoint(registers) or not self._takes(evaluate, group):
            return False
        self._evaluate, self._group = evaluate, group
        self._waiting[registers] = old, [inputs]
        self._steps += 1
        self.registers.update(registers)
        return True

    def _takes(self, evaluate: Evaluation, group: Group) -> bool:
        """Whether one more step can be added."""
        if not self._waiting:
            return True
        alike = self._evaluate is evaluate and self._group is group
        return alike and self._steps * group.size < _MOST

    def finish(self) -> tuple[Group, list[tuple[Reg, Array]]]:
        """The group and the values of all registers that waited; now none does."""
        assert self._evaluate is not None and self._group is not None
        results = self._evaluate([Accumulation(*waiting) for waiting in self._waiting.values()])
        values = [
            pair
            for registers, result in zip(self._waiting, results, strict=True)
            for pair in zip(registers, result, strict=True)
        ]
        self._waiting, self._steps = {}, 0
        self.registers.clear()
        return self._group, values
