"""Memory over disk over read-only folders over a remote store: what a launch asks.

A layer that cannot be read, written or trusted costs one warning and time, never a result.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kdsl_core.errors import CacheError
from kdsl_runtime import metrics
from kdsl_runtime.cache.disk import DEFAULT_MAX_BYTES, DiskCache
from kdsl_runtime.cache.entry import Entry
from kdsl_runtime.cache.files import KdslCacheWarning
from kdsl_runtime.cache.flight import KeyLocks
from kdsl_runtime.cache.location import AnyPath, default_directory
from kdsl_runtime.cache.memory import MemoryCache

if TYPE_CHECKING:
    from kdsl_runtime.cache.remote import RemoteCache
    from kdsl_runtime.cache.sealed import SealedCache

Test = Callable[[Entry], bool]
_Place = tuple[str | None, str, str]
_caches: dict[_Place, Cache] = {}
_guard = threading.Lock()


class Layer(Protocol):
    """Where an entry may be found."""

    def get(self, key: str) -> Entry | None:
        """The verified entry of `key`; None when there is none."""


class Cache:
    """Entries in memory, on `disk`, in read-only folders and in a `remote` store, in this order.

    What the remote store had is kept on the disk; what a read-only folder had is not.

    Threads: safe, and so are processes that share the disk; each key is built once.
    """

    def __init__(
        self,
        disk: DiskCache | None = None,
        memory: MemoryCache | None = None,
        sealed: Sequence[SealedCache] = (),
        remote: RemoteCache | None = None,
    ) -> None:
        self.disk = disk
        self.memory = memory or MemoryCache()
        self.sealed = list(sealed)
        self.remote = remote
        self._flights = KeyLocks()
        self._warned: set[str] = set()

    @classmethod
    def at(cls, directory: AnyPath | None, max_bytes: int = DEFAULT_MAX_BYTES) -> Cache:
        """The cache in `directory`; in memory alone, with one warning, when that cannot be used."""
        cache = cls()
        if directory is None:
            cache._degrade(
                "no directory for it: KDSL_CACHE_DIR, XDG_CACHE_HOME, HOME are not set", _DISK
            )
            return cache
        try:
            cache.disk = DiskCache(directory, max_bytes)
        except (CacheError, OSError) as problem:
            cache._degrade(str(problem), _DISK)
        return cache

    def get_or_build(
        self,
        key: str,
        build: Callable[[], Entry],
        *,
        accept: Test = lambda entry: True,
        keep: Test = lambda entry: True,
    ) -> Entry:
        """The entry of `key`, made by `build` when no layer has one that `accept` takes.

        What was built stays only where `keep` says so.
        Raises: whatever `build` raises; nothing is kept then, and the next caller builds again.
        """
        entry = self._remembered(key, accept)
        if entry is None:
            with self._flights.hold(key):
                entry = self._remembered(key, accept)
                if entry is None:
                    entry = self._from_layers(key, build, accept, keep)
                    if keep(entry):
                        self.memory.put(key, entry)
        return entry

    def _remembered(self, key: str, accept: Test) -> Entry | None:
        entry = self.memory.get(key)
        if entry is None or not accept(entry):
            return None
        metrics.add("memory_hits")
        return entry

    def _from_layers(self, key: str, build: Callable[[], Entry], accept: Test, keep: Test) -> Entry:
        near: list[tuple[Layer | None, str]] = [(self.disk, _DISK)]
        near += [(layer, _SEALED) for layer in self.sealed]
        for layer, kind in near:
            entry = self._read(layer, kind, key, accept)
            if entry is not None:
                return entry
        if self.disk is None:
            return self._from_afar(key, build, accept, keep)
        with self.disk.lock(key):
            entry = self._read(self.disk, _DISK, key, accept)  # by whoever held the lock before
            return entry or self._from_afar(key, build, accept, keep)

    def _from_afar(self, key: str, build: Callable[[], Entry], accept: Test, keep: Test) -> Entry:
        entry = self._read(self.remote, _REMOTE, key, accept)
        if entry is not None:
            self._write(key, entry)
            return entry
        metrics.add("misses")
        entry = build()
        if keep(entry):
            self._write(key, entry)
            self._push(key, entry)
        return entry

    def _read(self, layer: Layer | None, kind: str, key: str, accept: Test) -> Entry | None:
        if layer is None:
            return None
        try:
            entry = layer.get(key)
        except (CacheError, OSError) as problem:
            self._degrade(str(problem), kind)
            return None
        if entry is None or not accept(entry):
            return None
        metrics.add(f"{kind}_hits")
        return entry

    def _write(self, key: str, entry: Entry) -> None:
        if self.disk is None:
            return
        try:
            self.disk.put(key, entry)
        except (CacheError, OSError) as problem:
            self._degrade(str(problem), _DISK)

    def _push(self, key: str, entry: Entry) -> None:
        if self.remote is None or not self.remote.writable:
            return
        try:
            self.remote.put(key, entry)
        except (CacheError, OSError) as problem:
            self._degrade(str(problem), _REMOTE)

    def _degrade(self, why: str, kind: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{_CONSEQUENCES[kind]} {why}", KdslCacheWarning, stacklevel=2)


def _renew_guard() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew_guard)
_DISK, _SEALED, _REMOTE = "disk", "sealed", "remote"
_CONSEQUENCES = {
    _DISK: "built kernels are kept in memory only, for this process.",
    _SEALED: "a read-only layer of the cache is of no use.",
    _REMOTE: "the remote layer of the cache is of no use.",
}


def default_cache(environ: Mapping[str, str] | None = None) -> Cache:
    """The cache of this process for the places that the environment names now.

    $KDSL_CACHE_LAYERS lists read-only folders, separated as in $PATH; $KDSL_CACHE_REMOTE is the
    URL of a store, which is written to as well when $KDSL_CACHE_REMOTE_PUSH is 1.

    Units: $KDSL_CACHE_MIB bounds the disk in MiB.
    Threads: safe.
    """
    environ = os.environ if environ is None else environ
    directory = default_directory(environ)
    layers, url = environ.get("KDSL_CACHE_LAYERS", ""), environ.get("KDSL_CACHE_REMOTE", "")
    with _guard:
        if (directory, layers, url) not in _caches:
            cache = Cache.at(directory, max_bytes(environ))
            folders = [folder for folder in layers.split(os.pathsep) if folder]
            if folders:
                from kdsl_runtime.cache.sealed import SealedCache

                cache.sealed = [SealedCache(folder) for folder in folders]
            if url:
                from kdsl_runtime.cache.remote import RemoteCache

                cache.remote = RemoteCache(url, environ.get("KDSL_CACHE_REMOTE_PUSH") == "1")
            _caches[directory, layers, url] = cache
        return _caches[directory, layers, url]


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
