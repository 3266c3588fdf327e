"""The cache itself, for an entry of a cubin's size: found in memory or on disk, put, missed."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from pathlib import Path

from kdsl_runtime.cache import Cache, Entry

PAYLOAD = bytes(range(256)) * 256  # 64 KiB
METADATA = {"kind": "cubin", "report": {"registers": 168}}


def key(number: int) -> str:
    """A key as content keys look."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def refuse() -> Entry:
    """What is found is not built."""
    raise AssertionError("the entry should be there")


class Kept:
    """Entries of 64 KiB; every put and every miss has a key that was not used."""

    def setup(self) -> None:
        """A cache in a folder of its own, with one entry."""
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = itertools.count(1)
        self.entry = Entry(METADATA, PAYLOAD)
        self.cache = Cache.at(self.folder)
        self.cache.get_or_build(key(0), lambda: self.entry)

    def teardown(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)

    def time_hit_in_memory(self) -> None:
        """What every later launch of a process does at most."""
        self.cache.get_or_build(key(0), refuse)

    def time_hit_on_disk(self) -> None:
        """What a new process does: read and verify."""
        Cache.at(self.folder).get_or_build(key(0), refuse)

    def time_put(self) -> None:
        """A miss, and the new entry written."""
        self.cache.get_or_build(key(next(self.numbers)), lambda: self.entry)

    def time_miss(self) -> None:
        """Nothing there, and nothing kept of what is built."""
        number = next(self.numbers)
        self.cache.get_or_build(key(number), lambda: self.entry, keep=lambda entry: False)

    for benchmark in (time_hit_in_memory, time_hit_on_disk, time_put, time_miss):
        benchmark.version = "1"
    del benchmark
