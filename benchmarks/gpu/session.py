"""All that a machine with a GPU is asked in one call: tests, recordings, the memory checker.

    python3 benchmarks/gpu/session.py --seconds 520

Each step is a process of its own with a limit; one that fails or hangs costs only itself, and the
steps behind it keep a share of the time. $OUT gets at most seven files: `session.json` (how each
step ended, the table of agreement, the machine), `logs-1.zip` (logs, junit XML) and
`recordings-….zip`. They are written anew after each step, so that nothing is lost when the call
ends early. The short table comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steps import Ended, Step, pack, run_steps, safe

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "benchmarks" / "gpu"
SOURCES = [ROOT / "packages" / name / "src" for name in ("kdsl-core", "kdsl-runtime", "kdsl-fuse")]
WORKERS = min(8, os.cpu_count() or 1)
CHECKED = ("cooperative", "pingpong", "cluster of two rows")  # products for the memory checker
KINDS = ("tests", "tma_starts", "functions", "tensor_core", "memcheck")
SMALL = {  # what is recorded in the simulator
    "functions": ("--simulate", "--bits", "10", "--functions", "exp2"),
    "tensor_core": ("--simulate", "--problems", "1", "--only", "SM80_16x8x16"),
}
NAMED_BY_COLLECTION = re.compile(r"(?P<file>tests/\S+?\.py)::|ERROR (?P<broken>tests/\S+\.py)")
MOST_RECORDINGS = 5  # archives, so that there are seven files in all
PACKAGES = ("numpy", "ml_dtypes", "pytest", "torch", "cuda-bindings")


@dataclass
class Session:
    """Where the steps write, and how they ended so far."""

    out: Path
    work: Path
    facts: dict[str, Any]
    ended: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logs, self.recordings = self.work / "logs", self.work / "recordings"
        for folder in (self.out, self.logs, self.recordings):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, steps: list[Step], deadline: float) -> None:
        """Run the steps, and write what there is after each."""
        environment = os.environ | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
        environment["OUT"] = str(self.recordings)
        for ended in run_steps(steps, self.logs, deadline, environment):
            print(ended.line(), flush=True)
            self.ended.append(ended)
            self.write()

    def write(self) -> None:
        """The table and the archives."""
        left_out = pack(self.recordings, self.out, "recordings", MOST_RECORDINGS)
        left_out += pack(self.logs, self.out, "logs", 1)
        table = {
            "machine": self.facts,
            "steps": [step.record() for step in self.ended],
            "agreement": self.agreement(),
            "left_out": left_out,
        }
        (self.out / "session.json").write_text(json.dumps(table, indent=1) + "\n")

    def agreement(self) -> list[dict[str, Any]]:
        """The rows of all tables of agreement, with the file of the tests."""
        rows = []
        for path in sorted(self.logs.glob("*.agreement.json")):
            rows += [{"tests": path.name.partition(".")[0], **row} for row in read_rows(path)]
        return rows

    def show(self) -> None:
        """What differs and what failed, and last the short table."""
        print()
        for row in self.agreement():
            if row["differ"] or row["payloads"]:
                counts = "{differ} of {lanes} differ, {payloads} NaN bits".format(**row)
                print(f"{row['tests']}: {row['family']}: {counts}")
        for name in [name for ended in self.ended for name in ended.failed]:
            print(f"failed: {name}")
        print("\n".join(ended.line() for ended in self.ended))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of agreement; none where the tests ended before it was whole."""
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return []
    return rows


def python_path() -> str:
    """The packages' sources before everything else."""
    paths = [*map(str, SOURCES), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


# -- the steps -------------------------------------------------------------------------------------
def files_with_tests(mark: str, paths: list[str]) -> Counter[str]:
    """How many tests of a mark each file has; one for a file that cannot be imported.

    Where collection fails as a whole these are the paths, so that their step shows why.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", mark, *paths]
    told = said(*command, environment=os.environ | {"PYTHONPATH": python_path()})
    named = (NAMED_BY_COLLECTION.match(line) for line in told.splitlines())
    found = Counter(match["file"] or match["broken"] for match in named if match)
    return found or Counter(dict.fromkeys(paths, WORKERS))


def tests(session: Session, mark: str, paths: list[str], limit: float) -> list[Step]:
    """One step for each file with tests, the agreement first."""
    found = files_with_tests(mark, paths)
    steps = []
    for name in sorted(found, key=lambda name: ("agreement" not in name, name)):
        stem = safe(name.removeprefix("tests/").removesuffix(".py"))
        junit, table = (session.logs / f"{stem}.{kind}" for kind in ("junit.xml", "agreement.json"))
        command = [sys.executable, "-m", "pytest", "-m", mark, "-n", str(min(WORKERS, found[name]))]
        command += [f"--junitxml={junit}", f"--agreement-json={table}", name]
        steps.append(Step(stem, command, limit, junit=junit))
    return steps


def memory_checker(session: Session) -> Step:
    """Three products of Hopper under compute-sanitizer, without workers."""
    junit = session.logs / "memcheck.junit.xml"
    ids = [f"tests/gpu/test_gemm_sm90_gpu.py::test_schedules[gpu-{name}]" for name in CHECKED]
    command = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"]
    command += ["--error-exitcode", "9", sys.executable, "-m", "pytest", "-m", "gpu"]
    return Step("memcheck", [*command, f"--junitxml={junit}", *ids], 120, 50, junit)


def script(name: str, *words: str, limit: float = 90, least: float = 60) -> Step:
    """A script of this folder."""
    return Step(name, [sys.executable, str(HERE / f"{name}.py"), *words], limit, least)


def steps_of(session: Session, options: argparse.Namespace) -> list[Step]:
    """All steps in order."""
    small = SMALL if options.simulate else {}
    mark = "not gpu" if options.simulate else "gpu"
    folder, file = (session.recordings / name for name in ("functions", "tensor_core.npz"))
    made: dict[str, Callable[[], list[Step]]] = {
        "tests": lambda: tests(session, mark, options.tests, 150),
        "tma_starts": lambda: [script("tma_starts", least=30)],
        "functions": lambda: [
            script("record_functions", "--out", str(folder), *small.get("functions", ()))
        ],
        "tensor_core": lambda: [
            script("record_tensor_core", "--out", str(file), *small.get("tensor_core", ()))
        ],
        "memcheck": lambda: [memory_checker(session)],
    }
    steps = [step for kind in KINDS if kind in options.only for step in made[kind]()]
    return steps + [Step(command, shlex.split(command), 120, 30) for command in options.also]


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return {
        "commit": said("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "gpu": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        "packages": versions,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def said(*command: str, environment: dict[str, str] | None = None) -> str:
    """What a command prints; nothing where it cannot run or hangs."""
    try:
        told = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("OUT", "session"))
    words.add_argument("--out", type=Path, default=default, help="folder of the results")
    words.add_argument("--seconds", type=float, default=520, help="for the whole session")
    words.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="some of the steps")
    words.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH")
    words.add_argument("--also", action="append", default=[], metavar="CMD", help="at the end")
    words.add_argument("--simulate", action="store_true", help="a small part in the simulator")
    return words


def main(arguments: list[str]) -> None:
    """Run everything and show the table; the exit status says whether every step ended well."""
    options = parser().parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as work:
        session = Session(options.out.resolve(), Path(work), machine())
        session.run(steps_of(session, options), deadline)
        session.show()
        sys.exit(any(ended.outcome != "ok" for ended in session.ended))


if __name__ == "__main__":
    main(sys.argv[1:])
