"""Where in the author's program a graph node was written."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

import kdsl_core.errors as _core
from kdsl_core.loc import Loc

_OURS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, _core.__file__)
)
_MAX_DEPTH = 6


def author_loc() -> Loc | None:
    """The author's frames that are executing now, innermost first; None when there is none.

    The walk ends at the first frame of kdsl beyond them: there the trace was started.
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < _MAX_DEPTH:
        if not frame.f_code.co_filename.startswith(_OURS):
            found.append((frame.f_code, frame.f_lasti))
        elif found:
            break
        frame = frame.f_back
    return Loc(tuple(found)) if found else None


def line_of(loc: Loc | None) -> str:
    """Text ``file.py:line`` for tables and notes; empty when the place is unknown."""
    return f"{os.path.basename(loc.file)}:{loc.line}" if loc else ""
