"""A kernel as one list of instructions: what the PTX printer and the simulator both walk."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from kdsl_core.errors import VerifyError
from kdsl_core.ir.block import Block, Kernel
from kdsl_core.ir.op import Op
from kdsl_core.ir.protocols import Label
from kdsl_core.ir.value import Operand
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass


@dataclass(frozen=True, eq=False)
class Jump:
    """Continue at a label."""

    label: Label
    op: Op


@dataclass(frozen=True, eq=False)
class Branch:
    """Lanes whose condition equals `if_true` continue at the label; the others go on."""

    condition: Operand
    if_true: bool
    label: Label
    op: Op


@dataclass(frozen=True, eq=False)
class Exit:
    """The lanes that are here end; `op` is None at the end of the kernel."""

    op: Op | None


Instruction: TypeAlias = Op | Jump | Branch | Exit


def loc_of(instruction: Instruction) -> Loc | None:
    """The author's line of an instruction."""
    op = instruction.op if isinstance(instruction, Jump | Branch | Exit) else instruction
    return op.loc if op else None


@dataclass(eq=False)
class FlatProgram:
    """Instructions in order; `labels_at[i]` are the labels placed before instruction i."""

    instructions: list[Instruction] = field(default_factory=list)
    labels_at: dict[int, list[Label]] = field(default_factory=dict)
    _loops: list[tuple[Label, Label]] = field(default_factory=list)

    def instruction(self, op: Op) -> None:
        self.instructions.append(op)

    def block(self, block: Block) -> None:
        for op in block.ops:
            op.lower(self)

    def label(self, hint: str) -> Label:
        return Label(hint)

    def place(self, label: Label) -> None:
        if label.index >= 0:
            raise VerifyError(f"label {label.hint} is placed twice", code="K412")
        label.index = len(self.instructions)
        self.labels_at.setdefault(label.index, []).append(label)

    def jump(self, label: Label, op: Op) -> None:
        self.instructions.append(Jump(label, op))

    def branch(self, condition: Operand, if_true: bool, label: Label, op: Op) -> None:
        self.instructions.append(Branch(condition, if_true, label, op))

    def exit(self, op: Op) -> None:
        self.instructions.append(Exit(op))

    def enter_loop(self, end: Label, step: Label) -> None:
        self._loops.append((end, step))

    def leave_loop(self) -> None:
        self._loops.pop()

    def break_label(self) -> Label | None:
        return self._loops[-1][0] if self._loops else None

    def continue_label(self) -> Label | None:
        return self._loops[-1][1] if self._loops else None


def flatten(kernel: Kernel) -> FlatProgram:
    """The flat program of a kernel; it ends with an exit."""
    program = FlatProgram()
    program.block(kernel.body)
    program.instructions.append(Exit(None))
    return program
