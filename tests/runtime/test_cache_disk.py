"""Entries on disk: intact or rebuilt, private or refused."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import warnings
from pathlib import Path

import pytest

from kdsl_core.errors import CacheError
from kdsl_runtime.cache import Cache, CorruptEntry, DiskCache, Entry, KdslCacheWarning
from kdsl_runtime.cache import disk as disk_module
from kdsl_runtime.cache.entry import MAGIC, decode, encode
from kdsl_runtime.cache.layers import default_cache
from kdsl_runtime.cache.location import default_directory

KEY = hashlib.sha256(b"one").hexdigest()
OTHER = hashlib.sha256(b"two").hexdigest()
ENTRY = Entry({"entry": "gemm", "report": {"registers": 168}}, b"\x7fELF cubin")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache directory that does not exist yet."""
    return tmp_path / "cache"


def _built(cache: Cache, key: str = KEY) -> list[Entry]:
    """What `build` made during one request; also checks that the request is answered rightly."""
    made: list[Entry] = []

    def build() -> Entry:
        made.append(ENTRY)
        return ENTRY

    assert cache.get_or_build(key, build) == ENTRY
    return made


def test_round_trip(root):
    """What was put is found by another object, as from another process."""
    DiskCache(root).put(KEY, ENTRY)
    assert DiskCache(root).get(KEY) == ENTRY
    assert DiskCache(root).get(OTHER) is None


def test_file_format(root):
    """Magic, version, lengths, JSON, payload and checksum, as the document says."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    data = Path(disk.path_of(KEY)).read_bytes()
    assert data == encode(KEY, ENTRY)
    assert data[:8] == MAGIC and data[8:12] == b"\2\0\0\0"
    assert data[-32:] == hashlib.blake2b(data[:-32], digest_size=32).digest()
    assert data[:-32].endswith(ENTRY.payload)
    assert str(root).encode() not in data


def test_modes(root):
    """Directories are 0700 and files 0600, whatever the umask is."""
    former = os.umask(0)
    try:
        disk = DiskCache(root)
        disk.put(KEY, ENTRY)
    finally:
        os.umask(former)
    made = [root, *root.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_every_flipped_byte_is_found(root):
    """Each of the bytes changed alone: the entry is set aside with one warning and built again."""
    good = encode(KEY, ENTRY)
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x20
        Path(disk.path_of(KEY)).write_bytes(bad)
        with pytest.warns(KdslCacheWarning) as caught:
            assert len(_built(Cache(disk))) == 1
        assert len(caught) == 1
        assert Path(disk.path_of(KEY)).read_bytes() == good


def test_every_truncation_is_found(root):
    """Each shorter length, and one byte too many, is no entry."""
    good = encode(KEY, ENTRY)
    for length in range(len(good)):
        with pytest.raises(CorruptEntry):
            decode(good[:length], KEY)
    with pytest.raises(CorruptEntry):
        decode(good + b"\0", KEY)


def test_an_entry_under_another_name_is_refused():
    """A file copied to another key's name does not run as that kernel."""
    with pytest.raises(CorruptEntry, match="belongs to the key"):
        decode(encode(KEY, ENTRY), OTHER)


