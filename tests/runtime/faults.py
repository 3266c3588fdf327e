"""Every file operation of the cache counted, failing, or the last thing that a process does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

# What the cache and pathlib call on `os`; both look the names up there at each call.
OPERATIONS = (
    "open", "read", "write", "close", "fsync", "replace", "unlink", "mkdir", "utime",
    "stat", "lstat", "fstat", "scandir",
)  # fmt: skip


class Counted:
    """Counts the operations and calls `strike` at number `at`, from 0, in their place or before."""

    def __init__(self, at: int | None = None, strike: Callable[[str], None] | None = None) -> None:
        self.names: list[str] = []
        self._at = at
        self._strike = strike

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real`, counted."""

        def operation(*args: Any, **kwargs: Any) -> Any:
            number = len(self.names)
            self.names.append(name)
            if number == self._at and self._strike is not None:
                if name == "close":
                    real(*args, **kwargs)  # a close that fails has closed all the same
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])  # a write may do a part
                self._strike(name)
            return real(*args, **kwargs)

        return operation

    @contextlib.contextmanager
    def installed(self) -> Iterator[Counted]:
        """Put the counter in place of the operations."""
        real = {name: getattr(os, name) for name in OPERATIONS}
        flock = fcntl.flock
        try:
            for name, function in real.items():
                setattr(os, name, self.wrap(name, function))
            fcntl.flock = self.wrap("flock", flock)
            yield self
        finally:
            fcntl.flock = flock
            for name, function in real.items():
                setattr(os, name, function)


def failing(at: int, code: int) -> Counted:
    """The operation number `at` fails with this error number."""

    def fail(name: str) -> None:
        raise OSError(code, os.strerror(code))

    return Counted(at, fail)


def deadly(at: int) -> Counted:
    """The process is killed right before operation number `at`."""
    return Counted(at, lambda name: os.kill(os.getpid(), signal.SIGKILL))
