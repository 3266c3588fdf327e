"""Where the cache lives, and whether that folder can be trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from typing import TypeAlias

from kdsl_core.errors import CacheError

# The cache keeps paths as texts: `pathlib` takes a start 4 ms, with what it imports.
AnyPath: TypeAlias = str | os.PathLike[str]

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """$KDSL_CACHE_DIR, $XDG_CACHE_HOME/kdsl or $HOME/.cache/kdsl; None when none is set."""
    environ = os.environ if environ is None else environ
    if environ.get("KDSL_CACHE_DIR"):
        return environ["KDSL_CACHE_DIR"]
    if environ.get("XDG_CACHE_HOME"):
        return os.path.join(environ["XDG_CACHE_HOME"], "kdsl")
    if environ.get("HOME"):
        return os.path.join(environ["HOME"], ".cache", "kdsl")
    return None


def make_private(directory: AnyPath) -> None:
    """Create `directory` with mode 0700 and refuse one that others own or may write.

    Raises: CacheError K720–K722 when it cannot be trusted; OSError when it cannot be made.
    """
    os.makedirs(os.path.dirname(directory) or os.curdir, exist_ok=True)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        check_private(directory)


def check_private(directory: AnyPath, owners: Collection[int] | None = None) -> None:
    """Refuse a directory that somebody else than `owners`, this user alone, could have filled.

    Raises: CacheError K720 (no directory), K721 (other owner), K722 (others may write);
    OSError when it cannot be examined.
    """
    state = os.lstat(directory)
    if not stat.S_ISDIR(state.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(state.st_mode) else "not a directory"
        raise CacheError(
            f"expected the cache directory {directory} to be a directory, it is {kind}",
            code="K720",
            fix="remove it, or set KDSL_CACHE_DIR to a directory of your own",
        )
    if state.st_uid not in (owners or {os.geteuid()}):
        raise CacheError(
            f"the cache directory {directory} belongs to user {state.st_uid}, this process runs "
            f"as user {os.geteuid()}: machine code from there cannot be trusted",
            code="K721",
            fix="set KDSL_CACHE_DIR to a directory of your own",
        )
    if state.st_mode & _WRITABLE_BY_OTHERS:
        raise CacheError(
            f"others may write the cache directory {directory} (mode "
            f"{stat.S_IMODE(state.st_mode):04o}): machine code from there cannot be trusted",
            code="K722",
            fix=f"empty it, then chmod 700 {directory}",
        )


def check_file(descriptor: int, path: AnyPath, owners: Collection[int]) -> None:
    """Refuse an open entry that is no regular file of `owners`, or that others may write.

    Raises: CacheError K723.
    """
    state = os.fstat(descriptor)
    ours = state.st_uid in owners and not state.st_mode & _WRITABLE_BY_OTHERS
    if not stat.S_ISREG(state.st_mode) or not ours:
        raise refused_entry(
            path, f"mode {stat.filemode(state.st_mode)}, owner {state.st_uid}, not ours alone"
        )


def refused_entry(path: AnyPath, why: str) -> CacheError:
    """The error for a file in the cache that this process did not make."""
    return CacheError(
        f"the cache entry {path} is refused: {why}",
        code="K723",
        fix="find out who put it there; `kdsl cache clear` removes it",
    )
