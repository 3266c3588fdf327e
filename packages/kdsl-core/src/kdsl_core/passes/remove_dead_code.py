"""Remove what nobody can notice: pure operations whose results are unread, and unreachable ones."""

from __future__ import annotations

from kdsl_core.ir import Block, Const, Effect, Kernel, Op, Reg
from kdsl_core.isa.control import IfOp, Terminator


def remove_dead_code(kernel: Kernel) -> None:
    """Drop, in place, unreachable operations, unread pure ones, and conditionals left empty."""
    _cut_unreachable(kernel.body)
    live = _live_registers(kernel.body)
    _sweep(kernel.body, live)


def _cut_unreachable(block: Block) -> None:
    """Drop what follows a break, continue or return in its block."""
    for index, op in enumerate(block.ops):
        for region in op.regions():
            _cut_unreachable(region)
        if isinstance(op, Terminator):
            del block.ops[index + 1 :]
            return


def _live_registers(body: Block) -> set[Reg]:
    """Registers that an operation with an effect reads, directly or through pure operations."""
    writers: dict[Reg, list[Op]] = {}
    waiting: list[Op] = []
    for op in body.walk():
        if op.effects is not Effect.NONE:
            waiting.append(op)
        else:
            for register in op.writes():
                writers.setdefault(register, []).append(op)
    live: set[Reg] = set()
    while waiting:
        for operand in waiting.pop().reads():
            if not isinstance(operand, Const) and operand not in live:
                live.add(operand)
                waiting += writers.get(operand, ())
    return live


def _sweep(block: Block, live: set[Reg]) -> None:
    for op in block.ops:
        for region in op.regions():
            _sweep(region, live)
    block.ops[:] = [op for op in block.ops if _stays(op, live)]


def _stays(op: Op, live: set[Reg]) -> bool:
    if isinstance(op, IfOp):
        return bool(op.then.ops or op.otherwise.ops)
    if op.effects is not Effect.NONE:
        return True
    return any(register in live for register in op.writes())
