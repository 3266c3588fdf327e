"""The functions of one float that the hardware has as an instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kdsl_core.dtypes import DType, f16, f32, f64
from kdsl_core.ir import Array, Builder, Operand
from kdsl_core.isa import multifunction, rounding
from kdsl_core.isa.instruction import Instruction, InstructionOp, issue


class FunctionOp(InstructionOp):
    """A function of one float that the hardware has as an instruction.

    Those named "…_approx" give the bits of an H200 (`multifunction.py`). PTX allows them to differ
    from the real function by: exp2 2 ulp, exp2_ftz the same with 0 for subnormal results; log2
    2^-22 absolute within [0.5, 2] and 2^-22 relative elsewhere; rsqrt 2^-22.9, sqrt 2^-23, rcp
    1 ulp, tanh 2^-11 relative; sin and cos 2^-20.5 absolute within [−π, π], and worse with the size
    of the argument beyond.

    Source: PTX ISA 9.0, pages of `ex2`, `lg2`, `rsqrt`, `sqrt`, `rcp`, `tanh`, `sin`, `cos`.
    """

    FAMILY = "math"


def _keep_type(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: rounding.canonical_nan(function(x))


def _flushed(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function with zeros for subnormal results."""

    def run(x: Array) -> Array:
        y = function(x)
        return np.where(np.abs(y) < np.finfo(np.float32).tiny, np.float32(0), y)

    return run


def _reciprocal(x: Array) -> Array:
    return np.asarray(np.divide(x.dtype.type(1), x))


APPROX: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "exp2": ("ex2", multifunction.ex2),
    "log2": ("lg2", multifunction.lg2),
    "rsqrt": ("rsqrt", multifunction.rsqrt),
    "sqrt": ("sqrt", multifunction.sqrt),
    "rcp": ("rcp", multifunction.rcp),
    "tanh": ("tanh", multifunction.tanh),
    "sin": ("sin", multifunction.sin),
    "cos": ("cos", multifunction.cos),
}
INTEGRAL: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "floor": ("rmi", np.floor),
    "ceil": ("rpi", np.ceil),
    "round": ("rni", np.rint),
    "trunc": ("rzi", np.trunc),
}


def _rows() -> Iterator[Instruction]:
    for name, (opcode, function) in APPROX.items():
        text = f"{opcode}.approx.f32 {{d}}, {{a}}"
        yield Instruction(f"{name}_approx", (f32,), f32, text, function)
    flushing = _flushed(APPROX["exp2"][1])
    yield Instruction("exp2_ftz_approx", (f32,), f32, "ex2.approx.ftz.f32 {d}, {a}", flushing)
    for t in (f32, f64):
        yield Instruction("sqrt", (t,), t, f"sqrt.rn.{t.ptx} {{d}}, {{a}}", _keep_type(np.sqrt))
        yield Instruction("rcp", (t,), t, f"rcp.rn.{t.ptx} {{d}}, {{a}}", _keep_type(_reciprocal))
    for name, (mode, function) in INTEGRAL.items():
        for t in (f16, f32, f64):
            text = f"cvt.{mode}.{t.ptx}.{t.ptx} {{d}}, {{a}}"
            yield Instruction(name, (t,), t, text, _keep_type(function))


INSTRUCTIONS = tuple(_rows())
_BY_TYPE = {(row.name, row.operands[0]): row for row in INSTRUCTIONS}


def available(name: str, dtype: DType) -> bool:
    """Whether the hardware has the function for a type."""
    return (name, dtype) in _BY_TYPE


def direct(b: Builder, name: str, x: Operand) -> Operand:
    """The function by its one instruction: "sqrt", "floor", "exp2_approx", …"""
    return issue(b, FunctionOp, _BY_TYPE[name, x.dtype], x)


OPS = (FunctionOp,)
