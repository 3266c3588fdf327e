"""What some names, cells, functions and containers held once, compared with what they hold now.

It is asked at every launch, so the comparisons run in C: one pass of `map` per namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_, itemgetter
from types import CellType, FunctionType
from typing import Any

from kdsl_core.lang.values import absent, bytes_of, items_of

_code_of, _defaults_of = attrgetter("__code__"), attrgetter("__defaults__")
_content_of = attrgetter("cell_contents")


class Snapshot:
    """Identities of values, and the bytes of buffers, as they were when this was made."""

    def __init__(
        self,
        bindings: Iterable[tuple[Any, str, Any]],
        cells: Iterable[tuple[CellType, Any]],
        functions: Sequence[tuple[FunctionType, tuple[Any, ...]]],
        contents: Sequence[tuple[Any, list[Any]]],
        buffers: Sequence[tuple[Any, bytes]],
    ) -> None:
        full = [(cell, value) for cell, value in cells if value is not absent]
        self._spaces = _by_space(bindings)
        self._cells = [cell for cell, _ in full]
        self._held = [value for _, value in full]
        self._functions = [function for function, _ in functions]
        self._codes = [code for _, (code, _) in functions]
        self._defaults = [defaults for _, (_, defaults) in functions]
        self._contents = contents
        self._buffers = buffers

    def holds(self) -> bool:
        """Whether all of it is the same."""
        try:
            for space, read, values, missing in self._spaces:
                if not all(map(is_, read(space), values)):
                    return False
                if missing and any(name in space for name in missing):
                    return False
            if not all(map(is_, map(_content_of, self._cells), self._held)):
                return False
        except (KeyError, ValueError):  # a name or the content of a cell was deleted
            return False
        return self._same_functions() and self._same_contents()

    def _same_functions(self) -> bool:
        functions = self._functions
        return all(map(is_, map(_code_of, functions), self._codes)) and all(
            map(is_, map(_defaults_of, functions), self._defaults)
        )

    def _same_contents(self) -> bool:
        for container, before in self._contents:
            now = items_of(container)
            if len(now) != len(before) or not all(map(is_, now, before)):
                return False
        return all(bytes_of(buffer) == held for buffer, held in self._buffers)


def _by_space(bindings: Iterable[tuple[Any, str, Any]]) -> list[tuple[Any, Any, Any, Any]]:
    """Each namespace once: how its names are read, what they held, and which it lacked."""
    spaces: dict[int, tuple[Any, dict[str, Any]]] = {}
    for space, name, value in bindings:
        spaces.setdefault(id(space), (space, {}))[1][name] = value
    found = []
    for space, names in spaces.values():
        held = {name: value for name, value in names.items() if value is not absent}
        missing = frozenset(names.keys() - held.keys())
        found.append((space, _reader(tuple(held)), tuple(held.values()), missing))
    return found


def _reader(names: tuple[str, ...]) -> Any:
    if not names:
        return lambda space: ()
    if len(names) == 1:
        (name,) = names
        return lambda space: (space[name],)
    return itemgetter(*names)
