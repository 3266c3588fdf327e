"""dev.py works on a bare machine, and a failed set-up leaves nothing half made."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from house import census

DEV = census.ROOT / "dev.py"


@pytest.fixture
def dev() -> ModuleType:
    """dev.py as a fresh module."""
    spec = importlib.util.spec_from_file_location("dev", DEV)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sandbox(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of pyproject files only, which dev.py takes for its own."""
    folders = [tmp_path / "packages" / name for name in dev.PACKAGES]
    for folder in (tmp_path, *folders):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text("")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "SOURCES", [folder / "src" for folder in folders])
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "VENV_PYTHON", tmp_path / ".venv/bin/python")
    monkeypatch.setattr(dev, "FINGERPRINT", tmp_path / ".venv/kdsl-fingerprint")
    return tmp_path


def fake_venv(root: Path) -> None:
    """A `.venv` whose interpreter starts."""
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").symlink_to(sys.executable)


def test_needs_the_standard_library_only() -> None:
    """It imports nothing that a bare Python lacks."""
    names = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(census.tree(DEV))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == set()


def test_old_pythons_can_read_it() -> None:
    """Python 3.7 parses the file, and so prints which version is needed."""
    ast.parse(DEV.read_text(encoding="utf-8"), feature_version=(3, 7))


def test_chores_are_documented(dev: ModuleType) -> None:
    """CONTRIBUTING.md or the README names each chore."""
    text = (census.ROOT / "CONTRIBUTING.md").read_text() + (census.ROOT / "README.md").read_text()
    assert [chore.__name__ for chore in dev.CHORES if chore.__name__ not in text] == []


def test_fingerprint_follows_the_pyproject_files(dev: ModuleType, sandbox: Path) -> None:
    """It stays while nothing changes, and changes with the settings of any package."""
    before = dev.fingerprint()
    assert dev.fingerprint() == before
    (sandbox / "packages/kdsl-fuse/pyproject.toml").write_text("[project]")
    assert dev.fingerprint() != before


def test_set_up_runs_once(dev: ModuleType, sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the fingerprint and installs nothing."""
    installed: list[bool] = []

    def install(fresh: bool) -> None:
        installed.append(fresh)
        fake_venv(sandbox)

    monkeypatch.setattr(dev, "install", install)
    dev.ensure_environment()
    dev.ensure_environment()
    assert installed == [True]


def test_failed_set_up_leaves_no_environment(
    dev: ModuleType, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new `.venv` is removed again, and the message is the installer's."""

    def install(fresh: bool) -> None:
        fake_venv(sandbox)
        raise dev.SetUpError("no network")

    monkeypatch.setattr(dev, "install", install)
    with pytest.raises(SystemExit, match="set-up failed: no network"):
        dev.ensure_environment()
    assert not (sandbox / ".venv").exists()


def test_failed_update_keeps_the_environment(
    dev: ModuleType, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A working `.venv` survives, without the fingerprint that would call it current."""
    fake_venv(sandbox)
    dev.FINGERPRINT.write_text("an older one")
    monkeypatch.setattr(dev, "outer_pip", lambda: None)
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    (sandbox / "pyproject.toml").write_text('[dependency-groups]\nbuild = ["--bad"]\ndev = []')
    with pytest.raises(SystemExit, match="set-up failed"):
        dev.ensure_environment()
    assert (sandbox / ".venv/bin/python").exists()
    assert not dev.FINGERPRINT.exists()
