"""What runs, and what is read of the machine, while a kernel is traced.

Names tell what code could read; this tells what it did besides: functions that ran without being
named, environment variables, files, and questions whose answer nobody can ask again.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType
from typing import Any

from kdsl_core.lang.file_states import state_of
from kdsl_core.lang.origins import asked_by_author

if sys.version_info >= (3, 12):
    from kdsl_core.lang.monitored_calls import watching
else:
    from kdsl_core.lang.profiled_calls import watching

_SURPRISES = ("os.listdir", "os.scandir", "subprocess.Popen", "os.system", "socket.connect")
_TOLD = frozenset(["open", *_SURPRISES])
_WRITING = os.O_WRONLY | os.O_RDWR
_active = threading.local()
# One thread at a time: a process has room for one profiler, and one trace at a time runs anyway.
_watching = threading.RLock()
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

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event: one of `_TOLD`."""
        if event == "open":
            path, _, flags = arguments
            read = isinstance(path, str | bytes) and not (flags or 0) & _WRITING
            if read and asked_by_author(sys._getframe(2)):
                self.reads.add(f"file:{os.fsdecode(path)}")
        elif asked_by_author(sys._getframe(2)):
            self.surprises.add(f"{event} was called")


class _Variables(dict[Any, Any]):
    """The environment as `os.environ` holds it, telling the thread's observer what is read."""

    def __getitem__(self, key: Any) -> Any:
        observed = getattr(_active, "observed", None)
        if observed is not None and asked_by_author(sys._getframe(1)):
            observed.reads.add(f"env:{os.fsdecode(key)}")
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        observed = getattr(_active, "observed", None)
        if observed is not None and asked_by_author(sys._getframe(1)):
            observed.surprises.add("all environment variables were read")
        return super().__iter__()


@contextmanager
def observing(observed: Observed | None = None) -> Iterator[Observed]:
    """Observe this thread; where Python has no room for one more observer, that is a surprise.

    Threads: others that come meanwhile wait for its end.
    """
    observed = observed or Observed()
    alone = _watching.acquire(timeout=_LONGEST_WAIT_S)
    try:
        with watching(observed) if alone else nullcontext(False) as watches:
            if not watches:
                observed.surprises.add("another profiler is at work")
                yield observed
                return
            yield from _observed(observed)
    finally:
        if alone:
            _watching.release()


def _observed(observed: Observed) -> Iterator[Observed]:
    _active.observed = observed
    collecting = gc.isenabled()
    gc.disable()  # finalizers are no part of the trace
    _listen()
    try:
        yield observed
    finally:
        _active.observed = None
        if collecting:
            gc.enable()


def _renew_lock() -> None:
    global _watching
    _watching = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


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
    if event in _TOLD:  # few of the thousands that a trace raises
        observed = getattr(_active, "observed", None)
        if observed is not None:
            observed.heard(event, arguments)
