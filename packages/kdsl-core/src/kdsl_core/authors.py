"""Whose code runs, kdsl's own or a kernel author's; and the author's frames that are running."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType

Place = tuple[CodeType, int]  # in a frame's code, by the offset of its bytecode

_RESUMED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_ROOT = "__kdsl_trace_root__"  # the function where a kernel's own call chain begins
# Folders of kdsl's own code → those inside that are written in the DSL: authors' lines again.
_internal: dict[str, tuple[str, ...]] = {}


def mark_internal(file: str, *, except_for: tuple[str, ...] = ()) -> None:
    """Take the code beside and below `file` for kdsl's own: no error or location stands there.

    A package calls it with its own `__file__`; `except_for` names the folders in it whose code is
    written in the DSL itself.
    """
    folder = os.path.dirname(os.path.abspath(file)) + os.sep
    _internal[folder] = tuple(os.path.join(folder, name) + os.sep for name in except_for)
    _authors.clear()
    is_library.cache_clear()


def is_author_code(code: CodeType) -> bool:
    """Whether `code` was written by a kernel author rather than by kdsl itself."""
    return _authors[code.co_filename]


class _Authors(dict[str, bool]):
    """Whether a file's code is an author's. By the name, for to hash a code object takes longer."""

    def __missing__(self, file: str) -> bool:
        path = os.path.abspath(file)
        found = self[file] = all(
            path.startswith(written_in_the_dsl)
            for folder, written_in_the_dsl in _internal.items()
            if path.startswith(folder)
        )
        return found


_authors = _Authors()


@cache
def is_library(file: str) -> bool:
    """Whether a file is kdsl's own, perhaps written in the DSL."""
    return os.path.abspath(file).startswith(tuple(_internal))


mark_internal(__file__, except_for=("collective",))


class _Chain(threading.local):
    """The author's frames around this thread's last place in a trace: each with what called it.

    `callers` is None outside of traces. While a frame runs, those around it stand still.
    """

    callers: dict[FrameType, tuple[CodeType, list[Place]]] | None = None


_chain = _Chain()


@contextmanager
def chains_kept() -> Iterator[None]:
    """Within it, each author's frame of this thread is looked at once, with what called it."""
    before, _chain.callers = _chain.callers, {}
    try:
        yield
    finally:
        _chain.callers = before


def running(frame: FrameType, depth: int) -> list[Place]:
    """Where the author's frames are from `frame` outward, innermost first, `depth` of them."""
    known = _chain.callers
    met: list[tuple[FrameType, CodeType]] = []
    outer: list[Place] = []
    at: FrameType | None = frame
    while at is not None and (known is not None or len(met) < depth):
        if known and at in known:
            code, callers = known[at]
            outer = [(code, at.f_lasti), *callers]
            break
        space = at.f_globals
        # Most frames are kdsl's; where Python is audited, to ask one for its code takes 1 µs.
        if _authors[space.get("__file__", "")] or _ROOT in space:
            code = at.f_code
            if _authors[code.co_filename]:
                met.append((at, code))
            elif code.co_name == _ROOT:
                break
        at = at.f_back
    places = [(code, place.f_lasti) for place, code in met] + outer
    if met and known is not None:
        _keep(met, places, {f: held for f, held in known.items() if len(held[1]) < len(outer)})
    return places[:depth]


def _keep(
    met: list[tuple[FrameType, CodeType]],
    places: list[Place],
    around: dict[FrameType, tuple[CodeType, list[Place]]],
) -> None:
    """Remember the frames that were met; not one that may be resumed by another caller."""
    inner = {
        frame: (code, places[at + 1 :])
        for at, (frame, code) in enumerate(met)
        if not code.co_flags & _RESUMED
    }
    _chain.callers = inner | around
