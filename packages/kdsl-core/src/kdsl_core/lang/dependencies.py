"""What a trace read outside of the kernel's function, so that a rebinding is noticed.

A traced kernel may run again only while every global, closure variable, default and helper that
its code could read is what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

_absent = object()
# Code of these packages does not change under a running program.
_LIBRARIES = frozenset(
    ["kdsl_core", "numpy", "ml_dtypes", "builtins", "math", "functools", "itertools", "typing"]
)


class Dependencies:
    """The values that a function could read by name when this was made.

    Follows globals, attributes of modules, classes and objects, closures, defaults, helper
    functions, and the contents of containers. `more` are further roots: static arguments.
    """

    def __init__(self, function: FunctionType, more: Iterable[Any] = ()) -> None:
        self._bindings: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._contents: list[tuple[Any, list[Any]]] = []
        self._seen: set[int] = set()
        self._function(function)
        for value in more:
            self._value(value, set(_names(function.__code__)))

    def unchanged(self) -> bool:
        """Whether every one of them is what it was."""
        for space, name, value in self._bindings:
            if space.get(name, _absent) is not value:
                return False
        for cell, value in self._cells:
            if _content(cell) is not value:
                return False
        for function, parts in self._functions:
            if any(a is not b for a, b in zip(_parts(function), parts, strict=True)):
                return False
        return all(_same(_items(obj), items) for obj, items in self._contents)

    def _function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        self._functions.append((function, _parts(function)))
        names = set(_names(function.__code__))
        for name in sorted(names & function.__globals__.keys()):
            self._binding(function.__globals__, name, names)
        for cell in function.__closure__ or ():
            value = _content(cell)
            self._cells.append((cell, value))
            self._value(value, names)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for value in defaults:
            self._value(value, names)

    def _binding(self, space: Mapping[str, Any], name: str, names: set[str]) -> None:
        value = space.get(name, _absent)
        self._bindings.append((space, name, value))
        self._value(value, names)

    def _value(self, value: Any, names: set[str]) -> None:
        """What can be read through a value, by the attribute names that the code mentions."""
        staged = vars_of(value).get("__kdsl_staged__")
        if staged is not None:
            value = staged.function
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, FunctionType):
            if not _is_library(value.__module__):
                self._function(value)
        elif id(value) in self._seen:
            return
        elif isinstance(value, list | dict | set | tuple | frozenset):
            self._container(value, names)
        elif not _is_library(_home(value)):
            self._object(value, names)

    def _container(self, value: Any, names: set[str]) -> None:
        self._seen.add(id(value))
        items = _items(value)
        self._contents.append((value, items))
        for item in items:
            self._value(item, names)

    def _object(self, value: Any, names: set[str]) -> None:
        self._seen.add(id(value))
        spaces = [vars_of(value)]
        kinds = () if isinstance(value, ModuleType) else _classes(value)
        spaces += [vars_of(kind) for kind in kinds if not _is_library(kind.__module__)]
        # A name that one of them lacks may come to hide another's.
        held = sorted(names & set().union(*spaces))
        for space in spaces:
            for name in held:
                self._binding(space, name, names)


def vars_of(value: Any) -> Mapping[str, Any]:
    """The attributes that a value holds itself; none where it has no room for them."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, Mapping) else {}


def _classes(value: Any) -> tuple[type, ...]:
    kind = value if isinstance(value, type) else type(value)
    return kind.__mro__[1:] if isinstance(value, type) else kind.__mro__


def _parts(function: FunctionType) -> tuple[Any, ...]:
    keywords = function.__kwdefaults__ or {}
    return function.__code__, function.__defaults__, *keywords.values()


def _items(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    return list(container)


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _home(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    kind = value if isinstance(value, type) else type(value)
    return str(getattr(kind, "__module__", ""))


def _is_library(module: str | None) -> bool:
    return (module or "builtins").split(".")[0] in _LIBRARIES


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _absent


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a code object and those nested in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
