"""Read-only folders, remote stores and archives: the same entries from elsewhere."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from kdsl_core.errors import CacheError
from kdsl_runtime import metrics
from kdsl_runtime.cache import Cache, DiskCache, Entry, KdslCacheWarning, RemoteCache, SealedCache
from kdsl_runtime.cache.archive import export_entries, import_entries
from kdsl_runtime.cache.entry import encode
from kdsl_runtime.cache.layers import default_cache
from kdsl_runtime.cli import main

KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
ENTRY = Entry({"kind": "cubin", "entry": "gemm", "target": "sm_90a"}, b"\x7fELF cubin")


def ask(cache: Cache, key: str = KEYS[0]) -> int:
    """How often one request builds; its answer is checked."""
    built: list[int] = []

    def build() -> Entry:
        built.append(1)
        return ENTRY

    assert cache.get_or_build(key, build) == ENTRY
    return len(built)


def filled(root: Path, count: int = 1) -> DiskCache:
    """A folder with some entries."""
    disk = DiskCache(root)
    for key in KEYS[:count]:
        disk.put(key, ENTRY)
    return disk


def states(root: str) -> dict[Path, tuple[int, int]]:
    """Every file with its size and time of change."""
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in Path(root).rglob("*")}


# -- read-only folders -------------------------------------------------------------------------
def test_sealed_folder_is_found_and_not_touched(tmp_path):
    """An entry of a lower layer is used as it lies; new ones go to the writable one."""
    sealed = SealedCache(filled(tmp_path / "baked").root)
    before = states(sealed.root)
    metrics.reset()
    disk = DiskCache(tmp_path / "own")
    cache = Cache(disk, sealed=[sealed])
    assert [ask(cache), ask(cache, KEYS[1])] == [0, 1]
    assert [file.key for file in disk.files()] == [KEYS[1]]
    assert states(sealed.root) == before
    assert metrics.snapshot()["sealed_hits"] == 1


def test_layers_are_asked_in_order(tmp_path):
    """The writable folder hides the sealed ones, and the first of these the second."""
    lower = [SealedCache(filled(tmp_path / name).root) for name in "ab"]
    other = Entry({}, b"other")
    DiskCache(lower[1].root).put(KEYS[0], other)
    assert ask(Cache(sealed=lower)) == 0
    DiskCache(tmp_path / "own").put(KEYS[0], other)
    own = Cache(DiskCache(tmp_path / "own"), sealed=lower)
    assert own.get_or_build(KEYS[0], lambda: ENTRY) == other


def test_sealed_folder_serves_without_a_home(tmp_path):
    """A container without a writable place lives on what was baked into it."""
    root = filled(tmp_path / "baked").root
    with pytest.warns(KdslCacheWarning, match="HOME"):
        cache = default_cache({"KDSL_CACHE_LAYERS": f"{tmp_path / 'none'}{os.pathsep}{root}"})
    assert ask(cache) == 0


def test_bad_entry_in_a_sealed_folder(tmp_path):
    """It is warned of, left where it lies, and built above."""
    disk = filled(tmp_path / "baked")
    Path(disk.path_of(KEYS[0])).write_bytes(b"garbage")
    own = DiskCache(tmp_path / "own")
    with pytest.warns(KdslCacheWarning, match="above this layer") as caught:
        assert ask(Cache(own, sealed=[SealedCache(disk.root)])) == 1
    assert len(caught) == 1
    assert Path(disk.path_of(KEYS[0])).read_bytes() == b"garbage"
    assert ask(Cache(own, sealed=[SealedCache(disk.root)])) == 0


@pytest.mark.parametrize("part", ["", "v2", "shard", "file"])
def test_sealed_folder_that_others_may_write(tmp_path, part):
    """The folder, those inside and the file must all be safe from others."""
    disk = filled(tmp_path / "baked")
    path = Path(disk.path_of(KEYS[0]))
    parts = {"": Path(disk.root), "v2": path.parents[1], "shard": path.parent, "file": path}
    parts[part].chmod(0o777)
    with pytest.warns(KdslCacheWarning, match="K72[23]") as caught:
        assert ask(Cache(sealed=[SealedCache(disk.root)])) == 1
    assert len(caught) == 1


# -- remote stores -----------------------------------------------------------------------------
@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path) -> Iterator[str]:
    """An empty store."""
    if request.param == "file":
        yield f"file://{tmp_path}/store"
        return
    yield "memory://kdsl/store"
    fsspec.filesystem("memory").rm("/kdsl", recursive=True)


def put_raw(url: str, key: str, data: bytes) -> None:
    """Bytes where a store would keep an entry."""
    system, root = fsspec.url_to_fs(url)
    system.makedirs(f"{root}/v2/{key[:2]}", exist_ok=True)
    system.pipe_file(f"{root}/v2/{key[:2]}/{key}.kdsl", data)


def test_remote_entries_are_kept_on_the_disk(url, tmp_path):
    """What another machine pushed is fetched once, then found nearby."""
    pushing = Cache(DiskCache(tmp_path / "a"), remote=RemoteCache(url, writable=True))
    fetching = Cache(DiskCache(tmp_path / "b"), remote=RemoteCache(url))
    assert [ask(pushing), ask(fetching)] == [1, 0]
    assert fetching.disk.get(KEYS[0]) == ENTRY
    system, root = fsspec.url_to_fs(url)
    system.rm(root, recursive=True)
    system.makedirs(root)
    assert ask(Cache(DiskCache(tmp_path / "b"), remote=RemoteCache(url))) == 0


def test_remote_is_written_only_when_asked(url, tmp_path):
    """A plain remote layer is never changed; a writable one holds whole files alone."""
    assert ask(Cache(remote=RemoteCache(url))) == 1
    system, root = fsspec.url_to_fs(url)
    assert not system.exists(f"{root}/v2")
    assert ask(Cache(remote=RemoteCache(url, writable=True))) == 1
    names = [path.rpartition("/")[2] for path in system.find(root)]
    assert names == [f"{KEYS[0]}.kdsl"]


def test_every_bad_remote_entry_is_found(url):
    """Each flipped byte and each length: warned of, and built here."""
    good = encode(KEYS[0], ENTRY)
    bad = [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(len(good))]
    for data in (*bad, *(good[:length] for length in range(len(good)))):
        put_raw(url, KEYS[0], data)
        with pytest.warns(KdslCacheWarning, match="built here") as caught:
            assert ask(Cache(remote=RemoteCache(url))) == 1
        assert len(caught) == 1


class Broken:
    """A store whose every operation fails."""

    def __getattr__(self, name):
        def fail(*args, **kwargs):
            raise RuntimeError("connection reset by peer")

        return fail


@pytest.mark.parametrize("writable", [False, True])
def test_store_that_does_not_answer(monkeypatch, writable):
    """One warning with the store's own words, and kernels are built."""
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (Broken(), "x"))
    cache = Cache(remote=RemoteCache("s3://bucket", writable))
    with pytest.warns(KdslCacheWarning, match="K712.*reset by peer") as caught:
        assert [ask(cache, key) for key in KEYS] == [1, 1, 1, 1]
    assert len(caught) == 1
    with pytest.raises(CacheError) as raised:
        RemoteCache("s3://bucket", True).put(KEYS[0], ENTRY)
    assert raised.value.code == "K712"


