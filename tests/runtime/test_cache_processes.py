"""Many processes on one folder: each key built once; kills leave nothing bad behind."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import warnings
from collections import Counter
from pathlib import Path

import pytest

from kdsl_runtime.builds import build
from kdsl_runtime.cache import Cache, Entry
from kdsl_runtime.toolchain import Toolchain, open_toolchain
from runtime.conftest import ADD_ONE, Module
from runtime.faults import Counted, deadly

# A fake assembler that notes which kernel it was asked for: one line in a file, atomically.
NOTING = (
    'while [ "$1" != -o ]; do last=$1; shift; done\nhead -n 1 "$last" >> "{log}"; cp "$last" "$2"'
)


def kernel(number: int) -> Module:
    """One of many kernels, told apart by a comment."""
    text = ADD_ONE.format(version="8.0", target="sm_80", threads=64)
    return Module(f"// id {number}\n{text}")


def build_all(root: Path, toolchain: Toolchain, kernels: int, seed: int, failed) -> None:
    """Build every kernel in an order of one's own; check each cubin."""
    try:
        numbers = list(range(kernels))
        random.Random(seed).shuffle(numbers)
        cache = Cache.at(root)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in numbers:
                entry = build(kernel(number), toolchain=toolchain, cache=cache)
                assert entry.payload.decode() == kernel(number).text
    except BaseException as problem:
        failed.put(repr(problem))
        raise


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("processes", "kernels"), [(4, 12), pytest.param(8, 200, marks=pytest.mark.slow)]
)
def test_cold_start(tmp_path: Path, fake_ptxas, method: str, processes: int, kernels: int) -> None:
    """Processes that begin together with an empty folder build each kernel exactly once."""
    log = tmp_path / "log"
    toolchain = open_toolchain(fake_ptxas(NOTING.format(log=log)))
    context = multiprocessing.get_context(method)
    failed = context.Queue()
    root = tmp_path / "cache"
    workers = [
        context.Process(target=build_all, args=(root, toolchain, kernels, seed, failed))
        for seed in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    assert failed.empty()
    built = Counter(log.read_text().split("\n")[:-1])
    assert built == Counter(f"// id {number}" for number in range(kernels))
    assert list(root.rglob("*.lock")) == list(root.rglob("*.tmp")) == []


KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(5)]


def entry_of(key: str) -> Entry:
    """The one right answer."""
    return Entry({"key": key}, key.encode() * 50)


def short_life(root: Path, keys: list[str]) -> None:
    """What is killed: a process that asks for some keys."""
    cache = Cache.at(root)
    for key in keys:
        assert cache.get_or_build(key, lambda key=key: entry_of(key)) == entry_of(key)


def killed_at(root: Path, at: int, keys: list[str]) -> int:
    """A child that dies before file operation `at`; its process number."""
    child = os.fork()
    if child:
        return child
    try:
        with deadly(at).installed():
            short_life(root, keys)
    finally:
        os._exit(7)  # reached when the life had fewer operations
    raise AssertionError


@pytest.mark.parametrize("kills", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_killed_at_any_file_operation(tmp_path: Path, kills: int) -> None:
    """After each kill all others read only right entries; at the end the orphans are swept."""
    root = tmp_path / "cache"
    with Counted().installed() as counted:
        short_life(tmp_path / "clean", KEYS)
    chance = random.Random(20)
    died, orphans = 0, 0
    while died < kills:
        keys = chance.sample(KEYS, len(KEYS))
        points = [chance.randrange(len(counted.names)) for _ in range(4)]
        children = [killed_at(root, at, keys) for at in points]  # four at a time
        ends = [os.waitpid(child, 0)[1] for child in children]
        died += sum(os.WIFSIGNALED(end) and os.WTERMSIG(end) == signal.SIGKILL for end in ends)
        assert all(os.WIFSIGNALED(end) or os.WEXITSTATUS(end) == 7 for end in ends)
        orphans += len(list(root.rglob("*.tmp")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a bad read would warn
            short_life(root, KEYS)
            cache = Cache.at(root)
            assert all(problem is None for _, problem in cache.disk.verify())
            for key in chance.sample(KEYS, 3):
                Path(cache.disk.path_of(key)).unlink()
        if died % 3:
            cache.disk.sweep()
    assert orphans > 0
    cache.disk.sweep()
    left = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".kdsl"]
    assert left == []
    print(f"{died} kills, {orphans} orphans seen")


def test_killed_holder_frees_the_others(tmp_path: Path) -> None:
    """A builder that is killed in the middle of its build does not stop those who wait."""
    root = tmp_path / "cache"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:

        def build_for_ever() -> Entry:
            os.write(writing, b"!")
            signal.pause()
            raise AssertionError

        Cache.at(root).get_or_build(KEYS[0], build_for_ever)
        os._exit(1)
    os.read(reading, 1)
    assert len(list(root.rglob("*.lock"))) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    short_life(root, KEYS[:1])
    assert list(root.rglob("*.lock")) == []
