"""The wheels: everything that belongs to a package is in them, and they work where they lie."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from house import census

NAMES = {name: name.replace("_", "-") for name in census.SOURCES}
USE = """
import numpy as np, pathlib, sys
import kdsl_core as kd, kdsl_fuse as kf, kdsl_runtime as kr
from kdsl_fuse.kernels.gemm_sm90_plan import explain
from kdsl_runtime.export import loader

for package in (kd, kf, kr):
    assert str(pathlib.Path(package.__file__).parents[1]) == sys.argv[1], package.__file__
x = np.arange(8, dtype=np.float32)
assert (kf.fuse(lambda x: kf.relu(x - 4) * 2)(x) == np.maximum(x - 4, 0) * 2).all()
assert "exact, " in explain(8192, 8192, 8192, kd.bf16)  # from a table in the wheel
print(kd.__version__, kr.__version__)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """The wheel of each package, built as a release is, from what git would take."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in NAMES.values():
        argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        where = census.ROOT / "packages" / project
        done = subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    return {path.name.split("-")[0]: zipfile.ZipFile(path) for path in folder.glob("*.whl")}


def metadata(wheel: zipfile.ZipFile) -> Message:
    """What the wheel says of itself."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


@pytest.mark.parametrize("package", NAMES)
def test_nothing_is_missing_and_nothing_strange(
    wheels: dict[str, zipfile.ZipFile], package: str
) -> None:
    """Every file of the package's source, and besides only its metadata."""
    source = census.SOURCES[package]
    wanted = {
        path.relative_to(source.parent).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = set(wheels[package].namelist())
    assert wanted - found == set()
    assert {name for name in found - wanted if ".dist-info/" not in name} == set()
    assert f"{package}/py.typed" in found


@pytest.mark.parametrize("package", NAMES)
def test_a_wheel_says_what_it_is(wheels: dict[str, zipfile.ZipFile], package: str) -> None:
    """Name, version, Python, licence with its text, a description, and no foreign requirement."""
    said = metadata(wheels[package])
    assert said["Name"] == NAMES[package] and said["Requires-Python"] == ">=3.11"
    assert said["Version"] == "0.1.0" and said["License-Expression"] == "Apache-2.0"
    assert len(str(said.get_payload())) > 200
    licences = [name for name in wheels[package].namelist() if name.endswith("/LICENSE")]
    text = (census.ROOT / "LICENSE").read_text(encoding="utf-8")
    assert [wheels[package].read(name).decode() for name in licences] == [text]
    always = [words for words in said.get_all("Requires-Dist", []) if "extra ==" not in words]
    assert {word.split(">")[0].split("=")[0] for word in always} <= {
        "kdsl-core", "kdsl-runtime", "numpy", "ml-dtypes", "networkx", "click", "rich", "tomlkit"
    }  # fmt: skip


def test_wheels_work_where_they_lie(wheels: dict[str, zipfile.ZipFile], tmp_path: Path) -> None:
    """Unpacked side by side, without the checkout, they fuse, simulate, and have their tables."""
    for wheel in wheels.values():
        wheel.extractall(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, sys.argv[1])\n{USE}",
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    points = (
        entry for wheel in wheels.values() for entry in wheel.namelist() if "entry_p" in entry
    )
    assert len(list(points)) == len(NAMES)
