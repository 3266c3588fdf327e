"""The command line, on a machine that may have nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdsl_core.errors import BuildError
from kdsl_runtime import doctor, driver, toolchain
from kdsl_runtime.cache import DiskCache, Entry
from kdsl_runtime.cli import main

KEY = hashlib.sha256(b"one").hexdigest()
REPORT = {"registers": 168, "spill_stores": 8, "spill_loads": 4}
ENTRY = Entry({"entry": "gemm", "target": "sm_90a", "report": REPORT}, b"cubin")


@pytest.fixture
def disk(tmp_path, monkeypatch) -> DiskCache:
    """The default cache of this test, with one entry."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))
    disk = DiskCache(tmp_path / "cache")
    disk.put(KEY, ENTRY)
    return disk


def _run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_doctor_without_anything(disk, monkeypatch):
    """No driver and no assembler: usable all the same, and each gap says how to mend it."""
    monkeypatch.setattr(driver, "_LIBRARY", "libkdsl-no-such-driver.so.1")
    driver.require_driver.cache_clear()

    def nothing(*arguments: object) -> None:
        raise BuildError("no PTX assembler", code="K701", fix="install one")

    monkeypatch.setattr(toolchain, "find_toolchain", nothing)
    shown = json.loads(_run("doctor", "--json"))
    driver.require_driver.cache_clear()
    states = {check["name"]: check for check in shown["checks"]}
    assert shown["usable"]
    assert states["assembler"]["fix"] == "install one"
    assert states["driver"]["state"] == "warning" and "simulator" in states["driver"]["fix"]
    assert states["simulator"]["state"] == "ok"
    assert "1 entries" in states["cache"]["detail"]


def test_doctor_tells_what_is_optional(disk, tmp_path, monkeypatch):
    """What is here and where the rest comes from; nothing of it makes kdsl unusable."""
    monkeypatch.setenv("PATH", str(tmp_path))
    without = doctor.options()
    assert without.state == "ok" and "kdsl profile needs Nsight Compute" in without.fix
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    there = doctor.options()
    assert "kdsl profile" in there.detail and "Nsight" not in there.fix
    assert "kr.prometheus" in there.detail


def test_doctor_table(disk):
    """The table names the assembler that is used and its version."""
    shown = _run("doctor")
    assert "simulator" in shown and toolchain.find_toolchain().version in shown


def test_doctor_is_unusable_without_the_core(disk, monkeypatch):
    """A core that cannot be imported is the one thing that fails."""
    broken = doctor.Check("simulator", doctor.FAILURE, "no module", "pip install kdsl-core")
    monkeypatch.setattr(doctor, "simulator", lambda: broken)
    assert "pip install kdsl-core" in _run("doctor", code=1)


def test_doctor_on_a_refused_cache(disk):
    """A cache that others may write is a warning with the mend."""
    Path(disk.root).chmod(0o777)
    check = doctor.cache()
    assert (check.state, "chmod 700" in check.fix) == (doctor.WARNING, True)


def test_cache_ls_and_stats(disk):
    """The list names kernel, target, registers and spills; stats the size and the place."""
    listed = _run("cache", "ls").split()
    assert all(word in listed for word in (KEY[:12], "gemm", "sm_90a", "168", "12"))
    assert str(disk.root) in _run("cache", "stats")


def test_listing_does_not_make_an_entry_young(disk):
    """`ls` leaves the order of use as it is."""
    before = disk.files()
    _run("cache", "ls")
    assert disk.files() == before


def test_cache_verify(disk):
    """Exit code 0 for intact entries, 1 and the file's name after damage."""
    assert "1 good, 0 bad" in _run("cache", "verify")
    Path(disk.path_of(KEY)).write_bytes(b"?")
    assert f"{KEY}.kdsl" in _run("cache", "verify", code=1)


def test_cache_prune_and_clear(disk):
    """Prune keeps a bound, clear keeps nothing."""
    assert "0 entries removed" in _run("cache", "prune")
    assert "1 entries removed" in _run("cache", "prune", "--max-mib", "0")
    disk.put(KEY, ENTRY)
    assert "1 entries removed" in _run("cache", "clear")
    assert disk.files() == []


def test_errors_are_one_paragraph(disk, tmp_path):
    """A refused directory gives the message and its mend, no stack trace, exit code 1."""
    Path(disk.root).chmod(0o777)
    shown = _run("cache", "stats", code=1)
    assert "CacheError[K722]" in shown and "Traceback" not in shown
    (tmp_path / "file").write_text("")
    assert "K729" in _run("cache", "--dir", str(tmp_path / "file" / "x"), "stats", code=1)


def test_no_directory_at_all(monkeypatch):
    """Without HOME the cache commands say which option to pass."""
    for name in ("KDSL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "--dir" in _run("cache", "stats", code=1)
    assert doctor.cache().state == doctor.WARNING
