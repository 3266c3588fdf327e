"""Tensor maps of a kernel: parameters that the host computes from the other parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from kdsl_core.dtypes import u64
from kdsl_core.errors import StagingError
from kdsl_core.ir import Array, Const, Kernel, MapShape, Op, Operand, Param, TensorMap, Value
from kdsl_core.ir.map_limits import ALIGNMENT, check_map
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.lang.tracer import Tracer, current
from kdsl_core.loc import Loc, here

_MAPS = "tensor maps"
_MOST_KEPT = 256


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


class MapEvaluator:
    """Computes a tensor map from the values of a kernel's parameters, and keeps the latest.

    Threads: safe.
    """

    def __init__(self, spec: TensorMapSpec, params: Sequence[Param]) -> None:
        self.spec = spec
        self.params = params
        read = {operand for op in spec.program for operand in op.reads()}
        read.update((spec.address, *spec.sizes, *spec.strides))
        self._inputs = [(i, p.value) for i, p in enumerate(params) if p.value in read]
        self._of = lru_cache(maxsize=_MOST_KEPT)(self._compute)

    def __call__(self, values: Sequence[Any]) -> TensorMap:
        """The map for the values of all parameters.

        Raises: ArgumentError K630 … K635 when the TMA unit cannot describe the tensor.
        """
        return self._of(*(values[index] for index, _ in self._inputs))

    def _compute(self, *numbers: Any) -> TensorMap:
        spec = self.spec
        held: dict[Operand, Array] = {
            value: np.full((1, 1), number, value.dtype.numpy)
            for (_, value), number in zip(self._inputs, numbers, strict=True)
        }

        def read(operand: Operand) -> Array:
            return operand.array() if isinstance(operand, Const) else held[operand]

        for op in spec.program:
            assert isinstance(op, InstructionOp)
            held[op.d] = op.instruction.run(*map(read, op.operands))
        sizes = tuple(int(read(size).item()) for size in spec.sizes)
        # A dimension of one element is never stepped along, whatever its stride is called.
        strides = tuple(
            int(read(stride).item()) if size > 1 else ALIGNMENT
            for stride, size in zip(spec.strides, sizes[1:], strict=True)
        )
        address = int(read(spec.address).item())
        described = TensorMap(spec.shape, spec.tensor, address, sizes, strides)
        check_map(described)
        return described
