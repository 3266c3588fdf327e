"""Algebraic identities with constants: results that need no instruction, or a cheaper one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kdsl_core.dtypes import boolean, u32
from kdsl_core.ir import Builder, Const, Operand, Value
from kdsl_core.isa.register import snapshot

Binary: TypeAlias = Callable[[Builder, str, Operand, Operand], Operand]

_COMMUTES = ("add", "mul", "and", "or", "xor")
# name → the right operand that changes nothing. For floats x + 0.0 is none: it turns −0 into +0.
_NEUTRAL_INT = {"add": 0, "sub": 0, "mul": 1, "div": 1, "and": -1, "or": 0, "xor": 0}
_NEUTRAL_FLOAT = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
# name → (right operand that decides the result, that result)
_DECIDED = {"mul": (0, 0), "and": (0, 0), "or": (-1, -1), "rem": (1, 0)}
_OF_EQUALS = {"sub": 0, "xor": 0}


def simplified(b: Builder, name: str, x: Operand, y: Operand, binary: Binary) -> Operand | None:
    """An operand equal to `x name y` without that instruction; None when there is none.

    A variable is never returned itself: it would change with later assignments.
    """
    if name in _COMMUTES and isinstance(x, Const) and not isinstance(y, Const):
        return binary(b, name, y, x)
    if x.dtype.is_float:
        return snapshot(b, x) if _is(y, _NEUTRAL_FLOAT.get(name)) else None
    if isinstance(x, Const) and isinstance(y, Const):
        return None
    if name in ("shl", "shr") and _is(y, 0):
        return snapshot(b, x)
    if name in _NEUTRAL_INT and _is(y, _NEUTRAL_INT[name]):
        return snapshot(b, x)
    if name in _DECIDED and _is(y, _DECIDED[name][0]):
        return Const(x.dtype, _DECIDED[name][1])
    if name in _OF_EQUALS and x is y and isinstance(x, Value):
        return Const(x.dtype, _OF_EQUALS[name])
    return _by_power_of_two(b, name, x, y, binary)


def _by_power_of_two(
    b: Builder, name: str, x: Operand, y: Operand, binary: Binary
) -> Operand | None:
    """Products as shifts; unsigned quotients as shifts and remainders as masks."""
    exponent = _log2(y)
    if exponent is None or (name in ("div", "rem") and x.dtype.kind != "u"):
        return None
    count = Const(u32, exponent)
    if name == "mul":
        return binary(b, "shl", x, count)
    if name == "div":
        return binary(b, "shr", x, count)
    if name == "rem":
        return binary(b, "and", x, Const(x.dtype, (1 << exponent) - 1))
    return None


def _log2(operand: Operand) -> int | None:
    if not isinstance(operand, Const) or operand.dtype is boolean or operand.value <= 0:
        return None
    value = int(operand.value)
    return value.bit_length() - 1 if value & (value - 1) == 0 else None


def _is(operand: Operand, value: float | None) -> bool:
    if value is None or not isinstance(operand, Const):
        return False
    if value >= 0 and operand.value != value:  # what is below 0 may wrap
        return False
    return operand == Const(operand.dtype, value)