def test_bad_entry_is_kept_for_inspection(root):
    """The bad file is renamed, not deleted."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    Path(disk.path_of(KEY)).write_bytes(b"garbage")
    with pytest.warns(KdslCacheWarning, match="set aside"):
        assert disk.get(KEY) is None
    assert Path(disk.path_of(KEY)).with_suffix(".bad").read_bytes() == b"garbage"


def test_relocatable(root, tmp_path):
    """A directory that was moved is as good as before."""
    DiskCache(root).put(KEY, ENTRY)
    moved = root.rename(tmp_path / "elsewhere")
    assert DiskCache(moved).get(KEY) == ENTRY


def test_hit_does_not_build(root):
    """The second process reads what the first has built."""
    assert len(_built(Cache.at(root))) == 1
    assert len(_built(Cache.at(root))) == 0


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_directory_that_others_may_write_is_refused(root, mode):
    """Group- and world-writable directories are an error for the disk layer …"""
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(CacheError) as caught:
        DiskCache(root)
    assert caught.value.code == "K722"
    assert f"{mode:04o}" in caught.value.message


def test_refused_directory_degrades_to_memory(root):
    """… and one warning, not a failure, for a launch."""
    root.mkdir()
    root.chmod(0o777)
    with pytest.warns(KdslCacheWarning, match="K722") as caught:
        cache = Cache.at(root)
        assert [len(_built(cache)) for _ in range(2)] == [1, 0]
    assert len(caught) == 1
    assert list(root.iterdir()) == []


def test_foreign_directory_is_refused(root, monkeypatch):
    """A directory of another user is an error that names both users."""
    DiskCache(root)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(CacheError, match=f"belongs to user {owner}") as caught:
        DiskCache(root)
    assert caught.value.code == "K721"


def test_file_in_place_of_the_directory(root):
    """A file where the directory should be is named as such."""
    root.write_text("")
    with pytest.raises(CacheError, match="not a directory") as caught:
        DiskCache(root)
    assert caught.value.code == "K720"


def test_symlinked_entry_is_refused_and_replaced(root, tmp_path):
    """A planted link is never followed; the launch builds and puts a file in its place."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    path = Path(disk.path_of(KEY))
    planted = path.rename(tmp_path / "planted")
    path.symlink_to(planted)
    with pytest.raises(CacheError, match="symbolic link") as caught:
        disk.get(KEY)
    assert caught.value.code == "K723"
    with pytest.warns(KdslCacheWarning, match="K723"):
        assert len(_built(Cache(disk))) == 1
    assert not path.is_symlink() and disk.get(KEY) == ENTRY


def test_symlinked_shard_is_refused(root, tmp_path):
    """A link in place of a folder inside the cache is not written through."""
    disk = DiskCache(root)
    disk.put(OTHER, ENTRY)
    Path(disk.path_of(KEY)).parent.symlink_to(tmp_path)
    with pytest.raises(CacheError, match="symbolic link"):
        disk.put(KEY, ENTRY)


def test_entry_that_others_may_write_is_refused(root):
    """A file with a loose mode may hold anything."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    Path(disk.path_of(KEY)).chmod(0o666)
    with pytest.raises(CacheError, match="not ours alone"):
        disk.get(KEY)


def test_fifo_in_place_of_an_entry_does_not_hang(root):
    """Something that is no file is refused without waiting for it."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    Path(disk.path_of(KEY)).unlink()
    os.mkfifo(disk.path_of(KEY), 0o600)
    with pytest.raises(CacheError, match="not ours alone"):
        disk.get(KEY)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("fsync", errno.ENOSPC),
        ("replace", errno.ESTALE),
        ("mkdir", errno.EROFS),
        ("open", errno.EACCES),
        ("open", errno.EIO),
        ("utime", errno.EPERM),
    ],
)
def test_failing_file_system_degrades_to_memory(root, monkeypatch, call, code):
    """Each file operation failing: right results, built once, at most one warning, no rubbish."""
    cache = Cache.at(root)

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [len(_built(cache)) for _ in range(2)] == [1, 0]
        assert len(_built(cache, OTHER)) == 1
    monkeypatch.undo()
    assert [warning.category for warning in caught] in ([], [KdslCacheWarning])
    assert list(root.rglob("*.tmp")) == []


