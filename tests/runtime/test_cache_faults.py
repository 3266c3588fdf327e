"""Disks that are full, read-only, foreign or failing: right results, at most one warning each."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdsl_core.digests import hash256
from kdsl_core.errors import CacheError
from kdsl_runtime.cache import Cache, DiskCache, Entry, KdslCacheWarning, SealedCache
from kdsl_runtime.cache.entry import encode
from runtime.faults import Counted, failing

KEY, OTHER = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
ENTRY = Entry({"entry": "gemm"}, b"\x7fELF cubin")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do what is tested")


def ask(cache: Cache, key: str = KEY, entry: Entry = ENTRY) -> int:
    """How often one request builds; its answer is checked."""
    built: list[int] = []

    def build() -> Entry:
        built.append(1)
        return entry

    assert cache.get_or_build(key, build) == entry
    return len(built)


def a_life(root: Path) -> None:
    """A process that builds one entry and finds another, and one that finds both."""
    first, second = Cache.at(root), Cache.at(root)
    assert ask(first) <= 1 and ask(first, OTHER) <= 1
    assert ask(second) <= 1 and ask(second, OTHER) <= 1


def warned(root: Path, counted: Counted) -> list[str]:
    """The warnings of a life with these operations; all must be the cache's."""
    DiskCache(root).put(OTHER, ENTRY)
    with warnings.catch_warnings(record=True) as caught, counted.installed():
        warnings.simplefilter("always")
        a_life(root)
    assert {warning.category for warning in caught} <= {KdslCacheWarning}
    return [str(warning.message) for warning in caught]


CODES = (errno.ENOSPC, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.EIO)


def test_every_operation_may_fail(tmp_path: Path) -> None:
    """Each file operation of a life, failing alone with each error: nothing but a warning shows."""
    clean = Counted()
    assert warned(tmp_path / "clean", clean) == []
    assert len(clean.names) > 40
    for number in range(len(clean.names)):
        for code in CODES:
            root = tmp_path / f"{number}-{code}"
            assert len(warned(root, failing(number, code))) <= 1, (clean.names[number], code)
            disk = DiskCache(root)
            assert ask(Cache(disk)) <= 1 and disk.get(KEY) == ENTRY  # as good as ever afterwards
    print(f"{len(clean.names)} operations × {len(CODES)} errors")


def test_every_operation_may_fail_from_some_point_on(tmp_path: Path) -> None:
    """A disk that breaks and stays broken: each of the two processes warns at most once."""
    for number in range(0, 60, 3):
        broken = failing(number, errno.ESTALE)
        broken._at = _From(number)
        assert len(warned(tmp_path / str(number), broken)) <= 2


class _From(int):
    """A number that equals itself and every larger one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other >= int(self)

    __hash__ = int.__hash__


def test_flipped_bytes_and_cut_files(tmp_path: Path) -> None:
    """Each changed byte and each length: found, warned of once, set aside and built again."""
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEY, ENTRY)
    good, path = encode(KEY, ENTRY), Path(disk.path_of(KEY))
    flipped = [good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :] for i in range(len(good))
               for bit in (1, 0x80)]  # fmt: skip
    cut = [good[:length] for length in range(len(good))]
    for bad in (*flipped, *cut, good + b"\0"):
        path.write_bytes(bad)
        with pytest.warns(KdslCacheWarning) as caught:
            assert ask(Cache(disk)) == 1
        assert len(caught) == 1
        assert path.read_bytes() == good
        assert path.with_suffix(".bad").read_bytes() == bad
    print(f"{len(flipped)} flips, {len(cut) + 1} lengths")


def test_valid_checksum_over_nonsense(tmp_path: Path) -> None:
    """Metadata that is no JSON of kdsl's is a bad entry, not a crash."""
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEY, ENTRY)
    good = encode(KEY, ENTRY)
    for text in (b"[]", b"{", b'{"key": 1}', b"\xff", b'{"key":"x","metadata":3}'):
        body = good[:12] + len(text).to_bytes(4, "little") + good[16:24] + text + ENTRY.payload
        Path(disk.path_of(KEY)).write_bytes(body + hash256(body).digest())
        with pytest.warns(KdslCacheWarning, match="metadata"):
            assert ask(Cache(disk)) == 1


