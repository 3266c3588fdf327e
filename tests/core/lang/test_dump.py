"""KDSL_DUMP writes what a kernel became."""

from __future__ import annotations

from pathlib import Path

import pytest

import kdsl_core as kd


@kd.kernel
def clears(x: kd.Tensor["f32", "n"]):
    """x = 0, one element a thread."""
    x[kd.thread_idx()[0]] = 0.0


def test_files_are_numbered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of IR and one of PTX a build, named by kernel and target."""
    monkeypatch.setenv("KDSL_DUMP", "ir, ptx")
    monkeypatch.setenv("KDSL_DUMP_DIR", str(tmp_path / "dump"))
    clears.clear()
    ptx = clears.ptx(kd.spec("f32", 32), block=32, target="sm_80")
    ir_file, ptx_file = sorted((tmp_path / "dump").iterdir())
    assert ir_file.name.endswith("-clears.ir") and "memory.store" in ir_file.read_text()
    assert ptx_file.name.endswith("-clears.sm_80.ptx") and ptx_file.read_text() == ptx


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable no folder appears."""
    monkeypatch.delenv("KDSL_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    clears.clear()
    clears.ptx(kd.spec("f32", 32), block=32, target="sm_80")
    assert list(tmp_path.iterdir()) == []


def test_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that cannot be written is named, with those that can."""
    monkeypatch.setenv("KDSL_DUMP", "elf")
    clears.clear()
    with pytest.raises(kd.ArgumentError) as caught:
        clears.ptx(kd.spec("f32", 32), block=32, target="sm_80")
    assert caught.value.code == "K626"
