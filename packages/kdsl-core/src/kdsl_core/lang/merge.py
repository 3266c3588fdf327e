"""Values where control flow meets: joined after a branch, carried around a loop.

Scalars and Python numbers meet in register variables; tuples meet element by element; any other
Python object must be the same on every path.
"""

from __future__ import annotations

import linecache
import math
import os
from typing import Any, NoReturn

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType
from kdsl_core.errors import StagingError
from kdsl_core.ir import Block, Const, Operand, Var
from kdsl_core.isa import register
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tracer import builder
from kdsl_core.loc import here
from kdsl_core.records import dataclass

_EQUAL_IS_SAME = (str, bytes, type(None), DType)


@dataclass(frozen=True)
class Site:
    """A line of the author's text, for a message."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{os.path.basename(self.file)}:{self.line}: {text}"


class Poison(Scalar):
    """What a name holds where it has no value on some path; every use of it is an error.

    It is a scalar without an operand, so that whatever takes scalars comes to ask and is told.
    """

    __slots__ = ("_message", "_notes")

    def __init__(self, name: str, message: str, *notes: str) -> None:
        self._message = f"{name} {message}"
        self._notes = notes

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StagingError(
            self._message,
            code="K322",
            loc=here(),
            notes=self._notes,
            fix="bind the name before the `if` or the loop, with a value of the type that it takes",
        )

    def __repr__(self) -> str:
        return f"<no value: {self._message}>"

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    __hash__ = object.__hash__
    __bool__ = __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = __contains__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __pow__ = __rpow__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = __abs__ = __invert__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __format__ = __enter__ = _refuse


class Dead(Poison):
    """What a name holds where no path reads it again."""


def is_number(value: Any) -> bool:
    """Whether a value is a plain Python number."""
    return type(value) in (bool, int, float)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one and the same as far as kernel code can tell."""
    if a is b or isinstance(a, Poison) or isinstance(b, Poison):
        return a is b
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return a._base is b._base and a.plus == b.plus
    if isinstance(a, tuple) and type(a) is type(b) and len(a) == len(b):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    if is_number(a) and type(a) is type(b):
        return bool(a == b) and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and isinstance(a, _EQUAL_IS_SAME) and bool(a == b)


def register_dtype(value: Any) -> DType:
    """The type of the register that holds a scalar or a Python number."""
    return as_scalar(value).dtype


def spelled(value: Any) -> str:
    """A value as a message names it: its type, and the number itself when it is Python's."""
    if isinstance(value, Scalar):
        return str(value.dtype)
    if is_number(value):
        return f"Python {type(value).__name__} {value!r}"
    return f"{type(value).__name__} {repr(value)[:60]}"


def fitted(value: Any, dtype: DType) -> Operand | None:
    """A scalar or number as an operand of exactly `dtype`; None when it is of another type."""
    if isinstance(value, Scalar):
        return value.operand if value.dtype is dtype else None
    if type(value) is bool:
        return as_scalar(value).operand if dtype is dt.boolean else None
    if type(value) is int and dtype is not dt.boolean:
        return as_scalar(value, dtype).operand
    if type(value) is float and dtype.is_float:
        return as_scalar(value, dtype).operand
    return None


# -- branches ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Arm:
    """One path into a join: its block (None when the path ends before), its value, its line."""

    block: Block | None
    value: Any
    site: Site


def join(name: str, then: Arm, otherwise: Arm, before: Any = None) -> Any:
    """The value of a name behind a branch that was just appended.

    Where the arms differ, each gets a last assignment to one register variable.
    """
    arms = [arm for arm in (then, otherwise) if arm.block is not None]
    missing = next((arm for arm in arms if isinstance(arm.value, Poison)), None)
    if missing is not None:
        if all(isinstance(arm.value, Poison) for arm in arms):
            return missing.value
        where = next(arm for arm in arms if arm is not missing).site
        notes = (f"it is bound at {where}", f"and has no value through {missing.site}")
        return Poison(name, "is bound on one path only", *notes)
    if len(arms) == 1:
        return _carried_out(name, arms[0].block, arms[0].value, before)
    return _meet(name, then, otherwise, then.value, otherwise.value)


def _carried_out(name: str, block: Block | None, value: Any, before: Any) -> Any:
    """The value from the only path that goes on, moved out of the block that computed it."""
    if isinstance(value, tuple):
        old = before if isinstance(before, tuple) and len(before) == len(value) else value
        parts = [
            _carried_out(f"{name}[{i}]", block, part, None if old is value else old[i])
            for i, part in enumerate(value)
        ]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    if not isinstance(value, Scalar) or isinstance(value._base, Const) or same(value, before):
        return value
    assert block is not None
    var = register.declare(builder(), value.dtype, hint=name)
    with builder().inside(block):
        register.assign(builder(), var, value.operand)
    return with_common_facts(register.snapshot(builder(), var), value, value)


