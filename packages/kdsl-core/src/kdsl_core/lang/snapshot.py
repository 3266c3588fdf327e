"""What some names, cells, functions and containers held once, compared with what they hold now.

It is asked at every launch; once it has been asked a few times, the comparison is written out as
one Python function with a clause for each name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Any

from kdsl_core.lang.values import absent, bytes_of, items_of

_FIXED = (tuple, frozenset)  # what they hold is theirs for ever


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
        self._bindings = list({(id(s), name): (s, name, v) for s, name, v in bindings}.values())
        self._cells = [(cell, value) for cell, value in cells if value is not absent]
        self._functions = functions
        self._contents = [pair for pair in contents if type(pair[0]) not in _FIXED]
        self._buffers = buffers

    def holds(self) -> bool:
        """Whether all of it is the same."""
        try:
            return (
                all(space.get(name, absent) is value for space, name, value in self._bindings)
                and all(cell.cell_contents is value for cell, value in self._cells)
                and all(f.__code__ is code for f, (code, _) in self._functions)
                and all(f.__defaults__ is defaults for f, (_, defaults) in self._functions)
                and self._same_contents()
            )
        except ValueError:  # the content of a cell was deleted
            return False

    def compiled(self, more: Callable[[], bool] | None = None) -> Callable[[], bool]:
        """A function that answers as `holds` does, in a tenth of the time, and then asks `more`."""
        held: dict[str, Any] = {"same_contents": self._same_contents}

        def named(value: Any) -> str:
            name = f"v{id(value)}"
            held[name] = value
            return name

        clauses = ["True"]
        for space, name, value in self._bindings:
            there = f"{named(space)}[{name!r}] is {named(value)}"
            clauses.append(f"{name!r} not in {named(space)}" if value is absent else there)
        clauses += [f"{named(c)}.cell_contents is {named(value)}" for c, value in self._cells]
        for function, (code, defaults) in self._functions:
            clauses.append(f"{named(function)}.__code__ is {named(code)}")
            clauses.append(f"{named(function)}.__defaults__ is {named(defaults)}")
        if self._contents or self._buffers:
            clauses.append("same_contents()")
        if more is not None:
            clauses.append(f"{named(more)}()")
        lines = [
            f"def made({', '.join(held)}):",
            "  def holds():",
            "    try:",
            f"      return {' and '.join(clauses)}",
            "    except (KeyError, ValueError):",  # a name or the content of a cell was deleted
            "      return False",
            "  return holds",
        ]
        made: dict[str, Any] = {}
        exec("\n".join(lines), made)
        answer: Callable[[], bool] = made["made"](**held)
        return answer

    def _same_contents(self) -> bool:
        for container, before in self._contents:
            now = items_of(container)
            if len(now) != len(before):
                return False
            for item, former in zip(now, before, strict=True):
                if item is not former:
                    return False
        return all(bytes_of(buffer) == held for buffer, held in self._buffers)
