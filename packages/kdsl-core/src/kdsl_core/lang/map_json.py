"""Tensor maps as JSON: their shape, and the program that computes sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType, boolean
from kdsl_core.ir import Const, Operand, Param, Value
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa import arith, compare
from kdsl_core.isa.conversions import direct
from kdsl_core.isa.convert import ConvertOp
from kdsl_core.isa.instruction import Instruction, InstructionOp
from kdsl_core.lang.product_maps import Unportable, shape_from_json, shape_to_json

_FAMILIES = (arith.ArithOp, compare.CompareOp, compare.SelectOp, ConvertOp)
_ROWS = {
    (row.name, row.operands, row.result): row
    for row in (*arith.INSTRUCTIONS, *compare.INSTRUCTIONS)
}


def map_to_json(spec: TensorMapSpec, params: Sequence[Param]) -> dict[str, Any]:
    """The map as JSON values; operands are parameters and results of earlier steps, by number.

    Raises: Unportable.
    """
    numbers: dict[Operand, int] = {param.value: i for i, param in enumerate(params)}

    def operand(x: Operand) -> Any:
        return [x.dtype.name, x.value] if isinstance(x, Const) else numbers[x]

    steps = []
    for op in spec.program:
        assert isinstance(op, InstructionOp)
        row = op.instruction
        if _instruction(row.name, row.operands, row.result) is not row:
            raise Unportable(op.name)
        family = _FAMILIES.index(type(op))
        steps.append([family, row.name, row.result.name, *map(operand, op.operands)])
        numbers[op.d] = len(numbers)
    return {
        "shape": shape_to_json(spec.shape),
        "tensor": spec.tensor,
        "program": steps,
        "address": operand(spec.address),
        "sizes": [operand(size) for size in spec.sizes],
        "strides": [operand(stride) for stride in spec.strides],
    }


def map_from_json(stated: dict[str, Any], params: Sequence[Param]) -> TensorMapSpec:
    """The map that `map_to_json` stated, over these parameters."""
    values: list[Value] = [param.value for param in params]

    def operand(x: Any) -> Operand:
        return values[x] if isinstance(x, int) else Const(BY_NAME[x[0]], x[1])

    program = []
    for family, name, result, *parts in stated["program"]:
        operands = tuple(map(operand, parts))
        row = _instruction(name, tuple(part.dtype for part in operands), BY_NAME[result])
        if row is None:
            raise Unportable(name)
        d = Value(row.result)
        program.append(_FAMILIES[family](instruction=row, operands=operands, d=d, loc=None))
        values.append(d)
    return TensorMapSpec(
        shape_from_json(stated["shape"]),
        stated["tensor"],
        operand(stated["address"]),
        tuple(map(operand, stated["sizes"])),
        tuple(map(operand, stated["strides"])),
        tuple(program),
    )


def _instruction(name: str, operands: tuple[DType, ...], result: DType) -> Instruction | None:
    """The one instruction with this name and these types; None when several could be meant."""
    row = _ROWS.get((name, operands, result))
    if row is None and operands and operands[0] is boolean and name == "select":
        row = compare.selection(result)
    if row is None and len(operands) == 1:
        row = direct(operands[0], result, None, False)
    return row if row is not None and row.name == name else None
