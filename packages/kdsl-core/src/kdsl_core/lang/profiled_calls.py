"""Which functions run, from Python's profiler in C; see `monitored_calls` for newer Pythons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from kdsl_core.lang.origins import is_library_code, is_of_kdsl, is_question

if TYPE_CHECKING:
    from cProfile import Profile

    from kdsl_core.lang.observed import Observed

# The hooks of editable installs and of test runners run behind it, and are nobody's helpers.
_IMPORTING = "_find_and_load"


@contextmanager
def watching(observed: Observed) -> Iterator[bool]:
    """Note the author's code that runs in this thread, and its questions; false where it cannot."""
    from cProfile import Profile

    profiler = Profile()
    if not _began(profiler):
        yield False
        return
    try:
        yield True
    finally:
        profiler.disable()
        _take_over(observed, profiler.getstats())


def _began(profiler: Profile) -> bool:
    """Enable it, unless there is another one."""
    if sys.getprofile() is not None:
        return False
    try:
        profiler.enable()
    except (ValueError, RuntimeError):  # another thread has one, or is about to
        return False
    return True


def _take_over(observed: Observed, entries: Iterable[Any]) -> None:
    """Note what a profiler counted: which code called which."""
    calls = {entry.code: [call.code for call in entry.calls or ()] for entry in entries}
    roots = calls.keys() - {call for called in calls.values() for call in called}
    reached = _reached(calls, roots, lambda code: code.co_name == _IMPORTING)
    author = [code for code in reached if not is_library_code(code)]
    # A module of the author's that is imported meanwhile, though behind the import.
    author += [c for c in calls if isinstance(c, CodeType) and c.co_name == "<module>"]
    observed.codes.update(code for code in author if not is_library_code(code))
    asked = _reached(calls, observed.codes, is_of_kdsl)
    questions = {call for code in asked for call in calls.get(code, ())} - set(asked)
    for question in questions:
        if isinstance(question, str) and is_question(question):
            observed.surprises.add(f"{question} was called")


def _reached(
    calls: Mapping[Any, list[Any]], roots: Iterable[Any], beyond: Callable[[CodeType], bool]
) -> list[CodeType]:
    """The code that the roots lead to without passing through code that is `beyond`."""
    found: dict[CodeType, None] = {}
    left = [code for code in roots if isinstance(code, CodeType)]
    while left:
        code = left.pop()
        if code not in found and not beyond(code):
            found[code] = None
            left += [call for call in calls.get(code, ()) if isinstance(call, CodeType)]
    return list(found)
