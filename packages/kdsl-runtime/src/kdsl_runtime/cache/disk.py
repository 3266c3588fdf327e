"""Entries on disk: one self-verifying file each, in a directory that only its owner may write."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kdsl_core.errors import CacheError
from kdsl_runtime import metrics
from kdsl_runtime.cache.entry import FORMAT_VERSION, CorruptEntry, Entry, decode, encode
from kdsl_runtime.cache.flight import lock_file, sweep
from kdsl_runtime.cache.keys import check_key
from kdsl_runtime.cache.location import check_file, make_private, refused_entry

DEFAULT_MAX_BYTES = 2 << 30
_SUFFIX, _BAD, _TEMPORARY = ".kdsl", ".bad", ".tmp"
_WRITES_BETWEEN_PRUNES = 64
_RUBBISH_AGE_S = 3600.0
_PRUNE_TO = 0.9  # of the bound, so that not every later write has to prune again


class KdslCacheWarning(UserWarning):
    """The cache works less well than it should; results are right all the same."""


@dataclass(frozen=True)
class StoredFile:
    """One entry as the file system shows it. Units: `used_ns` since the epoch, `bytes` whole."""

    key: str
    path: Path
    bytes: int
    used_ns: int


class DiskCache:
    """Entries under `root`; relocatable, and shared by any number of processes.

    Threads: safe. Units: `max_bytes` bounds the files together (checked every few writes).
    Raises: CacheError K720–K722 when `root` cannot be trusted, OSError when it cannot be made.
    """

    def __init__(self, root: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.root = Path(os.path.realpath(root))
        self.max_bytes = max_bytes
        make_private(self.root)
        self._home = self.root / f"v{FORMAT_VERSION}"
        self._locks = self._home / "locks"
        self._writes = 0

    def path_of(self, key: str) -> Path:
        """Where the entry of `key` is kept."""
        return self._home / check_key(key)[:2] / f"{key}{_SUFFIX}"

    def get(self, key: str) -> Entry | None:
        """The verified entry of `key`; None when there is none or it had to be set aside.

        Raises: CacheError K723 for an entry that is a link or belongs to others, OSError.
        """
        entry = self.peek(key)
        if entry is not None:
            with contextlib.suppress(OSError):
                # The least recently used go first, and atime is often switched off.
                os.utime(self.path_of(key))
        return entry

    def peek(self, key: str) -> Entry | None:
        """As `get`, but the entry does not count as used."""
        path = self.path_of(key)
        data = _read(path)
        if data is None:
            return None
        try:
            return decode(data, key)
        except CorruptEntry as problem:
            self._quarantine(path, problem)
            return None

    def put(self, key: str, entry: Entry) -> None:
        """Keep `entry`: written under another name, synced, then renamed.

        Raises: CacheError when a directory cannot be trusted, OSError when it cannot be written.
        """
        path, data = self.path_of(key), encode(key, entry)
        for directory in (self.root, self._home, path.parent):
            make_private(directory)
        temporary = path.with_name(f".{key}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            _write(temporary, data)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_directory(path.parent)
        self._writes += 1
        if self._writes % _WRITES_BETWEEN_PRUNES == 1:
            self.prune()

    def lock(self, key: str) -> AbstractContextManager[bool]:
        """Hold `key` against other processes while it is built; see `lock_file`."""
        with contextlib.suppress(OSError, CacheError):
            for directory in (self.root, self._home, self._locks):
                make_private(directory)
        return lock_file(self._locks / f"{check_key(key)}.lock")

    def files(self) -> list[StoredFile]:
        """Every entry, least recently used first."""
        found = []
        for path in self._home.glob(f"??/*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                state = path.lstat()
                found.append(StoredFile(path.stem, path, state.st_size, state.st_mtime_ns))
        return sorted(found, key=lambda file: (file.used_ns, file.key))

    def verify(self) -> Iterator[tuple[StoredFile, str | None]]:
        """Each entry with None, or with what is wrong; a bad one is set aside.

        Raises: CacheError K723 as in `get`.
        """
        for file in self.files():
            data = _read(file.path)
            if data is None:
                continue
            try:
                decode(data, file.key)
                yield file, None
            except CorruptEntry as problem:
                self._quarantine(file.path, problem, warn=False)
                yield file, problem.message

    def prune(self, max_bytes: int | None = None) -> int:
        """Remove what was not used for longest until `max_bytes` are left; gives their number.

        Files that killed processes left an hour ago or longer go as well.
        """
        self.sweep(_RUBBISH_AGE_S)
        bound = self.max_bytes if max_bytes is None else max_bytes
        files = self.files()
        total = sum(file.bytes for file in files)
        goal = total if total <= bound else int(bound * _PRUNE_TO)
        removed = 0
        for file in files:
            if total <= goal:
                break
            removed += _remove(file.path)
            total -= file.bytes
        metrics.add("evictions", removed)
        return removed

    def sweep(self, older_than_s: float = 0.0) -> int:
        """Remove free lock files, and temporary files and entries set aside that are that old.

        Gives the number of files removed.
        """
        rubbish = [*self._home.glob(f"??/.*{_TEMPORARY}"), *self._home.glob(f"??/*{_BAD}")]
        old = [path for path in rubbish if _age_s(path) >= older_than_s]
        return sum(_remove(path) for path in old) + sweep(self._locks)

    def clear(self) -> int:
        """Remove every entry and everything left over; gives the number of entries."""
        removed = sum(_remove(file.path) for file in self.files())
        self.sweep()
        return removed

    def _quarantine(self, path: Path, problem: CorruptEntry, *, warn: bool = True) -> None:
        metrics.add("bad_entries")
        with contextlib.suppress(OSError):
            os.replace(path, path.with_suffix(_BAD))
        if warn:
            text = f"{problem.message} ({path}); it is set aside and built again"
            warnings.warn(text, KdslCacheWarning, stacklevel=2)


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise refused_entry(path, "it is a symbolic link") from problem
        raise
    with os.fdopen(descriptor, "rb") as file:
        check_file(descriptor, path)
        return file.read()


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    # Some network file systems refuse this; the entry is then only less sure to survive a crash.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.lstat().st_mtime)
    except OSError:
        return 0.0


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
