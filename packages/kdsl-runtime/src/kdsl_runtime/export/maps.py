"""Tensor maps in C: the numbers that a launch computes from the other arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kdsl_core.errors import ArgumentError
from kdsl_core.ir import Const, Operand
from kdsl_core.ir.map_limits import ALIGNMENT
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa.convert import ConvertOp
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.lang.traced import Traced
from kdsl_runtime.export.arguments import C_TYPES
from kdsl_runtime.tensor_maps import FILLS, PROMOTIONS, SWIZZLES, TYPES

_INFIX = {"add": "+", "sub": "-", "mul": "*", "shl": "<<"}
Read = Callable[[Operand], str]


def map_lines(traced: Traced) -> list[str]:
    """Statements that fill and encode `maps[i]`, the kernel's tensor maps in order.

    Raises: ArgumentError K745 for a map that C code cannot make.
    """
    names: dict[Operand, str] = {
        p.value: f"args->{p.name}" for p in traced.kernel.params if p.map is None
    }
    maps = [p.map for p in traced.kernel.params if p.map is not None]
    lines: list[str] = []
    for index, spec in enumerate(maps):
        lines += [f"    kdsl_tensor t{index} = {{0}};", *_filled(f"t{index}", spec, names)]
        lines.append(f"    if (code == 0) code = kdsl_encode(&maps[{index}], &t{index});")
    return lines


def _filled(place: str, spec: TensorMapSpec, names: dict[Operand, str]) -> list[str]:
    shape = spec.shape
    if shape.im2col is not None:
        raise _refused(spec, "walks windows (im2col)")
    read = _reader(spec, names)
    facts = {
        "type": f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[shape.dtype.name]}",
        "rank": str(shape.rank),
        "address": read(spec.address),
        "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[shape.swizzle]}",
        "promotion": f"CU_TENSOR_MAP_L2_PROMOTION_{PROMOTIONS[shape.promotion]}",
        "fill": f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{FILLS[shape.fill]}",
    }
    steps = shape.element_strides or (1,) * shape.rank
    facts |= {f"sizes[{i}]": f"(cuuint64_t){read(size)}" for i, size in enumerate(spec.sizes)}
    facts |= {f"strides[{i}]": _stride(i, spec, read) for i in range(len(spec.strides))}
    facts |= {f"box[{i}]": str(size) for i, size in enumerate(shape.box)}
    facts |= {f"steps[{i}]": str(step) for i, step in enumerate(steps)}
    return [f"    {place}.{name} = {text};" for name, text in facts.items()]


def _stride(index: int, spec: TensorMapSpec, read: Read) -> str:
    """A dimension of one element is never stepped along, whatever its stride is called."""
    stride = f"(cuuint64_t){read(spec.strides[index])}"
    return f"{read(spec.sizes[index + 1])} > 1 ? {stride} : {ALIGNMENT}"


def _reader(spec: TensorMapSpec, names: dict[Operand, str]) -> Read:
    """How C writes an operand of the map's program."""
    texts = dict(names)

    def read(operand: Operand) -> str:
        return str(int(operand.value)) if isinstance(operand, Const) else texts[operand]

    for op in spec.program:
        if not isinstance(op, InstructionOp):
            raise _refused(spec, f"is computed by {op.name}")
        texts[op.d] = _operation(spec, op, [read(operand) for operand in op.operands])
    return read


def _operation(spec: TensorMapSpec, op: InstructionOp, operands: Sequence[str]) -> str:
    kind = C_TYPES[op.d.dtype.name]
    if isinstance(op, ConvertOp):
        return f"({kind}){operands[0]}"
    if op.instruction.name not in _INFIX:
        raise _refused(spec, f"is computed by {op.instruction}")
    first, second = operands
    return f"({kind})(({kind}){first} {_INFIX[op.instruction.name]} {second})"


def _refused(spec: TensorMapSpec, why: str) -> ArgumentError:
    return ArgumentError(
        f"the tensor map of {spec.tensor} {why}, which exported C code cannot do",
        code="K745",
        fix="launch this kernel from Python, or pass sizes and strides as they are",
    )