@root_only
def test_full_disk(tmp_path: Path) -> None:
    """On a file system without room, what fits is kept; the rest costs one warning."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", mount], capture_output=True
    )
    if done.returncode:
        pytest.skip("this root may not mount a tmpfs")
    try:
        large = Entry({}, bytes(200_000))
        cache = Cache.at(mount)
        assert ask(cache) == 1
        with pytest.warns(KdslCacheWarning, match="No space left") as caught:
            assert [ask(cache, OTHER, large), ask(cache, OTHER, large)] == [1, 0]
            assert ask(Cache(cache.disk), OTHER, large) == 1
        assert len(caught) == 2  # one of each cache
        assert ask(Cache.at(mount)) == 0
        assert [p for p in mount.rglob("*") if p.is_file()] == [Path(cache.disk.path_of(KEY))]
    finally:
        subprocess.run(["umount", mount], check=True)


AS_NOBODY = """
import os, sys, warnings
from pathlib import Path
from kdsl_runtime.cache import Cache, DiskCache, Entry, SealedCache
os.setgid(65534); os.setuid(65534)  # afterwards: another user may not read this checkout
root, key = Path(sys.argv[1]), sys.argv[2]
def build(): print("built"); return Entry({}, b"mine")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    sealed = [SealedCache(root)] if sys.argv[3] == "sealed" else []
    cache = Cache(sealed=sealed) if sealed else Cache.at(root)
    print(bytes(cache.get_or_build(key, build).payload))
print(len(caught), *(str(w.message)[-200:] for w in caught))
"""


def as_nobody(root: Path, role: str) -> str:
    """What a process of another user says of a folder of ours."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", AS_NOBODY, str(root), KEY, role]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@root_only
def test_read_only_folder_of_another_user(open_folder: Path) -> None:
    """What root baked is a good layer for everybody, and no good as one's own cache."""
    root = open_folder / "cache"
    DiskCache(root).put(KEY, ENTRY)
    subprocess.run(["chmod", "-R", "a+rX", root], check=True)
    assert as_nobody(root, "sealed").splitlines() == [str(ENTRY.payload), "0"]
    built, answer, caught = as_nobody(root, "own").split("\n", 2)
    assert (built, answer) == ("built", "b'mine'")
    assert caught.startswith("1 ") and "set KDSL_CACHE_DIR to a directory of your own" in caught


@root_only
def test_foreign_entries_are_refused(tmp_path: Path) -> None:
    """A file or folder that another user owns is not run, wherever it lies."""
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEY, ENTRY)
    os.chown(disk.path_of(KEY), 65534, 65534)
    with pytest.raises(CacheError) as caught:
        disk.get(KEY)
    assert caught.value.code == "K723"
    with pytest.warns(KdslCacheWarning, match="K723"):
        assert ask(Cache(disk)) == 1
    assert disk.get(KEY) == ENTRY  # replaced by our own
    os.chown(Path(disk.path_of(KEY)).parent, 65534, 65534)
    with pytest.raises(CacheError) as caught:
        SealedCache(disk.root).get(KEY)
    assert caught.value.code == "K721"


@root_only
def test_read_only_mount(tmp_path: Path) -> None:
    """On a file system that is mounted read-only, entries are found and new ones stay in memory."""
    root = tmp_path / "cache"
    DiskCache(root).put(KEY, ENTRY)
    bound = subprocess.run(["mount", "--bind", root, root], capture_output=True)
    if bound.returncode:
        pytest.skip("this root may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)
        cache = Cache.at(root)
        assert ask(cache) == 0
        with pytest.warns(KdslCacheWarning, match="Read-only file system") as caught:
            assert [ask(cache, OTHER), ask(cache, OTHER)] == [1, 0]
        assert len(caught) == 1
    finally:
        subprocess.run(["umount", root], check=True)


@pytest.mark.parametrize("skew_s", [-(10**9), 10**8])
def test_clocks_that_differ(tmp_path: Path, skew_s: int) -> None:
    """Files from hosts in the past or the future are read, kept within the bound, and swept."""
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEY, ENTRY)
    then = time.time() + skew_s
    orphan = Path(disk.path_of(KEY)).with_name(f".{KEY}.1.aa.tmp")
    orphan.write_bytes(b"")
    for path in (Path(disk.path_of(KEY)), orphan):
        os.utime(path, (then, then))
    assert ask(Cache(disk)) == 0
    assert disk.prune() == 0
    assert not orphan.exists()
    os.utime(disk.path_of(KEY), (then, then))
    assert disk.prune(0) == 1


def test_two_versions_in_one_folder(tmp_path: Path, monkeypatch) -> None:
    """Each version finds its own entries; the bound counts, and clearing removes, those of both."""
    from kdsl_runtime.cache import disk as disk_module
    from kdsl_runtime.cache import entry, files

    root = tmp_path / "cache"
    assert ask(Cache.at(root)) == 1
    for module in (disk_module, entry, files):
        monkeypatch.setattr(module, "FORMAT_VERSION", 3)
    newer = Entry({"new": True}, b"another layout")
    assert ask(Cache.at(root), KEY, newer) == 1
    assert ask(Cache.at(root), KEY, newer) == 0
    monkeypatch.undo()
    assert ask(Cache.at(root)) == 0
    assert DiskCache(root).prune(0) == 2
