"""What a launch passes to a kernel's parameters: numbers of its arguments, and tensor maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kdsl_core.ir import Array, Const, Operand, Param, TensorMap
from kdsl_core.ir.map_limits import ALIGNMENT, check_map
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.lang.arguments import ArrayFacts, Bound

if TYPE_CHECKING:
    from kdsl_core.isa.instruction import InstructionOp

# Where a parameter's value comes from at launch: ("pointer", array), ("size", array, mode),
# ("stride", array, mode), ("scalar", name) or ("tensor_map", spec).
Origin = tuple[Any, ...]
_MOST_KEPT = 256


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
            step = cast("InstructionOp", op)
            held[step.d] = step.instruction.run(*map(read, step.operands))
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


def values_of(
    origins: Sequence[Origin],
    maps: Sequence[MapEvaluator],
    bound: Bound,
    addresses: Mapping[str, int] | None = None,
) -> list[Any]:
    """The parameters' values for a call; see `Traced.values`."""
    values = [
        addresses[origin[1]]
        if addresses is not None and origin[0] == "pointer"
        else _value_of(origin, bound)
        for origin in origins[: len(origins) - len(maps)]
    ]
    return [*values, *(evaluate(values) for evaluate in maps)]


def _value_of(origin: Origin, bound: Bound) -> Any:
    kind, name, *mode = origin
    if kind == "scalar":
        return bound.scalars[name]
    facts: ArrayFacts = bound.arrays[name]
    if kind == "pointer":
        return facts.pointer
    return (facts.shape if kind == "size" else facts.strides)[mode[0]]
