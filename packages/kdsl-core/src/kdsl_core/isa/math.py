"""Mathematical functions: the hardware's fast instructions, or arithmetic within 2 ulp."""

from __future__ import annotations

from kdsl_core.dtypes import bf16, f16, f32, f64
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Operand
from kdsl_core.isa.arith import binary
from kdsl_core.isa.convert import convert
from kdsl_core.isa.elementary import ACCURATE, ndtr_approx
from kdsl_core.isa.functions import APPROX, INTEGRAL, OPS, FunctionOp, available, direct

__all__ = ["NAMES", "OPS", "FunctionOp", "function"]
NAMES = tuple(dict.fromkeys((*ACCURATE, *APPROX, *INTEGRAL)))
_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453


def function(b: Builder, name: str, x: Operand, approx: bool = False) -> Operand:
    """exp exp2 log log2 sqrt rsqrt rcp tanh sin cos erf ndtr sigmoid floor ceil round trunc.

    With `approx` the hardware's fast instructions are used (`FunctionOp` states their bounds).
    Without, the result is computed by instructions that round exactly, so that simulator and
    hardware agree bit for bit: sqrt and rcp are correctly rounded, the others of f32 are within
    2 ulp, but ndtr within 2^-23; sin and cos give NaN beyond ±2^20. `round` goes to the nearest,
    ties to even. f16 and bf16 are computed in f32; f64 has sqrt, rsqrt, rcp and the roundings.

    Raises: TypeMismatch for other types and unknown names.
    """
    if name not in NAMES:
        raise TypeMismatch(
            f"{name!r} is no function of kdsl; there are {', '.join(NAMES)}",
            code="K260",
            loc=b.loc(),
        )
    if approx and x.dtype == f32:
        return _approximate(b, name, x)
    if available(name, x.dtype):
        return direct(b, name, x)
    if x.dtype in (f16, bf16):
        return convert(b, function(b, name, convert(b, x, f32), approx), x.dtype)
    if x.dtype == f32 or (x.dtype == f64 and name == "rsqrt"):
        return ACCURATE[name](b, x)
    raise TypeMismatch(
        f"{name} of {x.dtype}: expected f32, f16 or bf16",
        code="K261",
        loc=b.loc(),
        fix=f"kd.{name}(x.to(kd.f32))",
    )


def _approximate(b: Builder, name: str, x: Operand) -> Operand:
    """f32, by the fast instructions; functions without one are composed of those that exist."""
    if name in APPROX:
        return direct(b, f"{name}_approx", x)
    if name == "exp":
        return direct(b, "exp2_approx", binary(b, "mul", x, Const(f32, _LOG2_E)))
    if name == "log":
        return binary(b, "mul", direct(b, "log2_approx", x), Const(f32, _LN_2))
    if name == "ndtr":
        return ndtr_approx(b, x)
    if name == "sigmoid":
        # Beside the 1 that is added, subnormal numbers are nothing.
        decay = direct(b, "exp2_ftz_approx", binary(b, "mul", x, Const(f32, -_LOG2_E)))
        return direct(b, "rcp_approx", binary(b, "add", decay, Const(f32, 1)))
    return direct(b, name, x) if available(name, f32) else ACCURATE[name](b, x)
