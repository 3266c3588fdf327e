"""What runs, and what is read of the machine, while a kernel is traced.

Names tell what code could read; this tells what it did besides: functions that ran without being
named, environment variables, files, and questions whose answer nobody can ask again.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from kdsl_core.lang.origins import is_library_code, is_of_kdsl

if TYPE_CHECKING:
    from cProfile import Profile

# Functions in C whose answer a later process cannot compare, as the profiler spells them.
_QUESTION = re.compile(
    r"<built-in method (?:"
    r"posix\.(?:l?stat|access|getcwd|getpid|urandom)"
    r"|time\.(?:time|monotonic|perf_counter|process_time)(?:_ns)?|time\.(?:local|gm)time"
    r"|(?:now|today|utcnow)(?: of type object at \w+)?)>"
    r"|<method '(?:now|today|utcnow)' of '.*' objects>"
    r"|<method '(?:random|getrandbits)' of '_random\.Random' objects>"
)
_SURPRISES = ("os.listdir", "os.scandir", "subprocess.Popen", "os.system", "socket.connect")
_WRITING = os.O_WRONLY | os.O_RDWR
_MISSING = "missing"
# The hooks of editable installs and of test runners run behind it, and are nobody's helpers.
_IMPORTING = "_find_and_load"
_active = threading.local()
# One thread at a time: a process has room for one profiler, and one trace at a time runs anyway.
_profiling = threading.RLock()
_LONGEST_WAIT_S = 60.0  # for a trace that waits for a thread that traces
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

    def states(self) -> dict[str, str]:
        """A digest of each variable and file as it is now."""
        return {name: state_of(name) for name in sorted(self.reads)}

    def ran(self, entries: Iterable[Any]) -> None:
        """Take over what a profiler counted: which code called which."""
        calls = {entry.code: [call.code for call in entry.calls or ()] for entry in entries}
        roots = calls.keys() - {call for called in calls.values() for call in called}
        reached = _reached(calls, roots, lambda code: code.co_name == _IMPORTING)
        author = [code for code in reached if not is_library_code(code)]
        # A module of the author's that is imported meanwhile, though behind the import.
        author += [c for c in calls if isinstance(c, CodeType) and c.co_name == "<module>"]
        self.codes.update(code for code in author if not is_library_code(code))
        asked = _reached(calls, self.codes, is_of_kdsl)
        questions = {call for code in asked for call in calls.get(code, ())} - set(asked)
        for question in questions:
            if isinstance(question, str) and _QUESTION.fullmatch(question):
                self.surprises.add(f"{question} was called")

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event."""
        if event == "open":
            path, _, flags = arguments
            read = isinstance(path, str | bytes) and not (flags or 0) & _WRITING
            if read and _asked_by_author(sys._getframe(2)):
                self.reads.add(f"file:{os.fsdecode(path)}")
        elif event in _SURPRISES and _asked_by_author(sys._getframe(2)):
            self.surprises.add(f"{event} was called")


class _Variables(dict[Any, Any]):
    """The environment as `os.environ` holds it, telling the thread's observer what is read."""

    def __getitem__(self, key: Any) -> Any:
        observed = getattr(_active, "observed", None)
        if observed is not None and _asked_by_author(sys._getframe(1)):
            observed.reads.add(f"env:{os.fsdecode(key)}")
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        observed = getattr(_active, "observed", None)
        if observed is not None and _asked_by_author(sys._getframe(1)):
            observed.surprises.add("all environment variables were read")
        return super().__iter__()


@contextmanager
def observing(observed: Observed | None = None) -> Iterator[Observed]:
    """Observe this thread; a profiler that is at work already makes that a surprise.

    Threads: others that come meanwhile wait for its end.
    """
    observed = observed or Observed()
    alone = _profiling.acquire(timeout=_LONGEST_WAIT_S)
    try:
        from cProfile import Profile  # not needed where everything was recalled

        profiler = Profile()
        if not alone or not _began(profiler):
            observed.surprises.add("another profiler is at work")
            yield observed
            return
        yield from _observed(observed, profiler)
    finally:
        if alone:
            _profiling.release()
    observed.ran(profiler.getstats())


def _observed(observed: Observed, profiler: Profile) -> Iterator[Observed]:
    _active.observed = observed
    collecting = gc.isenabled()
    gc.disable()  # finalizers are no part of the trace
    _listen()
    try:
        yield observed
    finally:
        profiler.disable()
        _active.observed = None
        if collecting:
            gc.enable()


def _renew_lock() -> None:
    global _profiling
    _profiling = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


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


def _began(profiler: Profile) -> bool:
    """Enable it, unless there is another one."""
    if sys.getprofile() is not None:
        return False
    try:
        profiler.enable()
    except (ValueError, RuntimeError):  # another thread has one, or is about to
        return False
    return True


def _listen() -> None:
    """Have audit events and look-ups in the environment told; both stay, and are silent after."""
    global _hooked
    with _hooking:
        if not _hooked:
            sys.addaudithook(_heard)
            _hooked = True
        if not isinstance(os.environ._data, _Variables):  # type: ignore[attr-defined] # no other way
            os.environ._data = _Variables(os.environ._data)  # type: ignore[attr-defined] # the same


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    observed = getattr(_active, "observed", None)
    if observed is not None:
        observed.heard(event, arguments)


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


def _asked_by_author(frame: FrameType | None) -> bool:
    """Whether the nearest code outside of Python's own library is not kdsl's or NumPy's."""
    while frame is not None and is_library_code(frame.f_code):
        if is_of_kdsl(frame.f_code):
            return False
        frame = frame.f_back
    return frame is not None
