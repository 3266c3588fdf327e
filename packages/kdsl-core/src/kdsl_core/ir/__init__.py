"""The intermediate representation: registers, operations, blocks, and the rules' interfaces."""

from kdsl_core.ir.block import Block, Kernel, Param, SharedAlloc
from kdsl_core.ir.builder import Builder
from kdsl_core.ir.flat import Branch, Exit, FlatProgram, Jump, flatten
from kdsl_core.ir.op import Effect, Op
from kdsl_core.ir.protocols import Array, Flattener, Label, Machine, PtxWriter
from kdsl_core.ir.target import Need, Target, target_of
from kdsl_core.ir.tensor_map import Im2col, MapShape, TensorMap, TensorMapSpec
from kdsl_core.ir.value import Const, Operand, Reg, Value, Var

__all__ = [
    "Array",
    "Block",
    "Branch",
    "Builder",
    "Const",
    "Effect",
    "Exit",
    "FlatProgram",
    "Flattener",
    "Im2col",
    "Jump",
    "Kernel",
    "Label",
    "Machine",
    "MapShape",
    "Need",
    "Op",
    "Operand",
    "Param",
    "PtxWriter",
    "Reg",
    "SharedAlloc",
    "Target",
    "TensorMap",
    "TensorMapSpec",
    "Value",
    "Var",
    "flatten",
    "target_of",
]
