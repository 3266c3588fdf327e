"""From the start of a process to its first launch of a cached Hopper GEMM, step by step.

    OUT=results python3 benchmarks/gpu/startup.py

Each run is a fresh interpreter (`startup_steps.py`); a first one, which is not counted, compiles
Python's files and fills the cache. "kdsl" is the imports, the look-ups and the launch; the rest is
Python, NumPy, the driver's bindings, its context and what it does to load a module. "one by one" is
the sum of all; "all" that of runs that begin with `kr.open_device()`, where the driver starts while
the others go on; the two kinds of run take turns. "cold" runs have an empty cache each: what counts
there is the plan, PTX and machine code; beside them stands ptxas, called on the same PTX once more.
"next build" is the same in a process that has built another configuration before, so that all
modules are there; "largest tile" is a cold build of the kernel that takes ptxas longest.
`$OUT/startup.json` gets all, if there is $OUT. `--no-gpu` measures what needs none; `--cpu` counts
the seconds of processors, in the process and those it starts, which other work on the machine
changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = Path(__file__).parents[1] / "startup_steps.py"
OURS = ("kdsl imports", "plan", "PTX", "machine code", "launch")
BUILDING = ("plan", "PTX", "machine code")
COLD = {"cold": ("--ptxas",), "next": ("--next",), "largest": ("--largest", "--ptxas")}
TARGETS_S = {"all": 0.35, "kdsl": 0.06, "cold build": 0.25}
Steps = dict[str, float]


def life(cache: str, *options: str) -> Steps:
    """Seconds of each step of one process."""
    environment = {**os.environ, "KDSL_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, str(STEPS), str(time.time()), *options]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"{STEPS.name} failed: {done.stderr[-2000:]}")
    steps: Steps = json.loads(done.stdout.splitlines()[-1])
    steps.pop("modules")
    return steps


def medians(lives: list[Steps]) -> Steps:
    """The median of each step."""
    return {step: statistics.median(each[step] for each in lives) for step in lives[0]}


def main(words: list[str]) -> int:
    """Measure; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--no-gpu", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(words)
    clock = ["--cpu"] if options.cpu else []
    gpu = [*clock, *([] if options.no_gpu else ["--gpu"])]
    alone, opened = [], []
    cold: dict[str, list[Steps]] = {name: [] for name in COLD}
    with tempfile.TemporaryDirectory() as warm:
        life(warm, *gpu)
        for _ in range(options.runs):
            alone.append(life(warm, *gpu))
            opened.append(life(warm, *gpu, "--open"))
    for _ in range(max(3, options.runs // 3)):
        for name, more in COLD.items():
            with tempfile.TemporaryDirectory() as empty:
                cold[name].append(life(empty, *more, *clock))
    cached, hidden = medians(alone), medians(opened)
    built = {name: medians(lives) for name, lives in cold.items()}
    builds = {name: sum(steps[step] for step in BUILDING) for name, steps in built.items()}
    sums = {
        "one by one": sum(seconds for step, seconds in cached.items() if step != "run"),
        "all": sum(seconds for step, seconds in hidden.items() if step != "run"),
        "kdsl": sum(cached.get(step, 0.0) for step in OURS),
        "cold build": builds["cold"],
        "ptxas": built["cold"]["ptxas"],
        "next build": builds["next"],
        "largest tile": builds["largest"],
        "its ptxas": built["largest"]["ptxas"],
    }
    if "OUT" in os.environ:
        folder = Path(os.environ["OUT"])
        folder.mkdir(parents=True, exist_ok=True)
        report = {"cached": cached, "opened": hidden, **built, "sums": sums, "python": sys.version}
        (folder / "startup.json").write_text(json.dumps(report, indent=1))
    for step, seconds in hidden.items():
        apart = f"{cached[step] * 1e3:8.1f} ms one by one" if step in cached else ""
        print(f"{step:16}{seconds * 1e3:8.1f} ms{apart:24}{'  kdsl' * (step in OURS)}")
    for name, seconds in sums.items():
        most = f", at most {TARGETS_S[name] * 1e3:.0f}" if name in TARGETS_S else ""
        print(f"{name:16}{seconds * 1e3:8.1f} ms{most}")
    return 1 if any(sums[name] > most for name, most in TARGETS_S.items()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
