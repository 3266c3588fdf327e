"""Entries on disk: one self-verifying file each, in a directory that only its owner may write."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager

from kdsl_core.digests import hash256
from kdsl_core.errors import CacheError
from kdsl_core.records import dataclass
from kdsl_runtime import metrics
from kdsl_runtime.cache.entry import FORMAT_VERSION, CorruptEntry, Entry, decode, encode
from kdsl_runtime.cache.files import (
    BAD,
    NOTE,
    SUFFIX,
    TEMPORARY,
    KdslCacheWarning,
    age_s,
    entry_path,
    files_below,
    read_file,
    remove,
    write_file,
)
from kdsl_runtime.cache.keys import check_key
from kdsl_runtime.cache.location import AnyPath, make_private

DEFAULT_MAX_BYTES = 2 << 30
_WRITES_BETWEEN_PRUNES = 64
_RUBBISH_AGE_S = 3600.0
_PRUNE_TO = 0.9  # of the bound, so that not every later write has to prune again


@dataclass(frozen=True)
class StoredFile:
    """One entry as the file system shows it. Units: `used_ns` since the epoch, `bytes` whole."""

    key: str
    path: str
    bytes: int
    used_ns: int


class DiskCache:
    """Entries under `root`; relocatable, and shared by any number of processes.

    Threads: safe. Units: `max_bytes` bounds the files together (checked every few writes).
    Raises: CacheError K720–K722 when `root` cannot be trusted, OSError when it cannot be made.
    """

    def __init__(self, root: AnyPath, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.root = os.path.realpath(root)
        self.max_bytes = max_bytes
        make_private(self.root)
        self._home = os.path.join(self.root, f"v{FORMAT_VERSION}")
        self._locks = os.path.join(self._home, "locks")
        self._notes = os.path.join(self._home, "notes")
        self._writes = 0

    def path_of(self, key: str) -> str:
        """Where the entry of `key` is kept."""
        return entry_path(self.root, key)

    def note_path(self, subject: str) -> str:
        """Where the note of a subject is kept; see `notes`."""
        name = hash256(subject.encode()).hexdigest()[:32]
        return os.path.join(self._notes, f"{name}{NOTE}")

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
        data = read_file(path, {os.geteuid()})
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
        for directory in (self.root, self._home, os.path.dirname(path)):
            make_private(directory)
        write_file(path, data)
        self._writes += 1
        if self._writes % _WRITES_BETWEEN_PRUNES == 1:
            with contextlib.suppress(OSError):
                self.prune()

    def lock(self, key: str) -> AbstractContextManager[bool]:
        """Hold `key` against other processes while it is built; see `lock_file`."""
        from kdsl_runtime.cache.file_lock import lock_file  # not needed where entries are found

        with contextlib.suppress(OSError, CacheError):
            for directory in (self.root, self._home, self._locks):
                make_private(directory)
        return lock_file(os.path.join(self._locks, f"{check_key(key)}.lock"))

    def files(self, pattern: str = f"v{FORMAT_VERSION}") -> list[StoredFile]:
        """Every entry, least recently used first; of other formats too with the pattern "v*"."""
        found = []
        for path in files_below(self.root, f"{pattern}/??/*{SUFFIX}"):
            with contextlib.suppress(OSError):
                state, key = os.lstat(path), os.path.basename(path).removesuffix(SUFFIX)
                found.append(StoredFile(key, path, state.st_size, state.st_mtime_ns))
        return sorted(found, key=lambda file: (file.used_ns, file.key))

    def verify(self) -> Iterator[tuple[StoredFile, str | None]]:
        """Each entry with None, or with what is wrong; a damaged one is set aside."""
        for file in self.files():
            try:
                data = read_file(file.path, {os.geteuid()})
                if data is not None:
                    decode(data, file.key)
                    yield file, None
            except CorruptEntry as problem:
                self._quarantine(file.path, problem, warn=False)
                yield file, problem.message
            except CacheError as problem:
                yield file, problem.message

    def prune(self, max_bytes: int | None = None) -> int:
        """Remove what was not used for longest until `max_bytes` are left; gives their number.

        Files that killed processes left an hour ago or longer go as well. The bound is for all
        versions of kdsl that share the folder.
        """
        self.sweep(_RUBBISH_AGE_S)
        bound = self.max_bytes if max_bytes is None else max_bytes
        files = self.files("v*")
        total = sum(file.bytes for file in files)
        goal = total if total <= bound else int(bound * _PRUNE_TO)
        removed = 0
        for file in files:
            if total <= goal:
                break
            removed += remove(file.path)
            total -= file.bytes
        metrics.add("evictions", removed)
        return removed

    def sweep(self, older_than_s: float = 0.0) -> int:
        """Remove free lock files, and temporary files and entries set aside that are that old.

        Gives the number of files removed.
        """
        from kdsl_runtime.cache.file_lock import sweep

        rubbish = [
            *files_below(self._home, f"*/.*{TEMPORARY}"),
            *files_below(self._home, f"??/*{BAD}"),
        ]
        old = [path for path in rubbish if age_s(path) >= older_than_s]
        return sum(map(remove, old)) + sweep(self._locks)

    def clear(self) -> int:
        """Remove every entry and everything left over; gives the number of entries."""
        removed = sum(remove(file.path) for file in self.files("v*"))
        for note in files_below(self._notes, f"*{NOTE}"):
            remove(note)
        self.sweep()
        return removed

    def _quarantine(self, path: AnyPath, problem: CorruptEntry, *, warn: bool = True) -> None:
        metrics.add("bad_entries")
        with contextlib.suppress(OSError):
            os.replace(path, os.path.splitext(path)[0] + BAD)
        if warn:
            text = f"{problem.message} ({path}); it is set aside and built again"
            warnings.warn(text, KdslCacheWarning, stacklevel=2)
