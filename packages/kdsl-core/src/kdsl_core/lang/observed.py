"""What runs, and what is read of the machine, while a kernel is traced.

Names tell what code could read; this tells what it did besides: functions that ran without being
named, environment variables, files, and questions whose answer nobody can ask again.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from kdsl_core.lang.origins import is_library_code, is_of_kdsl

_ONE_VARIABLE = os._Environ.__getitem__.__code__
_ALL_VARIABLES = (os._Environ.__iter__.__code__, os._Environ.__len__.__code__)
_QUESTIONS = frozenset(
    [
        *(os.stat, os.lstat, os.access, os.getcwd, os.getpid, os.urandom),
        *(time.time, time.time_ns, time.monotonic, time.perf_counter, time.localtime),
        *(random.random, random.getrandbits),
    ]
)
_SURPRISES = ("os.listdir", "os.scandir", "subprocess.Popen", "os.system", "socket.connect")
_WRITING = os.O_WRONLY | os.O_RDWR
_MISSING = "missing"
_active = threading.local()
_hooking = threading.Lock()
_hooked = False


class Observed:
    """Codes that ran; names of variables and paths of files that were read; and surprises.

    A surprise is something that a later process cannot compare with its own state.
    """

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.reads: set[str] = set()
        self.surprises: set[str] = set()
        self._thread = threading.get_ident()
        self._collecting = False

    def states(self) -> dict[str, str]:
        """A digest of each variable and file as it is now."""
        return {name: state_of(name) for name in sorted(self.reads)}

    # -- what Python tells --------------------------------------------------------------------
    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """A call, as `sys.setprofile` reports it."""
        if self._collecting:  # what finalizers do is no part of the trace
            return
        if event == "call":
            code = frame.f_code
            if code not in self.codes and not _imported_by_library(frame):
                self.codes.add(code)
            if code is _ONE_VARIABLE and _asked_by_author(frame):
                self.reads.add(f"env:{frame.f_locals['key']}")
            elif code in _ALL_VARIABLES and _asked_by_author(frame):
                self.surprises.add("all environment variables were read")
        elif event == "c_call" and argument in _QUESTIONS and _asked_by_author(frame):
            self.surprises.add(f"{argument.__module__}.{argument.__name__} was called")

    def collection_begins(self, phase: str, info: Any) -> None:
        """First of the garbage collector's callbacks."""
        if phase == "start" and threading.get_ident() == self._thread:
            self._collecting = True

    def collection_ends(self, phase: str, info: Any) -> None:
        """Last of the garbage collector's callbacks."""
        if phase == "stop" and threading.get_ident() == self._thread:
            self._collecting = False

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event."""
        if self._collecting:
            return
        if event == "open":
            path, _, flags = arguments
            read = isinstance(path, str | bytes) and not (flags or 0) & _WRITING
            if read and _asked_by_author(sys._getframe(2)):
                self.reads.add(f"file:{os.fsdecode(path)}")
        elif event in _SURPRISES and _asked_by_author(sys._getframe(2)):
            self.surprises.add(f"{event} was called")


@contextmanager
def observing() -> Iterator[Observed]:
    """Observe this thread; a profiler that is at work already makes that a surprise."""
    _hook()
    observed = Observed()
    if sys.getprofile() is not None:
        observed.surprises.add("another profiler is at work")
        yield observed
        return
    _active.observed = observed
    gc.callbacks.insert(0, observed.collection_begins)
    gc.callbacks.append(observed.collection_ends)
    sys.setprofile(observed.profile)
    try:
        yield observed
    finally:
        sys.setprofile(None)
        gc.callbacks.remove(observed.collection_begins)
        gc.callbacks.remove(observed.collection_ends)
        _active.observed = None


def state_of(name: str) -> str:
    """A digest of the variable "env:NAME" or of the file "file:PATH" as it is now."""
    kind, _, rest = name.partition(":")
    if kind == "env":
        value = os.environ.get(rest)
        return _MISSING if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()
    try:
        with open(rest, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return _MISSING


def still(states: Mapping[str, str]) -> bool:
    """Whether every variable and file is what it was."""
    return all(state_of(name) == state for name, state in states.items())


def _hook() -> None:
    """Listen to audit events; a hook stays for ever, so there is one."""
    global _hooked
    with _hooking:
        if not _hooked:
            sys.addaudithook(_heard)
            _hooked = True


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    observed = getattr(_active, "observed", None)
    if observed is not None:
        observed.heard(event, arguments)


def _imported_by_library(frame: FrameType | None) -> bool:
    """Whether it runs, in this trace, because kdsl or NumPy imports a part of itself.

    The hooks of editable installs and of test runners run then, and are nobody's helpers.
    """
    importing = False
    while frame is not None and frame.f_code.co_name != "__kdsl_trace_root__":
        code = frame.f_code
        if importing and not code.co_filename.startswith("<frozen importlib"):
            return is_library_code(code)
        importing = importing or code.co_name == "_find_and_load"
        frame = frame.f_back
    return False


def _asked_by_author(frame: FrameType | None) -> bool:
    """Whether the nearest code outside of Python's own library is not kdsl's or NumPy's."""
    while frame is not None and is_library_code(frame.f_code):
        if is_of_kdsl(frame.f_code):
            return False
        frame = frame.f_back
    return frame is not None
