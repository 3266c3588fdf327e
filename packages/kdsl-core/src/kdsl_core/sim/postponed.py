"""Evaluations that wait for others of their kind, until somebody wants a result.

Operands are arrays that nobody changes, so that it does not matter when they are multiplied.
"""

from __future__ import annotations

from kdsl_core.ir import Reg
from kdsl_core.ir.protocols import Array, Evaluation, Inputs
from kdsl_core.sim.groups import Group

_MOST = 256


class Postponed:
    """Inputs for one function, of one group of warps; `registers` wait for the results."""

    def __init__(self) -> None:
        self._evaluate: Evaluation | None = None
        self._group: Group | None = None
        self._inputs: list[Inputs] = []
        self._targets: list[tuple[Reg, ...]] = []
        self.registers: set[object] = set()

    def takes(self, registers: tuple[Reg, ...], evaluate: Evaluation, group: Group) -> bool:
        """Whether one more evaluation can be added."""
        alike = self._evaluate is evaluate and self._group is group and len(self._inputs) < _MOST
        return not self._inputs or (alike and self.registers.isdisjoint(registers))

    def add(
        self, registers: tuple[Reg, ...], inputs: Inputs, evaluate: Evaluation, group: Group
    ) -> None:
        """Let registers wait for what becomes of some inputs."""
        self._evaluate, self._group = evaluate, group
        self._inputs.append(inputs)
        self._targets.append(registers)
        self.registers.update(registers)

    def finish(self) -> tuple[Group, list[tuple[Reg, Array]]]:
        """The group and the values of all registers that waited; now none does."""
        assert self._evaluate is not None and self._group is not None
        results = self._evaluate(self._inputs)
        values = [
            pair
            for registers, result in zip(self._targets, results, strict=True)
            for pair in zip(registers, result, strict=True)
        ]
        group = self._group
        self._inputs, self._targets = [], []
        self.registers.clear()
        return group, values
