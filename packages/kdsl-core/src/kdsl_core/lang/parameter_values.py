"""What a launch passes to a kernel's parameters: numbers of its arguments, and tensor maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kdsl_core import ir
from kdsl_core.ir.map_limits import ALIGNMENT, check_map
from kdsl_core.ir.tensor_map import MapShape, TensorMap, TensorMapSpec
from kdsl_core.lang.arguments import ArrayFacts, Bound

if TYPE_CHECKING:
    from kdsl_core.ir import Array, Operand, Param
    from kdsl_core.isa.instruction import InstructionOp

# Where a parameter's value comes from at launch: ("pointer", array), ("size", array, mode),
# ("stride", array, mode), ("scalar", name) or ("tensor_map",).
Origin = tuple[Any, ...]
Term = tuple[int | None, int]
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
            return operand.array() if isinstance(operand, ir.Const) else held[operand]

        for op in spec.program:
            step = cast("InstructionOp", op)
            held[step.d] = step.instruction.run(*map(read, step.operands))
        found = [int(read(x).item()) for x in (spec.address, *spec.sizes, *spec.strides)]
        return _described(spec.shape, spec.tensor, found, len(spec.sizes))


class ProductMap:
    """A tensor map whose numbers are parameters times constants: nothing has to be interpreted.

    `terms` are (parameter, factor) of the address, the sizes and the strides; where no parameter
    decides a number, it is (None, number). Threads: safe.
    """

    def __init__(self, shape: MapShape, tensor: str, terms: Sequence[Term], rank: int) -> None:
        self.shape = shape
        self.tensor = tensor
        self.terms = terms
        self.rank = rank
        self._inputs = sorted({index for index, _ in terms if index is not None})
        self._of = lru_cache(maxsize=_MOST_KEPT)(self._compute)

    def __call__(self, values: Sequence[Any]) -> TensorMap:
        """The map for the values of all parameters; raises as `MapEvaluator`."""
        return self._of(*(values[index] for index in self._inputs))

    def _compute(self, *numbers: int) -> TensorMap:
        held: dict[int | None, int] = dict(zip(self._inputs, map(int, numbers), strict=True))
        found = [held.get(index, 1) * factor for index, factor in self.terms]
        return _described(self.shape, self.tensor, found, self.rank)


Evaluator = MapEvaluator | ProductMap


def _described(shape: MapShape, tensor: str, numbers: Sequence[int], rank: int) -> TensorMap:
    address, sizes, strides = numbers[0], numbers[1 : rank + 1], numbers[rank + 1 :]
    # A dimension of one element is never stepped along, whatever its stride is called.
    stepped = [
        stride if size > 1 else ALIGNMENT for stride, size in zip(strides, sizes[1:], strict=True)
    ]
    described = TensorMap(shape, tensor, address, tuple(sizes), tuple(stepped))
    check_map(described)
    return described


def values_of(
    origins: Sequence[Origin],
    maps: Sequence[Evaluator],
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
