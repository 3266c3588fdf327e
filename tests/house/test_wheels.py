"""The wheels: everything of a package is in its wheel, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from house import census

PACKAGES = ("kdsl-core", "kdsl-runtime", "kdsl-fuse")
# What works without its file would not be missed by any other test, which run on the sources.
MUST_HAVE = {
    "kdsl-core": ("kdsl_core/py.typed", "kdsl_core/__init__.pyi"),
    "kdsl-runtime": ("kdsl_runtime/py.typed", "kdsl_runtime/export/loader/kdsl_loader.c"),
    "kdsl-fuse": ("kdsl_fuse/py.typed", "kdsl_fuse/kernels/tables/gemm_sm90-NVIDIA_H200.json"),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """The wheel of each package, built anew."""
    folder = tmp_path_factory.mktemp("wheels")
    found = {}
    for name in PACKAGES:
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / name]
        subprocess.run(words, cwd=census.ROOT / "packages" / name, check=True, capture_output=True)
        (path,) = (folder / name).glob("*.whl")
        found[name] = zipfile.ZipFile(path)
    return found


def sources(name: str) -> set[str]:
    """The files of a package as its wheel names them."""
    root = census.ROOT / "packages" / name / "src"
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(root).as_posix() for path in files}


@pytest.mark.parametrize("name", PACKAGES)
def test_content(name: str, wheels: dict[str, zipfile.ZipFile]) -> None:
    """Every file of the sources once, beside what installers need."""
    inside = wheels[name].namelist()
    packed = [path for path in inside if ".dist-info/" not in path]
    assert len(packed) == len(set(packed)) and set(packed) == sources(name)
    assert set(MUST_HAVE[name]) <= set(packed)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_it_says_of_itself(name: str, wheels: dict[str, zipfile.ZipFile]) -> None:
    """Its name, the Python it needs, and the packages below it and no other of ours."""
    (path,) = (path for path in wheels[name].namelist() if path.endswith(".dist-info/METADATA"))
    about = message_from_string(wheels[name].read(path).decode("utf-8"))
    assert about["Name"] == name and about["Requires-Python"] == ">=3.11"
    plain = (need for need in about.get_all("Requires-Dist", []) if "extra ==" not in need)
    ours = {need.split("=")[0].split(">")[0].strip() for need in plain if need.startswith("kdsl")}
    assert ours == set(PACKAGES[: PACKAGES.index(name)])


def test_wheels_do_not_share_files(wheels: dict[str, zipfile.ZipFile]) -> None:
    """No file belongs to two of them."""
    every = [path for wheel in wheels.values() for path in wheel.namelist()]
    assert len(every) == len(set(every))
    assert Path(census.ROOT / "LICENSE").exists()
