"""Locks on files: of all processes that need one key, one builds and the others wait."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from kdsl_runtime.cache.files import files_below
from kdsl_runtime.cache.location import AnyPath

WAIT_LIMIT_S = 120.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def lock_file(path: AnyPath, limit_s: float | None = None) -> Iterator[bool]:
    """Hold the lock on `path` against other processes; gives whether it was obtained.

    It is not obtained on a file system without locks, in a directory that cannot be written, or
    when another process holds it for longer than `limit_s` (default `WAIT_LIMIT_S`). The caller
    then goes on without: the entry that is renamed last wins, and all of them are right.
    """
    descriptor = _acquire(path, WAIT_LIMIT_S if limit_s is None else limit_s)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _let_go(path, descriptor)


def _acquire(path: AnyPath, limit_s: float) -> int | None:
    deadline = time.monotonic() + limit_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_names(path, descriptor):
                return descriptor
            _close(descriptor)  # the holder before us removed this file: try with the new one
            continue
        except OSError as problem:
            _close(descriptor)
            if problem.errno not in _TAKEN or time.monotonic() >= deadline:
                return None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _still_names(path: AnyPath, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _let_go(path: AnyPath, descriptor: int) -> None:
    # Removed while still held, so that nobody can hold a lock on a file without a name for long.
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        # Unlocked by name: a child forked meanwhile has the same open file and would keep it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _close(descriptor)


def sweep(directory: str) -> int:
    """Remove lock files that nobody holds, left by killed processes; gives their number."""
    removed = 0
    for path in files_below(directory, "*.lock"):
        with lock_file(path, limit_s=0.0) as held:
            removed += held
    return removed
