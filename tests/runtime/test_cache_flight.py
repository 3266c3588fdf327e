"""One builds and the others wait: threads and processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from kdsl_core.errors import BuildError
from kdsl_runtime import metrics
from kdsl_runtime.cache import Cache, Entry, MemoryCache
from kdsl_runtime.cache.file_lock import lock_file
from kdsl_runtime.cache.flight import KeyLocks

KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(8)]


def _process(root: Path, log: Path, barrier, answers) -> None:
    cache = Cache.at(root)
    barrier.wait()
    for key in KEYS:

        def build(key: str = key) -> Entry:
            with log.open("a") as file:
                file.write(key + "\n")
            return Entry({"by": "whoever came first"}, key.encode())

        answers.put((key, cache.get_or_build(key, build).payload))


def test_processes_build_each_key_once(tmp_path):
    """Four processes, eight keys, one build each, the same answer everywhere."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    log = tmp_path / "log"
    arguments = (tmp_path / "cache", log, barrier, answers)
    processes = [context.Process(target=_process, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    got = [answers.get(timeout=60) for _ in range(4 * len(KEYS))]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(log.read_text().split()) == sorted(KEYS)
    assert all(payload == key.encode() for key, payload in got)
    assert list((tmp_path / "cache").rglob("*.lock")) == []


def test_without_locks_all_are_right(tmp_path, monkeypatch):
    """On a file system that refuses flock, each builds, the last rename wins, all agree."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    caches = [Cache.at(tmp_path / "cache") for _ in range(2)]
    entry = Entry({}, b"cubin")
    assert [cache.get_or_build(KEYS[0], lambda: entry) for cache in caches] == [entry] * 2


def test_threads_build_once():
    """Eight threads that ask together get one object, built once."""
    cache, built, got = Cache(), [], []
    barrier = threading.Barrier(8)

    def build() -> Entry:
        built.append(1)
        return Entry({}, b"cubin")

    def ask() -> None:
        barrier.wait()
        got.append(cache.get_or_build(KEYS[0], build))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert all(entry is got[0] for entry in got)


def test_failed_build_is_not_kept(tmp_path):
    """The error reaches the caller, nothing is stored, no lock is left, the next call builds."""
    cache = Cache.at(tmp_path / "cache")

    def fail() -> Entry:
        raise BuildError("refused", code="K705")

    for _ in range(2):
        with pytest.raises(BuildError):
            cache.get_or_build(KEYS[0], fail)
    entry = Entry({}, b"cubin")
    assert cache.get_or_build(KEYS[0], lambda: entry) == entry
    assert list((tmp_path / "cache").rglob("*.lock")) == []


def test_nested_builds_of_different_keys(tmp_path):
    """A recipe's build may ask for the content it leads to."""
    cache = Cache.at(tmp_path / "cache")
    inner = Entry({}, b"inner")
    outer = cache.get_or_build(KEYS[0], lambda: cache.get_or_build(KEYS[1], lambda: inner))
    assert outer == inner


def test_a_lock_held_too_long_is_given_up(tmp_path):
    """A builder that never ends cannot stop the others for ever."""
    path = tmp_path / "key.lock"
    with lock_file(path) as first, lock_file(path, limit_s=0.0) as second:
        assert (first, second) == (True, False)
    with lock_file(path, limit_s=0.0) as free:
        assert free


def test_key_locks_are_forgotten():
    """Nothing is kept for keys that nobody holds."""
    locks = KeyLocks()
    with locks.hold("a"), locks.hold("b"):
        assert len(locks._locks) == 2
    assert locks._locks == {}


def test_forked_child_is_not_blocked(tmp_path):
    """A child forked while another thread builds can build itself."""
    cache = Cache()
    entry = Entry({}, b"cubin")
    holding, done = threading.Event(), threading.Event()

    def build_slowly() -> Entry:
        holding.set()
        done.wait(60)
        return entry

    thread = threading.Thread(target=lambda: cache.get_or_build(KEYS[0], build_slowly))
    thread.start()
    holding.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get_or_build(KEYS[0], lambda: entry) == entry else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


def test_memory_is_bounded():
    """The least recently used entry goes first; one that is too large is not kept."""
    memory = MemoryCache(max_bytes=10)
    memory.put("a", Entry({}, b"12345"))
    memory.put("b", Entry({}, b"12345"))
    assert memory.get("a") is not None
    memory.put("c", Entry({}, b"12345"))
    assert [memory.get(key) is not None for key in "abc"] == [True, False, True]
    memory.put("d", Entry({}, b"x" * 11))
    assert (memory.get("d"), len(memory), memory.bytes) == (None, 2, 10)
    memory.put("a", Entry({}, b"1"))
    assert memory.bytes == 6


def test_hits_and_misses_are_counted(tmp_path):
    """A miss, then a hit in memory, then a hit on disk."""
    metrics.reset()
    entry = Entry({}, b"cubin")
    cache = Cache.at(tmp_path / "cache")
    for _ in range(2):
        cache.get_or_build(KEYS[0], lambda: entry)
    Cache.at(tmp_path / "cache").get_or_build(KEYS[0], lambda: entry)
    counted = metrics.snapshot()
    assert [counted[name] for name in ("misses", "memory_hits", "disk_hits")] == [1, 1, 1]
