"""Atomics on shared memory for which lanes that meet at a word need no turns."""

from __future__ import annotations

from collections.abc import Iterator

from kdsl_core.ir import Branch, Op, Operand
from kdsl_core.ir.flat import Instruction


def served_at_once(instructions: list[Instruction]) -> frozenset[int]:
    """The indices of those that add the constant 1 to 32 bits, and whose results nobody reads.

    The assembler has an instruction for these, `ATOMS.POPC.INC`, that counts the lanes of a word.
    """
    counting = [
        (index, op)
        for index, op in enumerate(instructions)
        if isinstance(op, Op) and getattr(op, "adds_one", False)
    ]
    if not counting:
        return frozenset()
    read = set(_read(instructions))
    return frozenset(index for index, op in counting if read.isdisjoint(op.writes()))


def _read(instructions: list[Instruction]) -> Iterator[Operand]:
    """What is read anywhere in a program."""
    for instruction in instructions:
        if isinstance(instruction, Branch):
            yield instruction.condition
        elif isinstance(instruction, Op):
            yield from instruction.reads()
