"""Which of the things that a trace read mean something else now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kdsl_core.lang.dependencies import Dependencies

_MOST_SHOWN = 60
_EMPTY = "nothing"


def rebound(dependencies: Dependencies) -> Iterator[str]:
    """One line for each global, attribute, closure variable, helper or container that changed."""
    for space, name, value in dependencies._bindings:
        if (now := space.get(name)) is not value:
            yield f"{name}: {_shown(value)} was read, now {_shown(now)}"
    names = _names_of_cells(dependencies)
    for cell, value in dependencies._cells:
        if (now := _content(cell)) is not value:
            yield f"{names[id(cell)]}: {_shown(value)} was read, now {_shown(now)}"
    for function, (code, defaults, *_) in dependencies._functions:
        if function.__code__ is not code:
            yield f"{function.__qualname__}: its code was replaced"
        elif function.__defaults__ is not defaults:
            yield f"{function.__qualname__}: its defaults were replaced"
    for container, items in dependencies._contents:
        if not _same(_items(container), items):
            yield f"a {type(container).__name__} was changed: {_shown(container)}"


def _names_of_cells(dependencies: Dependencies) -> dict[int, str]:
    return {
        id(cell): name
        for function, (code, *_) in dependencies._functions
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    }


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _items(container: Any) -> list[Any]:
    pairs = container.items() if isinstance(container, Mapping) else ()
    return [part for pair in pairs for part in pair] or list(container)


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _shown(value: Any) -> str:
    if type(value) is object or value is None:  # what stands for an absent name
        return _EMPTY
    return repr(value)[:_MOST_SHOWN]
