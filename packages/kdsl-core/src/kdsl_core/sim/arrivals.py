"""Which instructions arrive at which barrier, and which of them a warp may still get to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kdsl_core.ir import Branch, Const, Exit, Jump, Op, Reg, SharedAlloc
from kdsl_core.ir.flat import Instruction
from kdsl_core.records import dataclass

Target: TypeAlias = "SharedAlloc | int"


@dataclass(frozen=True)
class Arrival:
    """An instruction that arrives at barriers, or `completes` bytes there.

    `targets` are the allocations of the mbarriers, or the number of the block's barrier; empty when
    it is known only at run time.
    """

    pc: int
    targets: frozenset[Target]
    completes: bool


class Arrivals:
    """The arrivals of a program. Errs towards too many: addresses are followed, values are not."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        ops = [(pc, op) for pc, op in enumerate(instructions) if isinstance(op, Op)]
        reaches = _allocations([op for _, op in ops])
        self._found = [arrival for pc, op in ops for arrival in _arrivals(pc, op, reaches)]

    def at(self, target: Target, *, completes: bool) -> list[int]:
        """The instructions that arrive at, or complete bytes at, a barrier."""
        return [
            a.pc
            for a in self._found
            if a.completes == completes and (not a.targets or target in a.targets)
        ]

    def reachable(self, pc: int) -> set[int]:
        """The instructions that a warp which stands at `pc` may execute."""
        seen: set[int] = set()
        ahead = [pc]
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                ahead += _next(here, self._instructions[here])
        return seen


def _next(pc: int, instruction: Instruction) -> list[int]:
    if isinstance(instruction, Exit):
        return []
    if isinstance(instruction, Jump):
        return [instruction.label.index]
    if isinstance(instruction, Branch):
        return [pc + 1, instruction.label.index]
    return [pc + 1]


def _allocations(ops: list[Op]) -> dict[Reg, set[Target]]:
    """The pieces of shared memory whose addresses each register may be computed from."""
    reaches: dict[Reg, set[Target]] = defaultdict(set)
    changed = True
    while changed:
        changed = False
        for op in ops:
            known = {x for r in op.reads() if isinstance(r, Reg) for x in reaches.get(r, ())}
            alloc = getattr(op, "alloc", None)
            if isinstance(alloc, SharedAlloc):
                known.add(alloc)
            for target in op.writes() if known else ():
                changed |= not known <= reaches[target]
                reaches[target] |= known
    return reaches


def _arrivals(pc: int, op: Op, reaches: dict[Reg, set[Target]]) -> Iterator[Arrival]:
    for fields, completes in ((op.ARRIVES, False), (op.COMPLETES, True)):
        for name in fields:
            operand = getattr(op, name)
            if isinstance(operand, Const):
                yield Arrival(pc, frozenset({int(operand.value)}), completes)
            else:
                yield Arrival(pc, frozenset(reaches.get(operand, ())), completes)
