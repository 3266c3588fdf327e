"""Single flight: of all threads that need one key, one builds and the others wait.

Processes do the same by `file_lock`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import ClassVar


class KeyLocks:
    """One lock per key, kept only while somebody holds it or waits for it.

    Threads: safe; a forked child begins with no lock held.
    """

    _all: ClassVar[weakref.WeakSet[KeyLocks]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._forget()
        KeyLocks._all.add(self)

    def _forget(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.RLock, int]] = {}

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.RLock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            self._release(key)

    def _release(self, key: str) -> None:
        with self._guard:
            found = self._locks.get(key)
            if found is None:  # in a child forked while the lock was held
                return
            lock, users = found
            if users > 1:
                self._locks[key] = (lock, users - 1)
            else:
                del self._locks[key]

    @classmethod
    def forget_all(cls) -> None:
        """Drop every lock of every instance; for a forked child, whose other threads are gone."""
        for instance in list(cls._all):
            instance._forget()


os.register_at_fork(after_in_child=KeyLocks.forget_all)
