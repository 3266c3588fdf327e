"""What a trace depends on beyond its arguments: the globals, closures and helpers it reads."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_DEEPEST = 8


def fingerprint(function: FunctionType, more: Iterable[Any] = ()) -> tuple[Any, ...]:
    """Equal for two moments at which a trace of `function` would read the same things.

    Follows global names, closures, defaults and helper functions of the author's code; rebinding
    any of them, or editing a helper and reloading it, gives another fingerprint.
    """
    seen: set[int] = set()
    return (*_function(function, seen, 0), *(_value(item, seen, 1) for item in more))


def _function(function: FunctionType, seen: set[int], depth: int) -> tuple[Any, ...]:
    if id(function) in seen or depth > _DEEPEST:
        return (id(function.__code__),)
    seen.add(id(function))
    cells = (cell.cell_contents for cell in function.__closure__ or () if _filled(cell))
    names = sorted(_names(function.__code__))
    read = (function.__globals__[name] for name in names if name in function.__globals__)
    inner = (*read, *cells, *(function.__defaults__ or ()))
    return (id(function.__code__), *(_value(item, seen, depth + 1) for item in inner))


def _names(code: CodeType) -> set[str]:
    """Global names that a function and those nested in it mention."""
    nested = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*nested)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 — an empty cell raises
    except ValueError:
        return False
    return True


def _value(item: Any, seen: set[int], depth: int) -> Any:
    staged = getattr(item, "__kdsl_staged__", None)
    if staged is not None:
        item = staged.function
    if isinstance(item, FunctionType):
        ours = item.__module__ or ""
        return id(item.__code__) if ours.startswith("kdsl_core.") else _function(item, seen, depth)
    if isinstance(item, ModuleType | type):
        return id(item)
    if isinstance(item, _PLAIN):
        return (type(item).__name__, item)
    if isinstance(item, tuple) and depth <= _DEEPEST:
        return tuple(_value(part, seen, depth + 1) for part in item)
    return id(item)
