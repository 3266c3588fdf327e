"""Finding the assembler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdsl_core.errors import BuildError
from kdsl_runtime import toolchain


def test_user_choice_wins(fake_ptxas):
    """$KDSL_PTXAS comes before everything that is installed."""
    path = fake_ptxas(version="V12.8.93")
    found = toolchain.find_toolchain({"KDSL_PTXAS": str(path), "PATH": os.environ["PATH"]})
    assert (found.path, found.version, found.source) == (str(path), "12.8.93", "$KDSL_PTXAS")


def test_user_choice_that_fails_is_not_replaced(tmp_path: Path):
    """A wrong $KDSL_PTXAS is an error, never another assembler."""
    with pytest.raises(BuildError, match="KDSL_PTXAS names") as caught:
        toolchain.find_toolchain({"KDSL_PTXAS": str(tmp_path / "none")})
    assert caught.value.code == "K702"
    assert "unset it" in caught.value.fix


def test_order_wheel_triton_path(fake_ptxas, monkeypatch, tmp_path: Path):
    """The pinned wheel comes before triton's copy, and that before PATH."""
    wheel = fake_ptxas(name="nvidia/cu13/bin/ptxas")
    triton = fake_ptxas(name="triton/backends/nvidia/bin/ptxas")
    system = fake_ptxas(name="system/ptxas")
    monkeypatch.setattr(toolchain, "package_folders", lambda name: [tmp_path / name])
    found = [path for _, path in toolchain.candidates({"PATH": str(system.parent)})]
    assert found[:3] == [str(wheel), str(triton), str(system)]
    assert toolchain.find_toolchain({"PATH": ""}).path == str(wheel)
    wheel.unlink()
    assert toolchain.find_toolchain({"PATH": ""}).path == str(triton)


def test_broken_candidate_is_passed_over(fake_ptxas, monkeypatch, tmp_path: Path):
    """An installed program that states no version is not used."""
    fake_ptxas(name="nvidia/cu13/bin/ptxas", version="unknown")
    good = fake_ptxas(name="triton/backends/nvidia/bin/ptxas")
    monkeypatch.setattr(toolchain, "package_folders", lambda name: [tmp_path / name])
    assert toolchain.find_toolchain({"PATH": ""}).path == str(good)


def test_none_says_how_to_mend(monkeypatch):
    """Without assembler and driver the message names the wheel and the variable."""
    monkeypatch.setattr(toolchain, "_installed", lambda environ: iter(()))
    monkeypatch.setattr(toolchain, "driver_version", lambda: None)
    with pytest.raises(BuildError) as caught:
        toolchain.find_toolchain({})
    assert caught.value.code == "K701"
    assert "kdsl-runtime[ptxas]" in caught.value.fix and "KDSL_PTXAS" in caught.value.fix


def test_driver_jit_is_last_and_warns(monkeypatch):
    """With a driver but no ptxas the JIT is taken, and the user told."""
    monkeypatch.setattr(toolchain, "_installed", lambda environ: iter(()))
    monkeypatch.setattr(toolchain, "driver_version", lambda: (13, 0))
    with pytest.warns(toolchain.KdslToolchainWarning, match="driver's JIT"):
        found = toolchain.find_toolchain({})
    assert found.is_driver_jit and found.version == "13.0"


def test_id_depends_on_the_version_alone(fake_ptxas):
    """The same release in two places has one id; another release has another."""
    here, there = fake_ptxas(name="a/ptxas"), fake_ptxas(name="b/ptxas", body="exit 1")
    other = fake_ptxas(name="c/ptxas", version="V13.1.1")
    ids = [toolchain.open_toolchain(path).id for path in (here, there, other)]
    assert ids[0] == ids[1] != ids[2]


def test_version_is_asked_again_after_an_upgrade(fake_ptxas):
    """A program replaced in place is not remembered by its path."""
    path = fake_ptxas(version="V13.0.88")
    assert toolchain.open_toolchain(path).version == "13.0.88"
    fake_ptxas(version="V13.2.1")
    os.utime(path, ns=(1, 1))
    assert toolchain.open_toolchain(path).version == "13.2.1"


def test_installed_assembler_states_its_version():
    """The assembler that this test run uses answers with a version."""
    found = toolchain.find_toolchain()
    assert found.version.count(".") == 2
    assert len(found.id) == 64
