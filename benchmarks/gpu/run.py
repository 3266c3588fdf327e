"""One record of a GPU: every shape of `shapes.toml` that kdsl has kernels for, and all its peers.

    python3 benchmarks/gpu/run.py --seconds 540 [--only decode attention] [--commit HASH]

Needs this repository, PyTorch and a CUDA GPU; Triton is measured where it is.
Each group of shapes is a process of its own (see `suite.py`), so that one which fails costs only
itself. Shapes are added to results/gpu/<commit>-<device>.json, which ends with when, on what and
with which tools they were measured: several calls make one record. In a shape all programs ran by
turns, so ratios are of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from records import FORMAT, Shape, summary
from suite import GROUPS, Group, shapes_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
QUERY = (
    "name", "driver_version", "clocks.max.sm", "clocks.max.mem", "clocks.sm", "power.limit",
    "temperature.gpu",
)  # fmt: skip
PACKAGES = ("torch", "triton", "numpy", "cuda-bindings", "nvidia-cudnn", "nvidia-cublas")
QUIET = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else many processes start beside each group
GRACE_SECONDS = 25.0  # of a script beyond its own limit: what it began, and its end


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [group.name for group in GROUPS]
    words.add_argument("--only", nargs="+", choices=names, default=names, metavar="GROUP",
                       help=f"of {', '.join(names)}")  # fmt: skip
    words.add_argument("--seconds", type=float, default=540.0, help="for everything")
    words.add_argument("--commit", help="that is measured (default: what git says)")
    out = Path(os.environ.get("OUT") or ROOT / "results/gpu")
    words.add_argument("--out", type=Path, default=out, help="folder of the record")
    words.add_argument("--read", nargs=2, metavar=("GROUP", "FILE"),
                       help="measure nothing, take what a script wrote by itself")  # fmt: skip
    return words


def main() -> int:
    """Measure group by group; exit code 1 when a group gave nothing."""
    options = parser().parse_args()
    commit = options.commit or head()
    if options.read:
        return take(*options.read, commit, options.out)
    facts = {"format": FORMAT, "commit": commit, **machine()}
    path = options.out / f"{commit[:12]}-{slug(facts['device'])}.json"
    groups = [group for group in GROUPS if group.name in options.only]
    empty = []
    for group, seconds in shares(groups, time.monotonic() + options.seconds):
        if not group.exists:
            print(f"{group.name}: {group.script} is not here", flush=True)
            continue
        begun = time.monotonic()
        measured, output = measure(group, seconds)
        add(path, facts, measured)
        used = time.monotonic() - begun
        print(f"{group.name}, {used:.0f} of {seconds:.0f} s: {summary(measured)}", flush=True)
        if not measured:
            empty.append(group.name)
            print("\n".join(output.splitlines()[-12:]), flush=True)
    print(path)
    return 1 if empty else 0


def take(name: str, file: str, commit: str, out: Path) -> int:
    """Put the JSON of a group's script into a record."""
    group = next(group for group in GROUPS if group.name == name)
    content = json.loads(Path(file).read_text())
    stated = content["device"] if isinstance(content["device"], dict) else content
    clocks = {name: stated[name] for name in QUERY if name.startswith("clocks") and name in stated}
    facts = {
        "format": FORMAT, "commit": commit, "device": stated["device"],
        "driver": stated["driver_version"], "clocks": clocks,
        "toolchain": {"torch": stated["torch"]},
    }  # fmt: skip
    path = out / f"{commit[:12]}-{slug(facts['device'])}.json"
    measured = list(shapes_of(group, content))
    add(path, facts, measured)
    print(f"{path}: {summary(measured)}")
    return 0


def shares(groups: list[Group], end: float) -> Iterator[tuple[Group, float]]:
    """Each group with the seconds that it may take: what is left, by weight."""
    for i, group in enumerate(groups):
        left = max(end - time.monotonic(), 0.0)
        yield group, left * group.weight / sum(other.weight for other in groups[i:])


def measure(group: Group, seconds: float) -> tuple[list[Shape], str]:
    """The shapes that a script measured in that time, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OUT": folder, "PYTHONPATH": path} | QUIET
        script, limit = str(HERE / group.script), f"{seconds:g}"
        words = [sys.executable, script, *group.words, "--seconds", limit]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            ended(subprocess.Popen(words, env=environment, stdout=output, stderr=output,
                                   start_new_session=True), seconds + GRACE_SECONDS)  # fmt: skip
        text = log.read_text(errors="replace")
        found = Path(folder) / group.json
        record = json.loads(found.read_text()) if found.exists() else {}
        return list(shapes_of(group, record)), text


def ended(script: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a script, then end what it left behind: its workers would disturb the next one."""
    try:
        script.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        script.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(timeout=1.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGKILL)
    script.wait()


def add(path: Path, facts: dict[str, Any], measured: list[Shape]) -> None:
    """Put shapes into the record; one that is there already is replaced."""
    before = json.loads(path.read_text())["shapes"] if path.exists() else []
    shapes = {(s["kernel"], s["shape"]): s for s in (*before, *measured)}
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {**facts, "shapes": list(shapes.values())}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


# -- the machine -----------------------------------------------------------------------------------
def machine() -> dict[str, Any]:
    """Device, driver, clocks, toolchain and date."""
    words = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except OSError as problem:
        sys.exit(f"run.py: no GPU's driver is here: {problem}")
    if asked.returncode:
        sys.exit(f"run.py: nvidia-smi failed: {(asked.stderr or asked.stdout).strip()[:300]}")
    stated = dict(zip(QUERY, asked.stdout.strip().split(", "), strict=True))
    return {
        "device": stated.pop("name"),
        "driver": stated.pop("driver_version"),
        "clocks": stated,
        "toolchain": toolchain(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def toolchain() -> dict[str, str]:
    """Versions of Python, the assembler and the peers' packages."""
    found = {"python": sys.version.split()[0]}
    for package in importlib.metadata.distributions():
        name = str(package.metadata["Name"])
        if name.startswith(PACKAGES):  # NVIDIA's have the version of CUDA in their names
            found[name] = package.version
    sys.path[:0] = SOURCES
    from kdsl_runtime.toolchain import default_toolchain

    return {**found, "ptxas": default_toolchain().version}


def head() -> str:
    """The commit of the checkout.

    Exits where git knows none, or where files differ from it.
    """
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "packages"], text=True)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("run.py: git knows no commit here: state the one that is measured with --commit")
    if changed:
        sys.exit(f"run.py: commit what is measured first, or state --commit\n{changed}")
    return commit


def slug(name: str) -> str:
    """A device's name for a file's: "nvidia-h200"."""
    return "-".join(name.lower().split())


if __name__ == "__main__":
    sys.exit(main())