def test_store_without_its_package(monkeypatch):
    """Without fsspec, or the store's driver, the warning says what to install or correct."""
    with pytest.warns(KdslCacheWarning, match="K712"):
        assert ask(Cache(remote=RemoteCache("no-such-protocol://x"))) == 1
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CacheError) as raised:
        RemoteCache("memory://kdsl").get(KEYS[0])
    assert raised.value.code == "K711"
    with pytest.warns(KdslCacheWarning, match=r"kdsl-runtime\[remote\]"):
        assert ask(Cache(remote=RemoteCache("memory://kdsl"))) == 1


def test_environment_names_the_layers(tmp_path):
    """KDSL_CACHE_LAYERS, KDSL_CACHE_REMOTE and KDSL_CACHE_REMOTE_PUSH."""
    names = {
        "KDSL_CACHE_DIR": str(tmp_path / "own"),
        "KDSL_CACHE_LAYERS": os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]),
        "KDSL_CACHE_REMOTE": f"file://{tmp_path}/store",
        "KDSL_CACHE_REMOTE_PUSH": "1",
    }
    cache = default_cache(names)
    assert [layer.root for layer in cache.sealed] == [str(tmp_path / name) for name in "ab"]
    assert cache.remote.url == names["KDSL_CACHE_REMOTE"] and cache.remote.writable
    assert default_cache(names) is cache
    assert default_cache({**names, "KDSL_CACHE_LAYERS": ""}) is not cache


