"""What was found out about files is remembered until a file changes, and never trusted blindly."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from kdsl_core.lang.file_states import state_of_files
from kdsl_runtime import noted
from kdsl_runtime.cache import DiskCache, default_cache


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """A cache of its own, which `noted` uses."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    disk = default_cache().disk
    assert disk is not None
    return disk


def refuse() -> str:
    """What must not be asked."""
    raise AssertionError("asked again")


def test_a_note_holds_for_its_state(disk: DiskCache) -> None:
    """It is asked once per state, and subjects do not meet."""
    assert noted("a", "1", lambda: "first\nline") == "first\nline"
    assert noted("a", "1", refuse) == "first\nline"
    assert noted("b", "1", lambda: "other") == "other"
    assert noted("a", "2", lambda: "second") == "second"
    assert noted("a", "1", lambda: "first again") == "first again"
    assert os.stat(disk.note_path("a")).st_mode & 0o777 == 0o600


def test_without_a_state_nothing_is_kept(disk: DiskCache) -> None:
    """Files that are too young, or no directory to trust: asked each time."""
    assert noted("a", None, lambda: "x") == "x"
    assert not Path(disk.note_path("a")).exists()


@pytest.mark.parametrize("data", [b"", b"\n", b"garbage", b"\xff\n\xff"])
def test_damage_is_found(disk: DiskCache, data: bytes) -> None:
    """A damaged note counts as none, and is written anew."""
    noted("a", "1", lambda: "text")
    Path(disk.note_path("a")).write_bytes(data)
    assert noted("a", "1", lambda: "anew") == "anew"
    assert noted("a", "1", refuse) == "anew"


def test_every_flipped_byte_is_found(disk: DiskCache) -> None:
    """No damage of one byte gives another text."""
    noted("a", "1", lambda: "text")
    whole = Path(disk.note_path("a")).read_bytes()
    for at in range(len(whole)):
        Path(disk.note_path("a")).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert noted("a", "1", lambda: "anew") == "anew"


def test_foreign_notes_are_not_read(disk: DiskCache, tmp_path: Path) -> None:
    """A link, and a file that others may write, are ignored without an error."""
    noted("a", "1", lambda: "text")
    Path(disk.note_path("a")).chmod(0o666)
    assert noted("a", "1", lambda: "mine") == "mine"
    target = Path(disk.note_path("a")).rename(tmp_path / "elsewhere")
    Path(disk.note_path("a")).symlink_to(target)
    assert noted("a", "1", lambda: "mine again") == "mine again"


def test_clear_removes_notes(disk: DiskCache) -> None:
    """`kdsl cache clear` leaves none."""
    noted("a", "1", lambda: "text")
    disk.clear()
    assert not Path(disk.note_path("a")).exists()


def test_states_of_files(tmp_path: Path) -> None:
    """A young file has none; a write, also one of equal size and time, gives another."""
    path = tmp_path / "f"
    path.write_text("1")
    assert state_of_files({"f": path.stat()}) is None

    def aged() -> Any:
        """The file as if nothing had happened for ten seconds."""
        s = path.stat()
        fields = {n: getattr(s, n) for n in ("st_size", "st_mtime_ns", "st_dev", "st_ino")}
        return _State(**fields, st_ctime_ns=s.st_ctime_ns - 10**10)

    long_ago = time.time_ns() - 10**11
    os.utime(path, ns=(long_ago, long_ago))
    before = state_of_files({"f": aged()})
    assert before is not None
    time.sleep(0.02)
    path.write_text("2")
    os.utime(path, ns=(long_ago, long_ago))
    assert state_of_files({"f": aged()}) not in (None, before)


class _State:
    def __init__(self, **fields: int) -> None:
        vars(self).update(fields)
