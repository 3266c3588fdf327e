"""A sample of the tests on the oldest and the newest Python here, with the share of lines it runs.

`dev.py test` runs everything on the Python of `.venv`; this adds the ends that are missing, and has
coverage's floor: that the programs which newcomers read first still reach most of the language, its
compiler and the simulator. Standard library only.

python3 dev.py pythons          python3 dev.py pythons --list
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 11)
SAMPLE = (
    "tests/docs/test_tour.py",
    "tests/examples/test_examples.py",
    "tests/errors",
    "tests/core/passes",
    "tests/core/ptx",
)
FLOOR = 74  # percent of the lines and branches of kdsl_core that the sample runs (76 in 2026-11)

Version = tuple[int, int]


def candidates() -> Iterator[str]:
    """Where interpreters may be: this one, those on PATH, and pyenv's."""
    yield str(getattr(sys, "_base_executable", sys.executable))
    for minor in range(OLDEST[1], 30):
        if path := shutil.which(f"python3.{minor}"):
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob("versions/3.*/bin/python")))


def version_of(path: str) -> Version | None:
    """Which Python it is; None for one that does not start, or is too old."""
    ask = "import sys, ensurepip, venv; print(*sys.version_info[:2])"
    try:
        asked = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    stated = re.fullmatch(r"(\d+) (\d+)\s*", asked.stdout)
    version = (int(stated[1]), int(stated[2])) if stated else (0, 0)
    return version if version >= OLDEST else None


def found() -> dict[Version, str]:
    """An interpreter of each version that is here, the oldest first."""
    known: dict[Version, str] = {}
    for path in dict.fromkeys(candidates()):
        if (version := version_of(path)) is not None:
            known.setdefault(version, path)
    return dict(sorted(known.items()))


def environment(version: Version, path: str) -> Path:
    """The Python of `.venv`, or of one beside it for another version, with kdsl and the tools."""
    dev = chores()
    if version_of(str(dev.VENV_PYTHON)) != version:
        dev.VENV = ROOT / f".venv-{version[0]}.{version[1]}"
        dev.VENV_PYTHON = dev.VENV / "bin/python"
        dev.FINGERPRINT = dev.VENV / "kdsl-fingerprint"
        dev.base_python = lambda: path
        dev.ensure_environment()
    return Path(dev.VENV_PYTHON)


def chores() -> ModuleType:
    """dev.py as a module."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def covered(python: Path) -> int:
    """Run the sample, print the files that it reaches least, and fail below the floor."""
    data = ROOT / "build" / "coverage"
    data.parent.mkdir(exist_ok=True)
    environ = {**os.environ, "COVERAGE_FILE": str(data)}
    run = [str(python), "-m", "pytest", "-m", "not slow", "-n", "2", "--cov", "--cov-report="]
    tests = subprocess.run([*run, *SAMPLE], cwd=ROOT, env=environ).returncode
    report = [str(python), "-m", "coverage", "report", "--include=packages/kdsl-core/*"]
    report += ["--sort=cover", f"--fail-under={FLOOR}"]
    shown = subprocess.run(report, cwd=ROOT, env=environ, capture_output=True, text=True)
    lines = (shown.stdout + shown.stderr).splitlines()
    print(*lines[:12], *lines[-3:], sep="\n")
    return tests or shown.returncode


def main(words: list[str]) -> int:
    """List the Pythons, or run the sample on both ends."""
    known = found()
    if words == ["--list"]:
        for version, path in known.items():
            print(f"{version[0]}.{version[1]}  {path}")
        return 0
    return max(run(version, known[version]) for version in ends(list(known)))


def ends(versions: list[Version]) -> list[Version]:
    """The newest, and the oldest unless `.venv` has it and `dev.py test` runs it."""
    oldest, newest = min(versions), max(versions)
    tested = version_of(str(chores().VENV_PYTHON))
    return [newest] if oldest in (newest, tested) else [oldest, newest]


def run(version: Version, path: str) -> int:
    """The sample on one Python."""
    print(f"Python {version[0]}.{version[1]}, {path}: {' '.join(SAMPLE)}", flush=True)
    return covered(environment(version, path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
