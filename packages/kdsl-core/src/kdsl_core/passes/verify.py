"""Check that a kernel obeys the rules of the IR.

Every value is written once and before it is read, every operation obeys its own type rule, and
break and continue stand inside loops.
"""

from __future__ import annotations

from kdsl_core.errors import VerifyError
from kdsl_core.ir import Block, Const, Kernel, Op, Operand, Value, Var
from kdsl_core.isa.control import BreakOp, ContinueOp, LoopOp

_ALWAYS_DEFINED = (Var, Const)
_JUMPS = (BreakOp, ContinueOp)


def verify(kernel: Kernel) -> None:
    """Raise VerifyError or TypeMismatch at the author's line of the first broken rule."""
    scope = _Scope({param.value for param in kernel.params})
    scope.block(kernel.body)


class _Scope:
    """The values that are defined where the walk stands."""

    def __init__(self, defined: set[Value]) -> None:
        self.defined = defined
        self.written = set(defined)
        self.loops = 0

    def block(self, block: Block) -> list[Value]:
        """Check a block; gives the values that it defines, which stay defined."""
        new: list[Value] = []
        for op in block.ops:
            new += self.operation(op)
        return new

    def nested(self, block: Block) -> None:
        """Check a block whose values end with it."""
        self.defined.difference_update(self.block(block))

    def operation(self, op: Op) -> list[Value]:
        """Check one operation; gives the values that it defines."""
        op.verify()
        if isinstance(op, LoopOp):
            self.loop(op)
            return []
        self.reads(op)
        for region in op.regions():
            self.nested(region)
        if isinstance(op, _JUMPS) and not self.loops:
            raise VerifyError(
                f"{op.name} stands outside of a loop",
                code="K421",
                loc=op.loc,
                fix="put it inside a loop that is not unrolled",
            )
        return self.writes(op)

    def loop(self, op: LoopOp) -> None:
        """The head's values are defined in the condition, the body and the step."""
        self.loops += 1
        head = self.block(op.head)
        self.reads(op)
        self.nested(op.body)
        self.nested(op.step)
        self.defined.difference_update(head)
        self.loops -= 1

    def reads(self, op: Op) -> None:
        for operand in op.reads():
            if isinstance(operand, _ALWAYS_DEFINED) or operand in self.defined:
                continue
            raise _undefined(op, operand, written=operand in self.written)

    def writes(self, op: Op) -> list[Value]:
        new: list[Value] = []
        for register in op.writes():
            if isinstance(register, Var):
                continue
            if not isinstance(register, Value) or register in self.written:
                raise VerifyError(
                    f"{op.name} writes {register!r}, which is written already",
                    code="K423",
                    loc=op.loc,
                    fix="give each operation fresh values, or use a variable",
                )
            self.written.add(register)
            self.defined.add(register)
            new.append(register)
        return new


def _undefined(op: Op, operand: Operand, written: bool) -> VerifyError:
    if not isinstance(operand, Value):
        found = f"{op.name} reads {operand!r}, which is no operand"
    elif written:
        found = f"{op.name} reads {operand!r} outside of the block that defines it"
    else:
        found = f"{op.name} reads {operand!r} before it is defined"
    made = getattr(operand, "loc", None)
    return VerifyError(
        found,
        code="K422",
        loc=op.loc,
        notes=[f"it was made at {made.short()}"] if made else [],
        fix="define it before the block, or carry it in a variable",
    )