# -- what may be used and kept -----------------------------------------------------------------
def test_entries_are_accepted_or_replaced(tmp_path):
    """`accept` is asked in each layer; an entry that it refuses is built anew and takes over."""
    cache = Cache(DiskCache(tmp_path))
    assert ask(cache) == 1
    newer = Entry({"n": 2}, b"newer")
    for asked in (cache, Cache(DiskCache(tmp_path))):
        got = asked.get_or_build(KEYS[0], lambda: newer, accept=lambda entry: entry == newer)
        assert got == newer
    assert Cache(DiskCache(tmp_path)).get_or_build(KEYS[0], lambda: ENTRY) == newer


def test_entries_that_nobody_keeps(tmp_path):
    """`keep` leaves nothing behind, in memory, on the disk and in the store."""
    remote = RemoteCache(f"file://{tmp_path}/store", writable=True)
    cache = Cache(DiskCache(tmp_path / "own"), remote=remote)
    for _ in range(2):
        assert cache.get_or_build(KEYS[0], lambda: ENTRY, keep=lambda entry: False) == ENTRY
    assert len(cache.memory) == 0
    assert list(tmp_path.rglob("*.kdsl")) == []


# -- archives ----------------------------------------------------------------------------------
def test_archive_carries_a_cache(tmp_path):
    """Export and import give the same entries; equal caches give equal archives."""
    one, two = filled(tmp_path / "a", 3), filled(tmp_path / "b", 3)
    assert export_entries(one, tmp_path / "a.tar") == export_entries(two, tmp_path / "b.tar") == 3
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    fresh = DiskCache(tmp_path / "c")
    assert {problem for _, problem in import_entries(fresh, tmp_path / "a.tar")} == {None}
    assert [fresh.get(key) for key in KEYS] == [ENTRY] * 3 + [None]


def archive(path: Path, members: dict[str, bytes]) -> Path:
    """A tar with these members."""
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo(f"v1/aa/{KEYS[3]}.kdsl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def test_archive_is_not_trusted(tmp_path):
    """Names lead nowhere, links are passed over, damaged entries are refused one by one."""
    good = encode(KEYS[0], ENTRY)
    members = {
        f"../../outside/{KEYS[0]}.kdsl": good,
        f"v1/{KEYS[1][:2]}/{KEYS[1]}.kdsl": good,  # under another key's name
        f"v1/{KEYS[2][:2]}/{KEYS[2]}.kdsl": good[:-1],
        "../../evil.py": b"print('evil')",
    }
    disk = DiskCache(tmp_path / "deep" / "cache")
    found = dict(import_entries(disk, archive(tmp_path / "x.tar", members)))
    assert [problem is None for problem in found.values()] == [True, False, False, False]
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"x.tar", f"{KEYS[0]}.kdsl"}
    assert disk.get(KEYS[0]) == ENTRY


def test_archive_with_a_huge_member(tmp_path, monkeypatch):
    """A member that no kernel could need is not read."""
    monkeypatch.setattr("kdsl_runtime.cache.archive._LARGEST_BYTES", 10)
    path = archive(tmp_path / "x.tar", {f"{KEYS[0]}.kdsl": encode(KEYS[0], ENTRY)})
    ((_, problem),) = import_entries(DiskCache(tmp_path / "c"), path)
    assert "at most 10" in problem


