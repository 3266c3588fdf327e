"""Which functions run, from Python's own monitoring: each piece of code tells once, then is fast.

A profiler hears every call, which makes a trace twice as long; here only the author's code and
Python's library go on telling what they call.
"""

from __future__ import annotations

import ast
import dataclasses
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from kdsl_core.lang.origins import (
    LIBRARIES,
    asked_by_author,
    is_library_code,
    is_of_kdsl,
    is_question,
)

assert sys.version_info >= (3, 12)  # for type checkers too

if TYPE_CHECKING:
    from kdsl_core.lang.observed import Observed

_monitoring = sys.monitoring
_FREE_TOOLS = (4, 3)  # the numbers that Python gives to no kind of tool
_IN_C = (BuiltinFunctionType, MethodDescriptorType)
# The hooks of editable installs and of test runners run behind it, and are nobody's helpers.
_IMPORTING = "_find_and_load"
# Modules of Python's that kdsl uses much, and that call no function in C that they were given.
_SELF_CONTAINED = frozenset([ast.__file__, dataclasses.__file__])
_WRITTEN_BY_PYTHON = "<string>"


@contextmanager
def watching(observed: Observed) -> Iterator[bool]:
    """Note the author's code that runs in this thread, and its questions; false where it cannot."""
    tool = next((n for n in _FREE_TOOLS if _monitoring.get_tool(n) is None), None)
    if tool is None:
        yield False
        return
    watch = _Watch(observed, tool)
    watch.begin()
    try:
        yield True
    finally:
        watch.end()


class _Watch:
    def __init__(self, observed: Observed, tool: int) -> None:
        self._observed = observed
        self._tool = tool
        self._thread = threading.get_ident()
        # Whoever watches the garbage collector is nobody's helper.
        self._others = [getattr(other, "__code__", None) for other in gc.callbacks]
        self._telling: dict[int, CodeType] = {}  # codes that tell each call; equal ones differ

    def begin(self) -> None:
        """Hear of code that starts."""
        events = _monitoring.events
        _monitoring.use_tool_id(self._tool, "kdsl")
        _monitoring.register_callback(self._tool, events.PY_START, self._started)
        _monitoring.register_callback(self._tool, events.PY_RESUME, self._started)
        _monitoring.register_callback(self._tool, events.CALL, self._calls)
        _monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME)
        _monitoring.restart_events()  # what an earlier trace had heard enough of

    def end(self) -> None:
        """Leave no trace in any code."""
        _monitoring.set_events(self._tool, 0)
        for code in self._telling.values():
            _monitoring.set_local_events(self._tool, code, 0)
        for event in (events := _monitoring.events).PY_START, events.PY_RESUME, events.CALL:
            _monitoring.register_callback(self._tool, event, None)
        _monitoring.free_tool_id(self._tool)

    def _started(self, code: CodeType, offset: int) -> Any:
        if is_of_kdsl(code) or code in self._others:
            return _monitoring.DISABLE
        if _is_written_for_kdsl(code, sys._getframe(1)):
            return _monitoring.DISABLE
        library = is_library_code(code)
        if library or threading.get_ident() == self._thread:
            self._tell_calls(code)
        if library:
            return _monitoring.DISABLE
        if threading.get_ident() != self._thread or _is_importing(code, sys._getframe(1)):
            return None  # it may run otherwise later
        self._observed.codes.add(code)
        return _monitoring.DISABLE

    def _tell_calls(self, code: CodeType) -> None:
        if id(code) not in self._telling and code.co_filename not in _SELF_CONTAINED:
            self._telling[id(code)] = code
            _monitoring.set_local_events(self._tool, code, _monitoring.events.CALL)

    def _calls(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        if isinstance(function, _IN_C) and threading.get_ident() == self._thread:
            spelling = _spelling(function)
            if is_question(spelling) and asked_by_author(sys._getframe(1)):
                self._observed.surprises.add(f"{spelling} was called")


def _is_written_for_kdsl(code: CodeType, frame: FrameType) -> bool:
    """Whether it is a method that `dataclasses` wrote for a class of kdsl's."""
    home = frame.f_globals.get("__name__", "")
    return code.co_filename == _WRITTEN_BY_PYTHON and str(home).startswith(f"{LIBRARIES[0]}.")


def _is_importing(code: CodeType, frame: FrameType | None) -> bool:
    """Whether code runs because of an import, and is not the imported module's own."""
    while frame is not None and code.co_name != "<module>":
        if frame.f_code.co_name == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _spelling(function: Any) -> str:
    """As a profiler spells a function in C."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return f"<built-in method {function.__module__}.{function.__name__}>"
    if owner is None or isinstance(owner, type):
        return repr(function)
    return repr(getattr(type(owner), function.__name__, function))
