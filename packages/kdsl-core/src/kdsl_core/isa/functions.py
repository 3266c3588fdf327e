"""The functions of one float that the hardware has as an instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kdsl_core.dtypes import DType, f16, f32, f64
from kdsl_core.ir import Array, Builder, Operand
from kdsl_core.isa import rounding
from kdsl_core.isa.instruction import Instruction, InstructionOp, issue


class FunctionOp(InstructionOp):
    """A function of one float that the hardware has as an instruction.

    Those named "…_approx" are simulated by the correctly rounded result; the hardware differs from
    it by at most: exp2 2 ulp; log2 2^-22 absolute within [0.5, 2] and 2^-22 relative elsewhere;
    rsqrt 2^-22.9, sqrt 2^-23, rcp 1 ulp, tanh 2^-11 relative; sin and cos 2^-20.5 absolute within
    [−π, π], and worse with the size of the argument beyond. "exp2_approx_ftz" flushes subnormal
    operands and results to zero, which saves the three instructions that scale them.

    Source: PTX ISA 9.0, pages of `ex2`, `lg2`, `rsqrt`, `sqrt`, `rcp`, `tanh`, `sin`, `cos`.
    """

    FAMILY = "math"


def _in_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of f32, computed in f64 and rounded."""
    return lambda x: rounding.to_nearest(function(x.astype(np.float64)), np.float32)


def _flushed(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of f32 that takes and gives zeros, of the same sign, for subnormal numbers."""

    def flush(x: Array) -> Array:
        subnormal = np.abs(x) < np.finfo(np.float32).tiny
        return np.where(subnormal, np.copysign(np.float32(0), x), x).astype(np.float32)

    return lambda x: flush(function(flush(x)))


def _keep_type(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: rounding.canonical_nan(function(x))


def _reciprocal(x: Array) -> Array:
    return np.asarray(np.divide(x.dtype.type(1), x))


APPROX: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "exp2": ("ex2", np.exp2),
    "log2": ("lg2", np.log2),
    "rsqrt": ("rsqrt", lambda x: _reciprocal(np.sqrt(x))),
    "sqrt": ("sqrt", np.sqrt),
    "rcp": ("rcp", _reciprocal),
    "tanh": ("tanh", np.tanh),
    "sin": ("sin", np.sin),
    "cos": ("cos", np.cos),
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
        yield Instruction(f"{name}_approx", (f32,), f32, text, _in_double(function))
    text = "ex2.approx.ftz.f32 {d}, {a}"
    yield Instruction("exp2_approx_ftz", (f32,), f32, text, _flushed(_in_double(np.exp2)))
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
