"""Accumulators that stay matrices between one wgmma and the next, until somebody wants registers.

A chain of products reads and writes the same registers. To take them apart into lanes and to put
them together again, for each product, would cost as much as half of the product itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.ir import Reg
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.groups import Group

Spread: TypeAlias = Callable[[Any], list[Array]]


@dataclass(eq=False, slots=True)
class Held:
    """The matrices of a group's warps, and how their registers are had from them."""

    group: Group
    matrices: Any
    spread: Spread


class Accumulators:
    """Matrices, in whatever form, that stand for registers of one or more groups of warps.

    `owner` has all those registers, with the others beside each.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Reg, ...], list[Held]] = {}
        self.owner: dict[object, tuple[Reg, ...]] = {}

    def hold_for(self, register: object, group: Group) -> bool:
        """Whether a group's register is out of date, since matrices stand for it."""
        registers = self.owner.get(register)
        return registers is not None and any(
            _meet(held.group, group) for held in self._held[registers]
        )

    def of(self, registers: tuple[Reg, ...], group: Group) -> Any:
        """The matrices of a group's registers, where it is they that count, else None."""
        for held in self._held.get(registers, ()):
            if _same(held.group, group):
                return held.matrices
        return None

    def replace(self, registers: tuple[Reg, ...], group: Group, matrices: Any) -> bool:
        """Let a group's matrices change; False where they are not held."""
        for held in self._held.get(registers, ()):
            if _same(held.group, group):
                held.matrices = matrices
                return True
        return False

    def hold(self, registers: tuple[Reg, ...], group: Group, matrices: Any, spread: Spread) -> None:
        """Let matrices stand for a group's registers, which nothing else stands for."""
        self._held.setdefault(registers, []).append(Held(group, matrices, spread))
        self.owner.update(dict.fromkeys(registers, registers))

    def release(self, register: object, group: Group) -> tuple[tuple[Reg, ...], list[Held]]:
        """What stands for a group's register, and for others beside it; now nothing does."""
        registers = self.owner[register]
        every = self._held.pop(registers)
        found = [held for held in every if _meet(held.group, group)]
        left = [held for held in every if not _meet(held.group, group)]
        if left:
            self._held[registers] = left
        else:
            for each in registers:
                del self.owner[each]
        return registers, found


def _same(one: Group, other: Group) -> bool:
    return one is other or np.array_equal(one.index, other.index)


def _meet(one: Group, other: Group) -> bool:
    """Whether two groups have a warp in common."""
    return one is other or bool(np.isin(one.index, other.index, assume_unique=True).any())
