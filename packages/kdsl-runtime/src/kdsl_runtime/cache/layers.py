"""Memory over disk: what a launch asks, and what never fails because of a cache."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from kdsl_core.errors import CacheError
from kdsl_runtime import metrics
from kdsl_runtime.cache.disk import DEFAULT_MAX_BYTES, DiskCache, KdslCacheWarning
from kdsl_runtime.cache.entry import Entry
from kdsl_runtime.cache.flight import KeyLocks
from kdsl_runtime.cache.location import default_directory
from kdsl_runtime.cache.memory import MemoryCache

_caches: dict[Path | None, Cache] = {}
_guard = threading.Lock()


class Cache:
    """Entries in memory, and on disk where `disk` is given.

    A disk that cannot be read, written or trusted costs one warning and time, never a result.

    Threads: safe, and so are processes that share the disk; each key is built once.
    """

    def __init__(self, disk: DiskCache | None = None, memory: MemoryCache | None = None) -> None:
        self.disk = disk
        self.memory = memory or MemoryCache()
        self._flights = KeyLocks()
        self._warned = False

    @classmethod
    def at(cls, directory: Path | None, max_bytes: int = DEFAULT_MAX_BYTES) -> Cache:
        """The cache in `directory`; in memory alone, with one warning, when that cannot be used."""
        cache = cls()
        if directory is None:
            cache._degrade("no directory for it: KDSL_CACHE_DIR, XDG_CACHE_HOME, HOME are not set")
            return cache
        try:
            cache.disk = DiskCache(directory, max_bytes)
        except (CacheError, OSError) as problem:
            cache._degrade(str(problem))
        return cache

    def get_or_build(self, key: str, build: Callable[[], Entry]) -> Entry:
        """The entry of `key`, made by `build` when no layer has it.

        Raises: whatever `build` raises; nothing is kept then, and the next caller builds again.
        """
        entry = self.memory.get(key)
        if entry is not None:
            metrics.add("memory_hits")
            return entry
        with self._flights.hold(key):
            entry = self.memory.get(key)
            if entry is not None:
                metrics.add("memory_hits")
                return entry
            entry = self._from_disk_or_build(key, build)
            self.memory.put(key, entry)
        return entry

    def _from_disk_or_build(self, key: str, build: Callable[[], Entry]) -> Entry:
        if self.disk is None:
            return self._build(build)
        entry = self._read(self.disk, key)
        if entry is not None:
            return entry
        with self.disk.lock(key):
            entry = self._read(self.disk, key)
            if entry is None:
                entry = self._build(build)
                self._write(self.disk, key, entry)
        return entry

    def _build(self, build: Callable[[], Entry]) -> Entry:
        metrics.add("misses")
        return build()

    def _read(self, disk: DiskCache, key: str) -> Entry | None:
        try:
            entry = disk.get(key)
        except (CacheError, OSError) as problem:
            self._degrade(str(problem))
            return None
        if entry is not None:
            metrics.add("disk_hits")
        return entry

    def _write(self, disk: DiskCache, key: str, entry: Entry) -> None:
        try:
            disk.put(key, entry)
        except (CacheError, OSError) as problem:
            self._degrade(str(problem))

    def _degrade(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"built kernels are kept in memory only, for this process. {why}"
            warnings.warn(text, KdslCacheWarning, stacklevel=2)


def default_cache(environ: Mapping[str, str] | None = None) -> Cache:
    """The cache of this process for the directory that the environment names now.

    Units: $KDSL_CACHE_MIB bounds the disk in MiB.
    Threads: safe.
    """
    environ = os.environ if environ is None else environ
    directory = default_directory(environ)
    with _guard:
        if directory not in _caches:
            _caches[directory] = Cache.at(directory, max_bytes(environ))
        return _caches[directory]


def max_bytes(environ: Mapping[str, str]) -> int:
    """The bound of the disk cache that the environment asks for, in bytes.

    Raises: CacheError K727 when $KDSL_CACHE_MIB is no whole number.
    """
    stated = environ.get("KDSL_CACHE_MIB")
    if not stated:
        return DEFAULT_MAX_BYTES
    if not stated.isdecimal():
        raise CacheError(
            f"expected KDSL_CACHE_MIB to be a whole number of MiB, got {stated!r}",
            code="K727",
            fix="for example KDSL_CACHE_MIB=2048",
        )
    return int(stated) << 20
