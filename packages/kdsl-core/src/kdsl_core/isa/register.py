"""Register variables: declared, assigned, and read at one moment."""

from __future__ import annotations

from kdsl_core.dtypes import DType
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Machine, Op, Operand, PtxWriter, Value, Var
from kdsl_core.records import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class MoveOp(Op):
    """Copy an operand into a register."""

    source: Operand
    d: Value | Var

    NAME = "register.move"
    READS = ("source",)
    WRITES = ("d",)

    def verify(self) -> None:
        if self.source.dtype != self.d.dtype:
            raise TypeMismatch(
                f"a register of {self.d.dtype} was assigned a value of {self.source.dtype}",
                code="K251",
                loc=self.loc,
                fix=f"convert it first: x.to(kd.{self.d.dtype})",
            )

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"mov.{self.d.dtype.reg} {w.reg(self.d)}, {w.reg(self.source)}")

    def simulate(self, m: Machine) -> None:
        m.write(self.d, m.read(self.source))


def declare(b: Builder, dtype: DType, initial: Operand | None = None, hint: str = "") -> Var:
    """A new register variable, holding `initial`; undefined until assigned when that is None."""
    var = b.var(dtype, hint)
    if initial is not None:
        assign(b, var, initial)
    return var


def assign(b: Builder, var: Var, operand: Operand) -> None:
    """Set a register variable; assigning a variable to itself does nothing."""
    if operand is not var:
        b.append(MoveOp(source=operand, d=var, loc=b.loc()))


def snapshot(b: Builder, var: Operand) -> Operand:
    """What a variable holds now, unaffected by later assignments; other operands as they are."""
    if not isinstance(var, Var):
        return var
    d: Value = b.value(var.dtype, var.hint)
    b.append(MoveOp(source=var, d=d, loc=b.loc()))
    return d


OPS = (MoveOp,)
