"""Tensor maps of a kernel: parameters that the host computes from the other parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from kdsl_core.dtypes import u64
from kdsl_core.errors import StagingError
from kdsl_core.ir import Const, Kernel, MapShape, Op, Operand, Param, Value
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.lang.tracer import Tracer, current
from kdsl_core.loc import Loc, here

_MAPS = "tensor maps"


def tensor_map(
    shape: MapShape,
    tensor: str,
    address: Operand,
    sizes: Sequence[Operand],
    strides: Sequence[Operand],
) -> Operand:
    """The address of a kernel parameter that holds this tensor map; equal maps share one.

    Units: `sizes` in elements, innermost first; `strides` in bytes, one fewer.
    Raises: StagingError K453 when something else than the kernel's parameters decides a number.
    """
    tracer = current()
    program = _Program(tracer, tensor)
    numbers = (address, *sizes, *strides)
    key = (shape, tensor, len(sizes), tuple(map(program.form, numbers)))
    known: dict[Any, Value] = tracer.facts.setdefault(_MAPS, {})
    if key not in known:
        spec = TensorMapSpec(
            shape, tensor, address, tuple(sizes), tuple(strides), tuple(program.ops)
        )
        known[key] = _parameter(tracer.kernel, spec)
    return known[key]


def _parameter(kernel: Kernel, spec: TensorMapSpec) -> Value:
    names = {param.name for param in kernel.params}
    name = wanted = f"{spec.tensor or 'tensor'}_map"
    number = 2
    while name in names:
        name, number = f"{wanted}{number}", number + 1
    value = Value(u64, here(), name)
    kernel.params.append(Param(name, value, map=spec))
    return value


class _Program:
    """The operations that compute some operands from a kernel's parameters, in order."""

    def __init__(self, tracer: Tracer, tensor: str) -> None:
        params = tracer.kernel.params
        self.ops: list[InstructionOp] = []
        self._tensor = tensor
        self._forms: dict[Value, Any] = {p.value: p.name for p in params if p.map is None}
        self._writers: dict[Any, Op] = {
            register: op for op in tracer.builder.traced() for register in op.writes()
        }

    def form(self, operand: Operand) -> Any:
        """What is computed, equal for equal computations; its operations join the program."""
        if isinstance(operand, Const):
            return operand.key()
        if not isinstance(operand, Value):
            self._refuse(f"the variable {operand.hint or 'of a loop or branch'}", operand.loc)
        if operand not in self._forms:
            op = self._writers.get(operand)
            if not isinstance(op, InstructionOp):
                self._refuse(op.name if op else repr(operand), op.loc if op else operand.loc)
            parts = tuple(self.form(part) for part in op.operands)
            self.ops.append(op)
            self._forms[operand] = (op.name, repr(op.instruction), operand.dtype.name, parts)
        return self._forms[operand]

    def _refuse(self, what: str, loc: Loc | None) -> NoReturn:
        raise StagingError(
            f"the tensor map of {self._tensor} is made before the launch, from the kernel's "
            f"parameters alone, but {what} decides where it starts, a size or a stride",
            code="K453",
            loc=here(),
            notes=[f"that is of {loc.short()}"] if loc else [],
            fix="make the map of the whole argument, and pass what differs between threads and "
            "blocks as coordinates",
        )
