"""Regular instructions as data: operand types, PTX text, and the NumPy function they compute.

Most of the instruction set is regular: registers in, one register out, nothing else. Each such
instruction is one `Instruction`; `InstructionOp` gives all of them their type rule, their PTX and
their simulation. `issue` puts one into a kernel, or computes it now when all operands are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Array, Builder, Const, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.ir.protocols import Sum
from kdsl_core.ir.target import BASELINE
from kdsl_core.isa.linear import rule
from kdsl_core.records import dataclass

Evaluate = Callable[..., Array]


@dataclass(frozen=True, eq=False)
class Undefined:
    """When an instruction's result means nothing: the operands' condition, and why, in words."""

    when: Evaluate
    why: str


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction for one choice of types.

    `ptx` is the text with `{d}` for the result, `{a} {b} {c} {e}` for the operands and `{t0} {t1}`
    for scratch registers of the classes in `temps`; several instructions are separated by "; ".
    `evaluate` maps arrays of the operands' NumPy types to an array of the result's.
    """

    name: str
    operands: tuple[DType, ...]
    result: DType
    ptx: str
    evaluate: Evaluate
    temps: tuple[str, ...] = ()
    need: Need = BASELINE
    undefined: Undefined | None = None

    def __repr__(self) -> str:
        return f"{self.name}.{'.'.join(dtype.name for dtype in self.operands)}"

    def run(self, *arrays: Array) -> Array:
        """The result for arrays of operands; NumPy may warn of overflow and NaN."""
        found, dtype = self.evaluate(*arrays), self.result.numpy
        return found if found.dtype == dtype else found.astype(dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class InstructionOp(Op):
    """An operation that is one regular instruction; the subclasses name its family."""

    instruction: Instruction
    operands: tuple[Operand, ...]
    d: Value

    FAMILY: ClassVar[str] = ""
    READS = ("operands",)
    WRITES = ("d",)

    @property
    def name(self) -> str:
        return f"{self.FAMILY}.{self.instruction.name}"

    @property
    def need(self) -> Need:
        return self.instruction.need

    def verify(self) -> None:
        expected = (*self.instruction.operands, self.instruction.result)
        got = (*(operand.dtype for operand in self.operands), self.d.dtype)
        if got != expected:
            raise TypeMismatch(
                f"{self.name} takes {_names(expected[:-1])} and gives {expected[-1]}; "
                f"got {_names(got[:-1])} and {got[-1]}",
                code="K250",
                loc=self.loc,
            )

    def ptx(self, w: PtxWriter) -> None:
        registers = dict(zip("abce", map(w.reg, self.operands), strict=False))
        registers["d"] = w.reg(self.d)
        for i, register_class in enumerate(self.instruction.temps):
            registers[f"t{i}"] = w.temp(register_class)
        for text in self.instruction.ptx.split("; "):
            w.emit(text.format(**registers))

    def simulate(self, m: Machine) -> None:
        if self._simulate_sums(m):
            return
        arrays = [m.read(operand) for operand in self.operands]
        undefined = self.instruction.undefined
        if undefined is not None and m.checks_values:
            where = undefined.when(*arrays)
            if where.any():
                m.hazard("value", f"{self.name}: {undefined.why}", where=where)
        m.write(self.d, self.instruction.run(*arrays))

    def _simulate_sums(self, m: Machine) -> bool:
        """The same with sums of a column and a row; False where that cannot be."""
        linear = rule(self.instruction)
        sums = None if linear is None else m.sums(self.operands)
        found = None if linear is None or sums is None else linear(*sums)
        if found is None:
            return False
        if isinstance(found, Sum):
            m.write_sum(self.d, found)
        else:
            m.write(self.d, found)
        return True


def issue(
    b: Builder, family: type[InstructionOp], instruction: Instruction, *operands: Operand
) -> Operand:
    """The result of an instruction: a constant where all operands are, else a shared value."""
    folded = fold(instruction, operands)
    if folded is not None:
        return folded
    d = b.value(instruction.result)
    return b.share(family(instruction=instruction, operands=operands, d=d, loc=b.loc())).d


def fold(instruction: Instruction, operands: Iterable[Operand]) -> Const | None:
    """The constant that an instruction gives for constant operands; None when it gives none."""
    arrays = []
    for operand in operands:
        if not isinstance(operand, Const):
            return None
        arrays.append(operand.array())
    if instruction.undefined is not None and instruction.undefined.when(*arrays).any():
        return None  # left to the simulator, which reports it where it happens
    with np.errstate(all="ignore"):
        return Const(instruction.result, instruction.run(*arrays)[0, 0])


def _names(dtypes: Iterable[DType]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)
