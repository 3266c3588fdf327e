"""The simulator's counters against those that Nsight Compute reads from the hardware.

    python3 benchmarks/gpu/counters.py --json results/gpu/counters.json

Each case runs once in the simulator, and twice under `ncu` in a process of its own: for the metrics
of the whole kernel, and for the source page, whose columns are compared line by line. Exit code 1
when a counter differs that must be equal (`kdsl_core.sim.METRICS` says which, and why not).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import counter_cases
from counter_cases import CASES, Case

import kdsl_core as kd
from kdsl_runtime.profile import compare as comparison
from kdsl_runtime.profile import ncu, single

TARGET = "sm_90a"
FOLDERS = (counter_cases.EXAMPLES, Path(counter_cases.__file__).parent)


def launch(name: str) -> None:
    """Run a case once on the GPU, built with the lines of its source."""
    case = CASES[name]()
    stated = {name: getattr(case, name) for name in ("grid", "block", "cluster", "args", "kwargs")}
    single.launch(case.kernel, stated)


def simulated(case: Case) -> kd.sim.Profile:
    """The counters of the simulator."""
    return kd.simulate(
        case.kernel, grid=case.grid, block=case.block, cluster=case.cluster, args=case.args,
        kwargs=case.kwargs, checks=(),
    ).profile  # fmt: skip


def counted(name: str) -> list[str]:
    """The program that runs a case, for ncu."""
    return [sys.executable, str(Path(__file__).resolve()), "--launch", name]


def compare(name: str, names: list[str]) -> dict[str, Any]:
    """One case: simulator against ncu, in total and by line; `error` where ncu failed."""
    case = CASES[name]()
    profile = simulated(case)
    try:
        values = ncu.totals(names, counted(name))
        page = ncu.by_line(FOLDERS, counted(name))
    except kd.DriverError as problem:
        return {"case": name, "error": str(problem)}
    return {"case": name, "totals": comparison.totals(profile, values),
            "lines": comparison.by_line(profile, page)}  # fmt: skip


def is_wrong(result: dict[str, Any]) -> bool:
    """Whether ncu failed, or a counter differs that must be equal."""
    rows = [*result.get("totals", ()), *result.get("lines", ())]
    return "error" in result or comparison.is_wrong(rows)


def table(result: dict[str, Any]) -> str:
    """A case as text: what is equal in one line, then each that is not."""
    if "error" in result:
        return f"{result['case']}: {result['error']}"
    every = [*result["totals"], *result["lines"]]
    words = [row["verdict"] for row in every]
    counted = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    rows = [f"{result['case']}: {counted}"]
    if not result["lines"]:
        rows.append("  ncu showed no source lines")
    for row in every:
        if row["verdict"] == "differs":
            place = f"{row['file']}:{row['line']}" if "file" in row else "kernel"
            what = row["column"] if "file" in row else " + ".join(row["names"])
            rows.append(f"  {place:24} {what:44} {row['ours']:14,.0f} {row['theirs']:14,.0f}")
    return "\n".join(rows)


def main(words: list[str]) -> int:
    """Compare the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launch", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.launch:
        launch(options.launch)
        return 0
    if shutil.which("ncu") is None:
        parser.error("ncu is not on PATH: install Nsight Compute, or add its folder")
    names = ncu.wanted_metrics(TARGET)
    results = []
    for name in options.cases:
        results.append(compare(name, names))
        print(table(results[-1]), flush=True)
        if options.json:  # after each case: a run that is cut short leaves what it had
            options.json.write_text(json.dumps({"metrics": names, "cases": results}, indent=1))
    return 1 if any(map(is_wrong, results)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
