"""The wheels on the newest Python of this machine: built, installed into nothing, tested.

    python3 dev.py newest [pytest arguments]

`.venv` has the Python that made it; this is the other end of what kdsl supports. Exit code 0, with
a word, where there is no newer Python or the network has no packages for it.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kdsl-core", "kdsl-runtime", "kdsl-fuse")
PLACES = (os.path.expanduser("~/.pyenv/versions/*/bin"), "/usr/bin", "/usr/local/bin", "/opt/*/bin")
TOOLS = ("pytest>=8", "hypothesis>=6")
QUICK = ("tests/core/layout", "tests/core/lang/test_goldens.py", "tests/core/isa/test_arith.py",
         "tests/examples/test_examples.py", "tests/runtime/test_cache_disk.py",
         "tests/fuse/test_fuse_simulated.py")  # fmt: skip


def newest() -> tuple[tuple[int, int], str] | None:
    """Version and path of the newest Python that is newer than this one."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    folders += [folder for pattern in PLACES for folder in glob.glob(pattern)]
    found = []
    for folder in folders:
        for path in glob.glob(os.path.join(folder, "python3.*")):
            if named := re.fullmatch(r"python3\.(\d+)", os.path.basename(path)):
                found.append(((3, int(named[1])), path))
    newer = sorted((pair for pair in found if pair[0] > sys.version_info[:2]), reverse=True)
    return next((pair for pair in newer if works(pair[1])), None)


def works(python: str) -> bool:
    """Whether it starts: pyenv has names on the path that lead to nothing."""
    return subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0


def installed(python: str, folder: Path) -> Path:
    """A new environment with our wheels and the tools of tests.

    Raises: subprocess.CalledProcessError.
    """
    wheels = folder / "wheels"
    for name in PACKAGES:
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
        subprocess.run(words, cwd=ROOT / "packages" / name, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    inside = folder / "venv/bin/python"
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *map(str, wheels.glob("*.whl")), *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", assembler()], check=True)
    return inside


def assembler() -> str:
    """The pinned wheel of ptxas."""
    settings = tomllib.loads((ROOT / "packages/kdsl-runtime/pyproject.toml").read_text())
    return str(settings["project"]["optional-dependencies"]["ptxas"][0])


def main(words: Sequence[str]) -> int:
    """Install and test."""
    found = newest()
    if found is None:
        print(f"newest: no Python newer than {sys.version.split()[0]} here")
        return 0
    version, python = found
    with tempfile.TemporaryDirectory() as name:
        try:
            inside = installed(python, Path(name))
        except subprocess.CalledProcessError as problem:
            print(f"newest: Python {version[0]}.{version[1]} cannot be set up here: {problem}")
            return 0
        # `-P`: the folder of the repository is no place to import from, only wheels are.
        command = [str(inside), "-P", "-m", "pytest", "-m", "not slow", *(words or QUICK)]
        print(f"newest: Python {version[0]}.{version[1]}", flush=True)
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
