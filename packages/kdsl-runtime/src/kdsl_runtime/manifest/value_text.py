"""Trace-time values as text: Python expressions of literals, tuples, names and constructor calls.

Names are dotted import paths, `kdsl_core.dtypes.f16`. A text means one value; what has no exact
text is refused, so that a manifest never stands for another kernel than the one recorded.
"""

from __future__ import annotations

import ast
import enum
import math
import pkgutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from kdsl_core import dtypes
from kdsl_core.errors import ArgumentError, KdslError
from kdsl_core.lang.kernel import KernelFunction

_LITERALS = (type(None), bool, int, str, bytes)


def to_text(value: Any) -> str:
    """The expression that means `value`.

    Raises: ArgumentError K733 for a value that no expression means exactly.
    """
    text = _text(value)
    try:
        back = from_text(text)
    except KdslError as problem:
        raise _no_text(value, problem.message) from problem
    if type(back) is not type(value) or (back != value and value == value):
        raise _no_text(value, f"{text} means another object than this one")
    return text


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) in _LITERALS:
        return repr(value)
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dtypes.DType):
        return f"kdsl_core.dtypes.{value.name}"
    if isinstance(value, enum.Enum):
        return f"{_path(type(value))}.{value.name}"
    if isinstance(value, FunctionType | type | KernelFunction):
        return _path(value)
    return _construction(value)


def _construction(value: Any) -> str:
    kind = type(value)
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init and field.compare]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return _reduction(value)
    told = ", ".join(f"{name}={_text(getattr(value, name))}" for name in names)
    return f"{_path(kind)}({told})"


def _reduction(value: Any) -> str:
    """By `__reduce__`, where the class itself defines it as its constructor with arguments."""
    kind = type(value)
    reduced = value.__reduce__() if "__reduce__" in vars(kind) else None
    if not isinstance(reduced, tuple) or len(reduced) != 2 or reduced[0] is not kind:
        raise _no_text(value, f"a {kind.__name__} is no literal, tuple, dataclass or named object")
    return f"{_path(kind)}({', '.join(map(_text, reduced[1]))})"


def _path(named: Any) -> str:
    if named.__module__ == "__main__":
        raise _no_text(named, "it is defined in the program's main file, which has no import path")
    return f"{named.__module__}.{named.__qualname__}"


def from_text(text: str) -> Any:
    """The value that an expression of `to_text` means.

    Raises: ArgumentError K734 for any other expression and for names that cannot be imported.
    """
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ImportError, AttributeError) as problem:
        raise ArgumentError(
            f"{text!r} is no trace-time value: {problem}",
            code="K734",
            fix="write literals, tuples, names by import path, or constructor calls of such",
        ) from problem


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Tuple():
            return tuple(map(_value, node.elts))
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as number)]):
            return float(number)
        case ast.Call():
            named = {word.arg: _value(word.value) for word in node.keywords if word.arg}
            return _class(node.func)(*map(_value, node.args), **named)
        case ast.Attribute():
            return pkgutil.resolve_name(ast.unparse(node))
    raise ValueError(f"{ast.unparse(node)} is not understood")


def _class(node: ast.expr) -> Callable[..., Any]:
    found = _value(node)
    if not isinstance(found, type):
        raise TypeError(f"{ast.unparse(node)} is no class")
    return found


def _no_text(value: Any, why: str) -> ArgumentError:
    return ArgumentError(
        f"the trace-time value {repr(value)[:80]} cannot be written down: {why}",
        code="K733",
        fix="use literals, tuples, frozen dataclasses, and functions and classes at the top of a "
        "module",
    )
