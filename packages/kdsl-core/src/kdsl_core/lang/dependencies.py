"""What a trace read outside of the kernel's function, so that a change of it is noticed.

A traced kernel may run again only while every global, closure variable, default, attribute and
helper that its code could read is what it was. The walk follows names: it is an
over-approximation where code mentions what it does not reach.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from opcode import opmap
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from kdsl_core.lang.authors_code import authors_code, nested_codes
from kdsl_core.lang.origins import home_of, is_installed, is_library, is_library_code
from kdsl_core.lang.snapshot import Snapshot
from kdsl_core.lang.values import (
    absent,
    bytes_of,
    content,
    has_state,
    held_by,
    is_buffer,
    is_container,
    items_of,
    parts_of,
    spaces_of,
    vars_of,
)
from kdsl_core.records import dataclass

# Names that read others by a text; the code's texts then count as names.
_WHOLE_MODULE = frozenset(["globals", "locals", "vars", "eval", "exec"])
_LOOK_UPS = frozenset(["getattr", "attrgetter", "methodcaller", "getmembers", "getattr_static"])
_IMPORT_NAME = opmap["IMPORT_NAME"]  # Python's instruction, at even places of a code's bytes
_IMPORTS = frozenset(["import_module", "__import__"])
_REFLECTIVE = _WHOLE_MODULE | _LOOK_UPS | _IMPORTS | {"dir", "__dict__"}
_ALWAYS = frozenset(["_value_", "_name_", "__wrapped__"])
# Code of other packages is followed as far as this; a trace that reads more is not kept on disk.
_MOST_FACTS = 500
_BUILTINS = frozenset(vars(builtins))
_OFTEN = 4  # looks at the names after which the comparison is compiled, which takes a millisecond


class Fact(NamedTuple):
    """One thing that was reached: the path of names to it, its kind, and what it consists of."""

    path: str
    kind: str
    value: Any
    parts: tuple[tuple[str, Any], ...]


@dataclass(eq=False)
class Reads:
    """What one function reads itself: names that it mentions, and where it finds their values."""

    function: FunctionType
    names: frozenset[str]
    bindings: Sequence[tuple[Any, str, Any]]
    cells: Sequence[tuple[CellType, Any]]
    contents: Sequence[tuple[Any, list[Any]]]
    parts: Sequence[tuple[str, Any]]


class Dependencies:
    """The values that a function could read by name when this was made.

    Follows globals, attributes of modules, classes and objects, closures, defaults, helper
    functions, special methods, and the contents of containers and arrays. `more` are further
    roots: static arguments. `facts` lists what was reached, in an order that depends on the code
    alone. `outside` says whether files and the like, which no name leads to, are what they were.
    `complete` is false when too much of other packages could be reached to follow all of it.
    """

    def __init__(self, function: FunctionType, more: Iterable[Any] = ()) -> None:
        self.outside: Callable[[], bool] | None = None
        self._known: frozenset[str] = frozenset()
        # By their ids, and kept through all walks: what functions read, and what leads nowhere.
        self._read: dict[int, Reads] = {}
        self._ends: dict[int, Any] = {}
        self.roots = list(more)
        while True:  # a method found late may name attributes of an object met early
            self._forget()
            self._function(function, function.__name__, "rewritten")
            for number, value in enumerate(self.roots):
                self._value(value, f"argument {number}")
            if self.mentioned <= self._known:
                break
            self._known |= self.mentioned
        self._snapshot = Snapshot(
            self._bindings, self._cells, self._functions, self._contents, self._buffers
        )
        self._asked = 0
        # Whether every one of them is what it was. It is replaced, so ask the object each time.
        self.unchanged: Callable[[], bool] = self._counted

    def _forget(self) -> None:
        self.facts: list[Fact] = []
        self.mentioned: set[str] = set(_ALWAYS)
        self.everything = False
        self.complete = True
        self._bindings: list[tuple[Any, str, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._contents: list[tuple[Any, list[Any]]] = []
        self._buffers: list[tuple[Any, bytes]] = []
        self._seen: set[int] = set(self._ends)

    def _counted(self) -> bool:
        self._asked += 1
        if self._asked == _OFTEN:
            self.unchanged = self._snapshot.compiled(self.outside)
        return self._snapshot.holds() and (self.outside is None or self.outside())

    def codes(self) -> Iterator[CodeType]:
        """The code of every function reached, and of those nested in them."""
        for _, (code, *_) in self._functions:
            yield from nested_codes(code)

    # -- the walk -----------------------------------------------------------------------------
    def _reached(self, path: str, kind: str, value: Any, parts: Iterable[tuple[str, Any]]) -> None:
        """Note a thing, then follow what it consists of."""
        noted = tuple(parts)
        self._seen.add(id(value))
        self.facts.append(Fact(path, kind, value, noted))
        for label, part in noted:
            self._value(part, f"{path}{label}")

    def _value(self, value: Any, path: str) -> None:
        """What can be read through a value, by the attribute names that code mentions."""
        if id(value) in self._seen:
            return
        if len(self.facts) >= _MOST_FACTS and is_installed(home_of(value)):
            self.complete = False
            return
        staged = vars_of(value).get("__kdsl_staged__")
        if staged is not None:
            self._reached(path, "staged", value, [])
            if id(staged.function) not in self._seen:
                self._function(staged.function, path, "rewritten")
        elif isinstance(value, FunctionType):
            if not is_library_code(value.__code__):
                self._function(value, path)
            elif value.__closure__:  # such as contextlib's around an author's function
                self._functions.append((value, _parts(value)))
                self._reached(path, "function", value, self._captured(value))
            else:
                self._end(value)
        elif (parts := parts_of(value)) is not None:
            self._reached(path, "wrapper", value, parts)
        elif is_container(value):
            self._container(value, path)
        elif is_buffer(value):
            self._seen.add(id(value))
            self._buffers.append((value, bytes_of(value)))
        elif has_state(value):
            self._object(value, path)
        else:
            self._end(value)

    def _end(self, value: Any) -> None:
        self._ends[id(value)] = value
        self._seen.add(id(value))

    def _function(self, function: FunctionType, path: str, kind: str = "function") -> None:
        reads = self._read.get(id(function))  # every walk meets it again
        if reads is None:
            reads = self._read[id(function)] = _reads(function)
        self.mentioned |= reads.names
        self.everything |= bool(reads.names & _REFLECTIVE)
        self._functions.append((function, _parts(function)))
        self._bindings += reads.bindings
        self._cells += reads.cells
        self._contents += reads.contents
        self._reached(path, kind, function, reads.parts)

    def _captured(self, function: FunctionType) -> list[tuple[str, Any]]:
        held, parts = _captured(function)
        self._cells += held
        return parts

    def _binding(self, space: Mapping[str, Any], name: str) -> Any:
        value = space.get(name, absent)
        self._bindings.append((space, name, value))
        return value

    def _container(self, value: Any, path: str) -> None:
        items = items_of(value)
        self._contents.append((value, items))
        parts = [(f"[{i}]", item) for i, item in enumerate(items)]
        if not is_library(value):  # a subclass, with attributes and methods of its own
            parts += self._attributes(value)
        self._reached(path, "items", value, parts)

    def _object(self, value: Any, path: str) -> None:
        self._reached(path, "object", value, self._attributes(value))

    def _attributes(self, value: Any) -> list[tuple[str, Any]]:
        spaces = spaces_of(value)
        names = self._known | self.mentioned
        everything = self.everything and not is_installed(home_of(value))
        held = sorted(held_by(spaces, names, everything=everything))
        # A name that one of them lacks may come to hide another's.
        parts = [(f".{name}", self._binding(space, name)) for space in spaces for name in held]
        return [part for part in parts if part[1] is not absent]


def _reads(function: FunctionType) -> Reads:
    """What a function reads by name, of its globals, closure and defaults."""
    code, space = authors_code(function.__code__), function.__globals__
    names = _mentioned_by(code)
    read = names & space.keys()
    if names & _WHOLE_MODULE:
        read |= {name for name in space if not name.startswith("__")}
    places: list[tuple[Any, str]] = [(space, name) for name in sorted(read)]
    places += [(sys.modules, name) for name in _imports(code, names, space)]
    found = [(place, name, place.get(name, absent)) for place, name in places]
    # A global of a builtin's name would hide it.
    hidden = [(space, name, absent) for name in sorted(names & _BUILTINS - space.keys())]
    cells, captured = _captured(function)
    keywords = function.__kwdefaults__ or {}
    parts = [(f".{name}", value) for _, name, value in found]
    parts += captured
    parts += [("=", value) for value in function.__defaults__ or ()]
    parts += sorted((f".{name}=", value) for name, value in keywords.items())
    contents = [(keywords, items_of(keywords))] if keywords else []
    return Reads(function, names, [*hidden, *found], cells, contents, parts)


def _captured(
    function: FunctionType,
) -> tuple[list[tuple[CellType, Any]], list[tuple[str, Any]]]:
    """The cells of a closure with what they hold, and that by the names of the variables."""
    held = [(cell, content(cell)) for cell in function.__closure__ or ()]
    free = zip(function.__code__.co_freevars, held, strict=True)
    return held, [(f".{name}", value) for name, (_, value) in free]


def _mentioned_by(code: CodeType) -> frozenset[str]:
    names: set[str] = set()
    texts: set[str] = set()
    for part in nested_codes(code):
        names.update(part.co_names)
        texts.update(word for text in part.co_consts for word in _words(text))
    return frozenset(names | texts if names & _REFLECTIVE else names)


def _parts(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__


def _imports(code: CodeType, names: frozenset[str], space: Mapping[str, Any]) -> list[str]:
    """Modules that a function's own imports name, by statements or by a text."""
    stated = any(_IMPORT_NAME in part.co_code[::2] for part in nested_codes(code))
    if not (stated or names & _IMPORTS):
        return []  # an attribute may be called as a module beside this one is
    package = space.get("__package__") or ""
    paths = {*names, *(f"{package}.{name}" for name in names if package)}
    found = (path for path in paths - space.keys() if isinstance(sys.modules.get(path), ModuleType))
    return sorted(path for path in found if not is_library(sys.modules[path]))


def _words(text: Any) -> list[str]:
    words = text.split(".") if isinstance(text, str) else []
    return words if all(word.isidentifier() for word in words) else []
