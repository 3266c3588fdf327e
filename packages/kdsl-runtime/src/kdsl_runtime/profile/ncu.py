"""Nsight Compute as a program: which metrics it has, and what it counts of one launch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from kdsl_core.errors import DriverError
from kdsl_core.sim import METRICS
from kdsl_runtime.profile.ncu_csv import LineCounts, lines, metrics

DURATION = "gpu__time_duration.sum"  # Units: nanoseconds
_ONE_LAUNCH = ("--clock-control", "none", "--launch-count", "1")
_TIME_LIMIT_S = 300
_MOST_WORDS = 600
_CHIPS = {"sm_90a": "gh100", "sm_100a": "gb100", "sm_80": "ga100", "sm_89": "ad102"}


def find() -> str:
    """The program's path.

    Raises: DriverError K756 when it is not on PATH.
    """
    program = shutil.which("ncu")
    if program is None:
        raise DriverError(
            "Nsight Compute's program ncu is not on PATH",
            code="K756",
            fix="install Nsight Compute, or add its folder; `kdsl inspect` counts without a GPU",
        )
    return program


def known_metrics(target: str) -> set[str]:
    """Base names of the metrics that this ncu has for a target; empty when it does not say."""
    chip = ("--chips", _CHIPS[target]) if target in _CHIPS else ()
    said = _run(["--query-metrics", "--query-metrics-mode", "base", *chip], ()).stdout
    words = (line.split() for line in said.splitlines())
    return {row[0] for row in words if row and "__" in row[0]}


def wanted_metrics(target: str) -> list[str]:
    """Every metric that the simulator has a counter for and that is not known to be missing."""
    known = known_metrics(target)
    every = dict.fromkeys(name for metric in METRICS for name in metric.ncu)
    return [n for n in every if not known or "__" not in n or n.removesuffix(".sum") in known]


def totals(names: Iterable[str], program: Sequence[str], kernel: str = "") -> dict[str, float]:
    """Metric → value of the first launch of a program, or of the first one of `kernel`.

    Raises: DriverError K757 when ncu or the program fails.
    """
    asked = ["--print-units", "base", "--metrics", ",".join(names)]
    return metrics(_counted(asked, program, kernel))


def by_line(folders: Iterable[Path], program: Sequence[str], kernel: str = "") -> LineCounts:
    """(file, line) → column → value, for source files in these folders.

    Raises: DriverError K757.
    """
    page = ["--section", "SourceCounters", "--page", "source", "--print-source", "cuda,sass",
            "--import-source", "yes", "--source-folders", ",".join(map(str, folders))]  # fmt: skip
    return lines(_counted(page, program, kernel))


def _counted(asked: Sequence[str], program: Sequence[str], kernel: str) -> str:
    named = ("--kernel-name", kernel) if kernel else ()
    done = _run(["--csv", *_ONE_LAUNCH, *named, *asked], program)
    if done.returncode or "==ERROR==" in done.stdout:
        said = (done.stdout + done.stderr).strip()[-_MOST_WORDS:]
        raise DriverError(
            f"ncu ended with {done.returncode}: {said}", code="K757", fix=_advice(said)
        )
    return done.stdout


def _run(options: Sequence[str], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [find(), *options, *program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired as problem:
        raise DriverError(
            f"ncu did not end within {_TIME_LIMIT_S} s",
            code="K757",
            fix="profile a smaller launch: ncu repeats it for each group of counters",
        ) from problem


def _advice(said: str) -> str:
    if "ERR_NVGPUCTRPERM" in said:
        return "allow counters to this user: see NVIDIA's page on ERR_NVGPUCTRPERM"
    return "run the launch without ncu first, then `ncu` on it by hand"
