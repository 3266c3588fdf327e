"""Source locations that cost nothing until somebody reads them.

A `Loc` holds code objects and instruction offsets of the author's frames, innermost first, and
turns them into file, line and column only for an error or a report.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property, lru_cache
from types import CodeType, FrameType, TracebackType

from kdsl_core.authors import is_author_code, is_library, running
from kdsl_core.records import dataclass

_MAX_DEPTH = 8
_interned: dict[tuple[tuple[tuple[int, int], ...], str], Loc] = {}  # by code's address: it stays
_address = object.__hash__  # as `id`, but of that Python tells every audit hook


@dataclass(frozen=True)
class Loc:
    """Where an operation was written: (code, bytecode offset) of each author frame.

    `role` is what the author called the warps that execute it, "" without a name.
    """

    frames: tuple[tuple[CodeType, int], ...]
    role: str = ""

    @property
    def file(self) -> str:
        """Path of the innermost author frame."""
        return self.frames[0][0].co_filename

    @property
    def line(self) -> int:
        """1-based line of the innermost author frame."""
        return _span(*self.frames[0])[0]

    @property
    def column(self) -> int:
        """1-based column of the innermost author frame."""
        return _span(*self.frames[0])[2] + 1

    @cached_property
    def author(self) -> Loc:
        """The same place as seen from outside of kdsl's own code in the DSL, where it is in some.

        A collective is such code: its author's line is the one that called it.
        """
        outside = (
            at for at, (code, _) in enumerate(self.frames) if not is_library(code.co_filename)
        )
        first = next(outside, 0)
        return Loc(self.frames[first:], self.role) if first else self

    @cached_property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """(file, line) of each frame, innermost first."""
        return tuple((code.co_filename, _span(code, lasti)[0]) for code, lasti in self.frames)

    @cached_property
    def spans(self) -> tuple[tuple[str, range], ...]:
        """(file, lines) of the author's expression and of the one inside a collective, if any."""
        shown = dict.fromkeys((self.author.frames[0], self.frames[0]))
        ends = ((code.co_filename, _span(code, lasti)) for code, lasti in shown)
        return tuple((file, range(line, end + 1)) for file, (line, end, _, _) in ends)

    def short(self) -> str:
        """Text ``file.py:line:column`` of the author's frame, with the file's base name."""
        author = self.author
        return f"{os.path.basename(author.file)}:{author.line}:{author.column}"

    def excerpt(self) -> str:
        """The author's line with a caret span, then those it called and those that called it."""
        author = self.author.frames
        text = [_caret(*author[0])]
        for code, lasti in reversed(self.frames[: -len(author)]):
            text += [f" calls {_where(code, lasti)}", _caret(code, lasti)]
        for code, lasti in author[1:]:
            text.append(f" called from {_where(code, lasti)}")
        return "\n".join(part for part in text if part)


def _span(code: CodeType, lasti: int) -> tuple[int, int, int, int]:
    """(line, end line, column, end column), columns 0-based."""
    positions, index = _positions(code), lasti // 2
    if index >= len(positions):
        return code.co_firstlineno, code.co_firstlineno, 0, 0
    line, end, col, end_col = positions[index]
    first = line or code.co_firstlineno
    return first, end or first, col or 0, end_col or 0


@lru_cache(maxsize=64)
def _positions(code: CodeType) -> tuple[tuple[int | None, ...], ...]:
    return tuple(code.co_positions())


def source_lines(file: str) -> list[str]:
    """The text of a file or notebook cell, line by line, as Python's tracebacks show it."""
    return linecache.getlines(file)


def place_in(file: str, line: int) -> str:
    """Text ``file.py:line``, with the file's base name."""
    return f"{os.path.basename(file)}:{line}"


def _where(code: CodeType, lasti: int) -> str:
    name = code.co_qualname.rpartition("<locals>.")[2]
    return f"{place_in(code.co_filename, _span(code, lasti)[0])} in {name}"


def _caret(code: CodeType, lasti: int) -> str:
    line, end, col, end_col = _span(code, lasti)
    source = "".join(source_lines(code.co_filename)[line - 1 : line]).rstrip("\n")
    if not source:
        return ""
    width = (end_col if end == line else len(source)) - col
    number = f"{line:5d} | "
    return f"{number}{source}\n{' ' * (len(number) - 2)}| {' ' * col}{'^' * max(width, 1)}"


_stated: ContextVar[Loc | None] = ContextVar("stated", default=None)
_role: ContextVar[str] = ContextVar("role", default="")


@contextlib.contextmanager
def role(name: str) -> Iterator[None]:
    """What is traced here is the work of warps with a role of this name; reports mention it.

    ``with kd.role("producer"): …`` changes nothing else.
    """
    before = _role.set(name)
    try:
        yield
    finally:
        _role.reset(before)


@contextlib.contextmanager
def stated(loc: Loc | None) -> Iterator[None]:
    """Code that stands for what an author wrote elsewhere: `loc` comes first in every location."""
    before = _stated.set(loc)
    try:
        yield
    finally:
        _stated.reset(before)


def here(frame: FrameType | None = None, depth: int = _MAX_DEPTH) -> Loc | None:
    """The location of the author's code that is executing now; None when there is none.

    Walks outward from `frame` (default: the caller). The walk ends at the first kdsl frame beyond
    an author's frame that is not a kernel's own call chain, that is: where tracing began.
    """
    elsewhere = _stated.get()
    found = list(elsewhere.frames[: _MAX_DEPTH // 2]) if elsewhere else []
    found += running(frame or sys._getframe(1), depth - len(found))
    if not found:
        return None
    # Not by the code itself, whose hash takes longer than all else here.
    key = tuple([(_address(code), lasti) for code, lasti in found]), _role.get()
    loc = _interned.get(key)
    if loc is None:
        loc = _interned.setdefault(key, Loc(tuple(found), key[1]))
    return loc


def raised_at(traceback: TracebackType | None) -> Loc | None:
    """The author's lines that an error came through, innermost first; None when there are none."""
    found: list[tuple[CodeType, int]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_author_code(code):
            found.append((code, traceback.tb_lasti))
        traceback = traceback.tb_next
    return Loc(tuple(found[::-1][:_MAX_DEPTH])) if found else None
