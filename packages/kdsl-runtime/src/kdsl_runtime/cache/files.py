"""Files of a cache: read only when they can be trusted, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection

from kdsl_runtime.cache.entry import FORMAT_VERSION
from kdsl_runtime.cache.keys import check_key
from kdsl_runtime.cache.location import AnyPath, check_file, refused_entry

SUFFIX, BAD, TEMPORARY, NOTE = ".kdsl", ".bad", ".tmp", ".note"
_READ_BYTES = 1 << 20


class KdslCacheWarning(UserWarning):
    """The cache works less well than it should; results are right all the same."""


def entry_path(root: str, key: str) -> str:
    """Where the entry of `key` is kept below a cache's folder."""
    return os.path.join(root, f"v{FORMAT_VERSION}", check_key(key)[:2], f"{key}{SUFFIX}")


def read_file(path: AnyPath, owners: Collection[int]) -> bytes | None:
    """The bytes of a regular file of one of `owners` that nobody else may write; None without one.

    Raises: CacheError K723 for any other file, OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise refused_entry(path, "it is a symbolic link") from problem
        raise
    try:
        check_file(descriptor, path, owners)
        return b"".join(iter(lambda: os.read(descriptor, _READ_BYTES), b""))
    finally:
        _close(descriptor)


def write_file(path: str, data: bytes, *, synced: bool = True) -> None:
    """Put `data` under `path`: written under another name, `synced`, then renamed.

    The folder is not synced: what a crash makes of the rename is the old file or the new one.
    Raises: OSError; nothing is left then.
    """
    folder, name = os.path.split(os.path.splitext(path)[0])
    unique = f"{os.getpid()}.{os.urandom(4).hex()}"
    temporary = os.path.join(folder, f".{name}.{unique}{TEMPORARY}")
    try:
        _write(temporary, data, synced)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def files_below(folder: str, pattern: str) -> list[str]:
    """The paths of a folder's files that match a pattern within it, such as "??/*.kdsl"."""
    import glob  # not needed where entries are found

    return [os.path.join(folder, name) for name in glob.iglob(pattern, root_dir=folder)]


def age_s(path: AnyPath) -> float:
    """How long ago the file was written, in seconds; a clock that ran ahead counts the same way."""
    try:
        return abs(time.time() - os.lstat(path).st_mtime)
    except OSError:
        return 0.0


def remove(path: AnyPath) -> bool:
    """Remove a file; whether that worked."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _write(path: str, data: bytes, synced: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if synced:
            os.fsync(descriptor)
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    # After fsync a refused close cannot lose anything, and after reading there is nothing to lose;
    # what it takes from a note, the note's seal shows.
    with contextlib.suppress(OSError):
        os.close(descriptor)
