"""Trace-time arguments as expressions, with the definitions that they need."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_fuse.ejection.closure import Closure
from kdsl_fuse.ejection.text import function_text
from kdsl_fuse.elements import ElementFunction
from kdsl_fuse.tail import Tail

WIDTH = 100
_DOCS = {
    "epilogue": "What is stored for an accumulator.",
    "function": "What is stored for an element.",
    "prologue": "The value of an element, from what is read.",
    "tail": "What follows a result.",
}
_DOC = "A pointwise function."


class Arguments:
    """Writes values down; `functions` are the pointwise ones among them, as texts.

    What has its source below the closure's modules is copied to the file through the closure.
    """

    def __init__(self, closure: Closure) -> None:
        self.closure = closure
        self.functions: list[str] = []
        self._names: dict[Tail | ElementFunction, str] = {}

    def text(self, name: str, value: Any, indent: int = 0) -> str:
        """An expression for the argument of this name, to stand `indent` columns to the right.

        Raises: TypeError for a value that no expression gives.
        """
        if isinstance(value, Tail | ElementFunction):
            return self._function(name, value)
        if isinstance(value, DType):
            return f"kd.{value}"
        if isinstance(value, tuple):
            parts = [self.text(name, part, indent + 4) for part in value]
            closing = ",)" if len(parts) == 1 else ")"
            return bracketed("(", parts, closing, indent)
        if inspect.isfunction(value):
            return self._copied(value, value.__module__, value.__qualname__)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._made(value, indent)
        if value is None or isinstance(value, int | float | str):
            return quoted(value)
        raise TypeError(f"{value!r} has no source that can be copied")

    def _function(self, name: str, function: Tail | ElementFunction) -> str:
        if function not in self._names:
            called = name if self._free(name) else f"{name}_{len(self._names)}"
            self._names[function] = called
            doc = _DOCS.get(name, _DOC)
            self.functions.append(function_text(called, doc, function))
        return self._names[function]

    def _free(self, name: str) -> bool:
        return name not in self._names.values() and not self.closure.holds(name)

    def _copied(self, value: Any, module: str, name: str) -> str:
        if not self.closure.owns(module) or "<" in name:
            raise TypeError(f"{value!r} has no source that can be copied")
        self.closure.add(module, name)
        return self.closure.called(module, name)

    def _made(self, value: Any, indent: int) -> str:
        """How to make a value of a dataclass, from the fields that are not as usual."""
        name = self._copied(value, type(value).__module__, type(value).__qualname__)
        given = [(f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
        parts = [
            f"{f.name}={self.text(_role(f.name, x), x, indent + 4)}"
            for f, x in given
            if f.default is dataclasses.MISSING or x != f.default
        ]
        return bracketed(f"{name}(", parts, ")", indent)


def _role(field: str, value: Any) -> str:
    """What a function in this field is called: behind a row's results it is a tail."""
    return "tail" if field == "function" and isinstance(value, ElementFunction) else field


def bracketed(opening: str, parts: Sequence[str], closing: str, indent: int) -> str:
    """Parts in brackets: in one line where that is short, else a line for each."""
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) + indent + 20 <= WIDTH and "\n" not in line:
        return line
    space = " " * (indent + 4)
    lines = "".join(f"{space}{part},\n" for part in parts)
    return f"{opening}\n{lines}{' ' * indent}{closing.lstrip(',')}"


def quoted(value: Any) -> str:
    """A number or a string as Python, strings in double quotes."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)