def _meet(name: str, then: Arm, otherwise: Arm, a: Any, b: Any) -> Any:
    if same(a, b):
        return a
    if isinstance(a, tuple) and type(a) is type(b) and len(a) == len(b):
        parts = [
            _meet(f"{name}[{i}]", then, otherwise, x, y)
            for i, (x, y) in enumerate(zip(a, b, strict=True))
        ]
        return tuple(parts) if type(a) is tuple else type(a)(*parts)
    if not all(isinstance(v, Scalar) or is_number(v) for v in (a, b)):
        raise _differs(name, then, otherwise, a, b)
    leader = a if isinstance(a, Scalar) or not isinstance(b, Scalar) else b
    dtype = register_dtype(leader)
    var = register.declare(builder(), dtype, hint=name)
    for arm, value in ((then, a), (otherwise, b)):
        assert arm.block is not None
        with builder().inside(arm.block):
            operand = fitted(value, dtype)
            if operand is None:
                raise _differs(name, then, otherwise, a, b)
            register.assign(builder(), var, operand)
    return with_common_facts(register.snapshot(builder(), var), a, b)


def with_common_facts(operand: Operand, a: Any, b: Any) -> Scalar:
    """A scalar that is one of two others, with what holds for both."""
    x, y = as_scalar(a), as_scalar(b)
    return Scalar(
        operand,
        divisor=math.gcd(x.divisor, y.divisor),
        nonneg=x.nonneg and y.nonneg,
        bound=max(x.bound, y.bound) if x.bound and y.bound else None,
    )


def _differs(name: str, then: Arm, otherwise: Arm, a: Any, b: Any) -> StagingError:
    return StagingError(
        f"{name} would be {spelled(a)} or {spelled(b)}, depending on a value of the kernel",
        code="K323",
        loc=here(),
        notes=(f"one is from {then.site}", f"the other from {otherwise.site}"),
        fix="give it one type on both paths (x.to(kd.f32)); Python objects cannot depend on the "
        "kernel's values",
    )


# -- loops ---------------------------------------------------------------------------------------
@dataclass
class Carried:
    """A value that a loop hands from one iteration to the next, in registers."""

    name: str
    start: Any
    before: Site
    inside: Site
    held: Any = None
    read_last: Any = None

    def promote(self) -> None:
        """Move the value before the loop to register variables."""
        self.held = _promoted(self.name, self.start)

    def read(self) -> Any:
        """What the registers hold now."""
        self.read_last = _read(self.held, self.start)
        return self.read_last

    def write(self, value: Any) -> None:
        """Set the registers to the value at the end of an iteration."""
        if isinstance(value, Dead):
            return  # nothing reads it from here on
        if isinstance(value, Poison):
            value._refuse()
        if not same(value, self.read_last):
            self._write(self.name, self.held, value)

    def _write(self, name: str, held: Any, value: Any) -> None:
        if isinstance(held, tuple) and isinstance(value, tuple) and len(held) == len(value):
            for i, (part, new) in enumerate(zip(held, value, strict=True)):
                self._write(f"{name}[{i}]", part, new)
            return
        if isinstance(held, Var) and (isinstance(value, Scalar) or is_number(value)):
            operand = fitted(value, held.dtype)
            if operand is not None:
                register.assign(builder(), held, operand)
                return
        elif not isinstance(held, (Var, tuple)) and same(held, value):
            return
        raise self._changes(name, held, value)

    def _changes(self, name: str, held: Any, value: Any) -> StagingError:
        was = str(held.dtype) if isinstance(held, Var) else spelled(held)
        fix = "start it with a value of the type that the loop gives it (0.0 for f32)"
        if not isinstance(held, Var):
            fix = "index by the loop variable instead of rebinding; a Python object cannot change"
        return StagingError(
            f"{name} is {was} before the loop and becomes {spelled(value)} inside it",
            code="K324",
            loc=here(),
            notes=(
                f"the value before the loop is used at {self.before}",
                f"rebound at {self.inside}",
            ),
            fix=fix,
        )


def _promoted(name: str, value: Any) -> Any:
    if isinstance(value, Scalar) or is_number(value):
        scalar = as_scalar(value)
        return register.declare(builder(), scalar.dtype, scalar.operand, hint=name)
    if isinstance(value, tuple):
        return tuple(_promoted(f"{name}_{i}", part) for i, part in enumerate(value))
    return value


def _read(held: Any, like: Any) -> Any:
    if isinstance(held, Var):
        return Scalar(register.snapshot(builder(), held))
    if isinstance(held, tuple):
        parts = [_read(part, old) for part, old in zip(held, like, strict=True)]
        return tuple(parts) if type(like) is tuple else type(like)(*parts)
    return held
