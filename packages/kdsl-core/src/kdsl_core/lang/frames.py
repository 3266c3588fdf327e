"""Calls of rewritten functions, and returns that a value of the kernel decides."""

from __future__ import annotations

from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import StagingError
from kdsl_core.ir import Block, Const, Var
from kdsl_core.isa import register
from kdsl_core.isa.control import BreakOp, IfOp, LoopOp, ReturnOp
from kdsl_core.lang.loops import Loop, WhileLoop
from kdsl_core.lang.merge import fitted, is_number
from kdsl_core.lang.regions import TRUE, Leave, Region, Retrace, open_regions
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder, is_tracing
from kdsl_core.loc import here


class Frame(Region):
    """One call of a rewritten function; where it may return early, a loop that runs once."""

    def __init__(self, kind: str, early: bool) -> None:
        self._kind = kind
        self._base = len(open_regions())
        self._wrapped = early and kind == "func" and is_tracing()
        self.kernel = early and is_tracing()
        self._recorded = False
        self._done = False
        self._held: Any = None
        self._flag: Var | None = None
        self._value: Any = None
        if self._wrapped:
            self._parent = builder().block
            self._body = Block()
            builder().open(self._body)

    def give(self, value: Any, *whiles: WhileLoop) -> Any:
        """`return value`: at once where Python decides, else traced."""
        if not is_tracing() or len(open_regions()) == self._base:
            if self._kind == "kernel":
                _refuse_value(value)
            self._value = value
            return self.result() if not self._recorded else self._last(value)
        for around in whiles:
            if not around.kernel and len(open_regions()) > around.depth:
                raise Retrace(around.site)
        loops = [region for region in open_regions()[self._base :] if isinstance(region, Loop)]
        for loop in loops:
            loop.returns(self)
        if self._kind == "kernel":
            _refuse_value(value)
            builder().append(ReturnOp(loc=here()))
            raise Leave
        self._record(value)
        if loops:
            self._raise_flag()
        builder().append(BreakOp(loc=here()))
        raise Leave

    def _last(self, value: Any) -> Any:
        self._record(value)
        return self.result()

    def _raise_flag(self) -> None:
        b = builder()
        if self._flag is None:
            with b.inside(self._parent):
                self._flag = register.declare(b, dt.boolean, Const(dt.boolean, False), "returned")
        register.assign(b, self._flag, TRUE)

    def leave_again(self) -> None:
        """Behind a loop that was left by a return: leave what is around it too."""
        if self._flag is None:
            return  # a kernel's return needs no help
        then = Block()
        with builder().inside(then):
            builder().append(BreakOp(loc=here()))
        flag = register.snapshot(builder(), self._flag)
        builder().append(IfOp(condition=flag, then=then, otherwise=Block(), loc=here()))

    def result(self) -> Any:
        """What the call gives, once its code is traced."""
        if not self._wrapped or self._done:
            return self._value
        self._done = True
        builder().append(BreakOp(loc=here()))
        builder().close()
        if not self._recorded:
            builder().block.ops.extend(self._body.ops[:-1])
            return self._value
        builder().append(LoopOp(condition=TRUE, body=self._body, loc=here()))
        return _read_tree(self._held)

    def _record(self, value: Any) -> None:
        if not self._recorded:
            with builder().inside(self._parent):
                self._held = _declared_like(value)
            self._recorded = True
        _assign_tree(self._held, value)


def _refuse_value(value: Any) -> None:
    if value is not None:
        raise StagingError(
            f"a kernel returns no value, got {value!r}",
            code="K328",
            loc=here(),
            fix="store the result to a tensor argument; helpers under @kd.func may return values",
        )


def _declared_like(value: Any) -> Any:
    if isinstance(value, Scalar) or is_number(value):
        dtype = value.dtype if isinstance(value, Scalar) else _number_dtype(value)
        return builder().var(dtype, "result")
    if isinstance(value, tuple):
        return tuple(map(_declared_like, value))
    return _Fixed(value)


def _number_dtype(value: Any) -> dt.DType:
    return {bool: dt.boolean, int: dt.i32, float: dt.f32}[type(value)]


class _Fixed:
    """A Python object that every return of a function must give."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _assign_tree(held: Any, value: Any) -> None:
    if isinstance(held, tuple) and isinstance(value, tuple) and len(held) == len(value):
        for part, new in zip(held, value, strict=True):
            _assign_tree(part, new)
        return
    if isinstance(held, Var) and (isinstance(value, Scalar) or is_number(value)):
        operand = fitted(value, held.dtype)
        if operand is not None:
            register.assign(builder(), held, operand)
            return
    elif isinstance(held, _Fixed) and held.value is value:
        return
    was = held.dtype if isinstance(held, Var) else getattr(held, "value", held)
    raise StagingError(
        f"returns of one function differ: {was!r} and {value!r}",
        code="K329",
        loc=here(),
        fix="return values of the same types on every path",
    )


def _read_tree(held: Any) -> Any:
    if isinstance(held, Var):
        return Scalar(register.snapshot(builder(), held))
    if isinstance(held, tuple):
        return tuple(map(_read_tree, held))
    return held.value if isinstance(held, _Fixed) else held
