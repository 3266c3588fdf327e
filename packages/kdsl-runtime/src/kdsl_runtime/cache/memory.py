"""The entries of this process: least recently used go first when the bound is reached."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import ClassVar

from kdsl_runtime.cache.entry import Entry

DEFAULT_MAX_BYTES = 256 << 20


class MemoryCache:
    """A bounded map from key to entry.

    Units: `max_bytes` bounds the payloads together; one larger than that is not kept.
    Threads: safe.
    """

    _all: ClassVar[weakref.WeakSet[MemoryCache]] = weakref.WeakSet()

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._bytes = 0
        MemoryCache._all.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Size of the payloads that are kept."""
        return self._bytes

    def get(self, key: str) -> Entry | None:
        """The entry of `key`, which becomes the most recently used; None when there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: str, entry: Entry) -> None:
        """Keep `entry`, dropping what was not used for longest."""
        if len(entry.payload) > self.max_bytes:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes -= len(old.payload) if old else 0
            self._entries[key] = entry
            self._bytes += len(entry.payload)
            while self._bytes > self.max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= len(dropped.payload)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @classmethod
    def renew_locks(cls) -> None:
        """Give every instance a free lock; for a forked child, whose other threads are gone."""
        for instance in list(cls._all):
            instance._lock = threading.Lock()


os.register_at_fork(after_in_child=MemoryCache.renew_locks)
