"""The intermediate representation: registers, operations, blocks, and the rules' interfaces.

What only traces and back ends need is loaded when it is first asked for: a process that finds its
kernels in the cache has no use for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdsl_core.ir.target import Need, Target, target_of
from kdsl_core.ir.tensor_map import Im2col, MapShape, TensorMap, TensorMapSpec
from kdsl_core.late_names import late_names

if TYPE_CHECKING:
    from kdsl_core.ir.block import Block, Kernel, Param, SharedAlloc
    from kdsl_core.ir.builder import Builder
    from kdsl_core.ir.flat import Branch, Exit, FlatProgram, Jump, flatten
    from kdsl_core.ir.op import Effect, Op
    from kdsl_core.ir.protocols import Array, Flattener, Label, Machine, PtxWriter
    from kdsl_core.ir.value import Const, Operand, Reg, Value, Var

_HOMES = {
    "block": ("Block", "Kernel", "Param", "SharedAlloc"),
    "builder": ("Builder",),
    "flat": ("Branch", "Exit", "FlatProgram", "Jump", "flatten"),
    "op": ("Effect", "Op"),
    "protocols": ("Array", "Flattener", "Label", "Machine", "PtxWriter"),
    "value": ("Const", "Operand", "Reg", "Value", "Var"),
}

__getattr__ = late_names(globals(), _HOMES)

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
