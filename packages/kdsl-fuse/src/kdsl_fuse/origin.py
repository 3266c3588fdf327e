"""Where in the author's program a graph node was written."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType, FrameType

from kdsl_core.authors import is_author_code
from kdsl_core.errors import KdslError
from kdsl_core.loc import Loc, source_lines
from kdsl_core.records import dataclass

_MAX_DEPTH = 6


@dataclass(frozen=True)
class Place(Loc):
    """Where a model that is no running Python code says it: a node's name, and its source line.

    `path` and `number` are the line of the Python code that the node came from, or the model's file
    and 0.
    """

    name: str = ""
    path: str = ""
    number: int = 0

    @property
    def file(self) -> str:
        """Path of the Python file or of the model."""
        return self.path

    @property
    def line(self) -> int:
        """1-based line; 0 in a model's file."""
        return self.number

    @property
    def column(self) -> int:
        """Always 1."""
        return 1

    def short(self) -> str:
        """Text ``file.py:line`` or ``model.onnx: node``."""
        file = os.path.basename(self.path)
        return f"{file}:{self.number}" if self.number else f"{file}: {self.name}"

    def excerpt(self) -> str:
        """The source line, where there is one."""
        source = "".join(source_lines(self.path)[self.number - 1 : self.number]).rstrip()
        return f"{self.number:5d} | {source}" if self.number and source else ""


_stated: ContextVar[Loc | None] = ContextVar("_stated", default=None)


@contextlib.contextmanager
def written_at(loc: Loc) -> Iterator[None]:
    """Let what is recorded inside stand at `loc`, and not at the code that is executing."""
    token = _stated.set(loc)
    try:
        yield
    finally:
        _stated.reset(token)


def author_loc() -> Loc | None:
    """The author's frames that are executing now, innermost first; None when there is none.

    The walk ends at the first frame of kdsl beyond them: there the trace was started.
    """
    if (stated := _stated.get()) is not None:
        return stated
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _MAX_DEPTH:
        if is_author_code(frame.f_code):
            found.append((frame.f_code, frame.f_lasti))
        elif found:
            break
        frame = frame.f_back
    return Loc(tuple(found)) if found else None


def locate(problem: KdslError) -> None:
    """Put an error that has no place at the author's line that is executing now."""
    problem.loc = problem.loc or author_loc()


def line_of(loc: Loc | None) -> str:
    """Text ``file.py:line`` for tables and notes; empty when the place is unknown."""
    if isinstance(loc, Place):
        return loc.short()
    return f"{os.path.basename(loc.file)}:{loc.line}" if loc else ""
