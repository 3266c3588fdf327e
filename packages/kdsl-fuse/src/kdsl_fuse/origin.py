"""Where in the author's program a graph node was written."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

from kdsl_core.errors import KdslError
from kdsl_core.loc import Loc, is_author_code

_MAX_DEPTH = 6


def author_loc() -> Loc | None:
    """The author's frames that are executing now, innermost first; None when there is none.

    The walk ends at the first frame of kdsl beyond them: there the trace was started.
    """
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
    return f"{os.path.basename(loc.file)}:{loc.line}" if loc else ""