def test_read_only_directory_still_serves(root, monkeypatch):
    """Entries of a directory that cannot be written are used; new ones stay in memory."""
    DiskCache(root).put(KEY, ENTRY)
    cache = Cache.at(root)
    real_open = os.open

    def read_only(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert len(_built(cache)) == 0
    with pytest.warns(KdslCacheWarning, match="memory only") as caught:
        assert [len(_built(cache, OTHER)) for _ in range(2)] == [1, 0]
    assert len(caught) == 1


def test_no_home_means_memory_with_one_warning():
    """Without HOME there is no directory, one warning, and a working cache."""
    assert default_directory({}) is None
    with pytest.warns(KdslCacheWarning, match="HOME") as caught:
        cache = Cache.at(default_directory({}))
        assert [len(_built(cache)) for _ in range(2)] == [1, 0]
    assert len(caught) == 1


def test_default_directory_order(tmp_path):
    """KDSL_CACHE_DIR, then XDG_CACHE_HOME, then HOME."""
    every = {"KDSL_CACHE_DIR": "/k", "XDG_CACHE_HOME": "/x", "HOME": "/h"}
    assert default_directory(every) == "/k"
    del every["KDSL_CACHE_DIR"]
    assert default_directory(every) == "/x/kdsl"
    del every["XDG_CACHE_HOME"]
    assert default_directory(every) == "/h/.cache/kdsl"


def test_default_cache_follows_the_environment(tmp_path):
    """One object per directory, and the size bound that the environment names."""
    first = {"KDSL_CACHE_DIR": str(tmp_path / "a"), "KDSL_CACHE_MIB": "3"}
    assert default_cache(first) is default_cache(first)
    assert default_cache(first).disk.max_bytes == 3 << 20
    with pytest.raises(CacheError, match="KDSL_CACHE_MIB"):
        default_cache({"KDSL_CACHE_DIR": str(tmp_path / "b"), "KDSL_CACHE_MIB": "lots"})


def test_prune_removes_the_least_recently_used(root):
    """Old entries go until the bound is kept; a read makes an entry young."""
    disk = DiskCache(root)
    keys = [hashlib.sha256(bytes([n])).hexdigest() for n in range(4)]
    for age, key in enumerate(keys):
        disk.put(key, ENTRY)
        os.utime(disk.path_of(key), ns=(age, age))
    assert disk.get(keys[0]) == ENTRY
    one = Path(disk.path_of(keys[0])).stat().st_size
    assert disk.prune(3 * one) == 2
    assert [file.key for file in disk.files()] == [keys[3], keys[0]]


def test_writes_keep_the_bound(root, monkeypatch):
    """Writing more than the bound prunes by itself."""
    monkeypatch.setattr(disk_module, "_WRITES_BETWEEN_PRUNES", 2)
    disk = DiskCache(root, max_bytes=1000)
    for number in range(9):
        disk.put(hashlib.sha256(bytes([number])).hexdigest(), ENTRY)
    assert sum(file.bytes for file in disk.files()) <= 1000


def test_prune_sweeps_what_killed_processes_left(root):
    """Old temporary files and free lock files go; a young temporary file may be in use."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    shard = Path(disk.path_of(KEY)).parent
    old, young = shard / f".{KEY}.1.aa.tmp", shard / f".{KEY}.2.bb.tmp"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (1, 1))
    locks = root / "v2" / "locks"
    with disk.lock(OTHER):
        (locks / f"{KEY}.lock").write_bytes(b"")
        disk.prune()
        assert [path.name for path in locks.iterdir()] == [f"{OTHER}.lock"]
    assert not old.exists() and young.exists()


def test_verify_and_clear(root):
    """Verify names each bad entry once; clear leaves nothing behind."""
    disk = DiskCache(root)
    disk.put(KEY, ENTRY)
    disk.put(OTHER, ENTRY)
    Path(disk.path_of(OTHER)).write_bytes(b"?")
    found = {file.key: problem for file, problem in disk.verify()}
    assert found[KEY] is None and "too few" in found[OTHER]
    assert disk.clear() == 1
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_directory_removed_while_in_use(root):
    """`rm -rf` of the cache between two builds costs nothing but the entries."""
    cache = Cache.at(root)
    _built(cache)
    assert cache.disk.clear() == 1
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir()
    root.rmdir()
    assert len(_built(cache, OTHER)) == 1
    assert cache.disk.get(OTHER) == ENTRY