def test_archives_that_do_not_work(tmp_path, monkeypatch):
    """Each failure has its code."""
    disk = filled(tmp_path / "a")
    (tmp_path / "no.tar").write_bytes(b"no tar" * 500)
    for path, code in ((tmp_path / "no.tar", "K714"), (tmp_path / "none.tar", "K714")):
        with pytest.raises(CacheError) as caught:
            list(import_entries(disk, path))
        assert caught.value.code == code
    with pytest.raises(CacheError) as caught:
        export_entries(disk, tmp_path / "no" / "folder" / "x.tar")
    assert caught.value.code == "K713"
    export_entries(disk, tmp_path / "good.tar")

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kdsl_runtime.cache.disk.write_file", full)
    with pytest.raises(CacheError) as caught:
        list(import_entries(disk, tmp_path / "good.tar"))
    assert caught.value.code == "K715"


# -- the command -------------------------------------------------------------------------------
def kdsl(*words: object) -> tuple[int, str]:
    """Exit code and output of `kdsl cache …`."""
    done = CliRunner().invoke(main, ["cache", *map(str, words)])
    return done.exit_code, done.output


def test_command_exports_and_imports(tmp_path):
    """From one folder to another; a damaged entry is named and makes the exit code 1."""
    filled(tmp_path / "a", 2)
    tar = tmp_path / "kernels.tar"
    code, text = kdsl("--dir", tmp_path / "a", "export", tar)
    assert (code, text.split()[0]) == (0, "2")
    code, text = kdsl("--dir", tmp_path / "b", "import", tar)
    assert (code, text) == (0, "2 entries taken over, 0 refused\n")
    assert kdsl("--dir", tmp_path / "b", "verify")[1] == "2 good, 0 bad\n"
    data = tar.read_bytes()
    tar.write_bytes(data.replace(b"ELF", b"FLE", 1))
    code, text = kdsl("--dir", tmp_path / "c", "import", tar)
    assert code == 1 and "checksum" in text and "1 entries taken over, 1 refused" in text


def test_command_lists_both_kinds(tmp_path):
    """Cubins with their registers, PTX with its kernel's name."""
    disk = DiskCache(tmp_path)
    facts = {"entry": "softmax", "target": "sm_90"}
    disk.put(KEYS[0], Entry({"kind": "ptx", "facts": facts}, b".version"))
    report = {"registers": 40, "spill_stores": 0, "spill_loads": 0}
    disk.put(KEYS[1], Entry({**ENTRY.metadata, "report": report}, b"cubin"))
    code, text = kdsl("--dir", tmp_path, "ls")
    assert code == 0
    rows = {line.split()[1]: line.split()[2:5] for line in text.splitlines()[1:] if line.strip()}
    assert rows["ptx"][:2] == ["softmax", "sm_90"]
    assert rows["cubin"] == ["gemm", "sm_90a", "40"]


def test_verify_names_what_is_refused(tmp_path):
    """An entry that others may write is reported, not run into."""
    disk = filled(tmp_path / "a", 2)
    Path(disk.path_of(KEYS[1])).chmod(0o666)
    code, text = kdsl("--dir", disk.root, "verify")
    assert code == 1
    assert "refused" in text and "1 good, 1 bad" in text


def test_moved_and_copied_folders(tmp_path):
    """An entry holds no path, user or machine: any copy of the folder is as good."""
    disk = filled(tmp_path / "a", 2)
    shutil.copytree(disk.root, tmp_path / "copy")
    (tmp_path / "copy").chmod(0o700)
    assert [ask(Cache.at(tmp_path / "copy"), key) for key in KEYS[:2]] == [0, 0]
    data = Path(disk.path_of(KEYS[0])).read_bytes()
    words = (str(tmp_path), os.environ.get("HOME", "/root"), os.uname().nodename)
    assert not any(word.encode() in data for word in words)
