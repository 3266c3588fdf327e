"""Registers of the IR: SSA values, register variables and constants."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.loc import Loc


class Reg:
    """A per-thread register of one dtype. Identity is object identity."""

    __slots__ = ("dtype", "hint", "loc")

    def __init__(self, dtype: DType, loc: Loc | None = None, hint: str = "") -> None:
        self.dtype = dtype
        self.loc = loc
        self.hint = hint

    def __repr__(self) -> str:
        made = f"of {self.loc.short()}" if self.loc else hex(id(self))
        return f"<{type(self).__name__} {self.hint or made}: {self.dtype}>"


class Value(Reg):
    """An SSA value: written by exactly one operation, which dominates every use."""

    __slots__ = ()


class Var(Reg):
    """A register variable: written many times, in place; reading it gives its value now.

    Loop-carried state and fragments are `Var`s, so that an accumulator is the same register in
    and out of every instruction and nothing is ever copied at a join.
    """

    __slots__ = ()


class Const:
    """A constant operand."""

    __slots__ = ("_array", "dtype", "value")

    def __init__(self, dtype: DType, value: Any) -> None:
        self.dtype = dtype
        self.value = normalise(dtype, value)
        self._array: np.ndarray[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"{self.value}:{self.dtype}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        return self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[str, str, str]:
        """Equal for constants with equal bits: 0.0 and -0.0 differ, NaN equals itself."""
        return ("const", self.dtype.name, repr(self.value))

    def array(self) -> np.ndarray[Any, Any]:
        """The constant as an array of shape (1, 1), which nobody may change."""
        if self._array is None:
            self._array = np.array([[self.value]]).astype(self.dtype.numpy)
            self._array.flags.writeable = False
        return self._array


Operand: TypeAlias = Value | Var | Const


def normalise(dtype: DType, value: Any) -> int | float | bool:
    """The Python number that a register of `dtype` would hold for `value` (integers wrap)."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return float(np.array(value, np.float64).astype(dtype.numpy))
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "i" and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return wrapped
