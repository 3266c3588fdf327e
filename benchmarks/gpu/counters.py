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
import subprocess
import sys
from pathlib import Path
from typing import Any

import counter_cases
import ncu_csv
from counter_cases import CASES, Case

import kdsl_core as kd

TARGET = "sm_90a"
QUIET = ("--clock-control", "none", "--launch-count", "1")
FOLDERS = (counter_cases.EXAMPLES, Path(counter_cases.__file__).parent)
SOURCE_PAGE = (
    *("--section", "SourceCounters", "--page", "source", "--print-source", "cuda,sass"),
    *("--import-source", "yes", "--source-folders", ",".join(map(str, FOLDERS))),
)


def launch(name: str) -> None:
    """Run a case once on the GPU, built with the lines of its source."""
    from kdsl_core.lang.arguments import bind
    from kdsl_core.lang.launch import cluster_of, extent
    from kdsl_runtime.assemble import AssembleOptions
    from kdsl_runtime.device_array import to_device
    from kdsl_runtime.launch import load

    case = CASES[name]()
    arrays = [to_device(array) for array in case.args]
    bound = bind(case.kernel.signature, arrays, case.kwargs)
    grid = extent(case.grid, "grid")
    cluster = cluster_of(case.cluster, grid)
    traced = case.kernel.trace(bound, extent(case.block, "block"), cluster)
    module = case.kernel.built(traced, kd.target_of(TARGET), lines=True)
    loaded = load(module, options=AssembleOptions(line_info=True))
    loaded.launch(grid, case.block, traced.values(bound), cluster=cluster)
    arrays[-1].read()


def simulated(case: Case) -> kd.sim.Profile:
    """The counters of the simulator."""
    return kd.simulate(
        case.kernel, grid=case.grid, block=case.block, cluster=case.cluster, args=case.args,
        kwargs=case.kwargs, checks=(),
    ).profile  # fmt: skip


def ncu(name: str, *arguments: str) -> str:
    """What ncu prints for a case.

    Raises: RuntimeError when it fails, with the end of what it said.
    """
    program = [sys.executable, str(Path(__file__).resolve()), "--launch", name]
    command = ["ncu", "--csv", *QUIET, *arguments, *program]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-600:]
        raise RuntimeError(f"ncu ended with {done.returncode}: {said}")
    return done.stdout


def known_metrics() -> set[str]:
    """Base names of the metrics that this ncu has for Hopper; empty when it does not say."""
    asked = ["ncu", "--query-metrics", "--query-metrics-mode", "base", "--chips", "gh100"]
    done = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=120)
    words = (line.split() for line in done.stdout.splitlines())
    return {row[0] for row in words if row and "__" in row[0]}


def wanted_metrics() -> list[str]:
    """Every metric of the table that is not known to be missing."""
    known = known_metrics()
    every = dict.fromkeys(name for metric in kd.sim.METRICS for name in metric.ncu)
    return [n for n in every if not known or "__" not in n or n.removesuffix(".sum") in known]


def verdict(exact: bool, ours: float, theirs: float | None) -> str:
    """What a pair of numbers means."""
    if theirs is None:
        return "not measured"
    if ours == theirs:
        return "equal"
    return "differs" if exact else "estimate"


def totals(profile: kd.sim.Profile, measured: dict[str, float]) -> list[dict[str, Any]]:
    """Each comparison of the table for a whole kernel, without those where both are 0."""
    found = []
    for metric in kd.sim.METRICS:
        ours = sum(profile.totals[name] for name in metric.names)
        values = [measured[name] for name in metric.ncu if name in measured]
        theirs = sum(values) if len(values) == len(metric.ncu) else None
        if ours or theirs:
            word = verdict(metric.binds(profile.totals), ours, theirs)
            found.append({"names": metric.names, "ncu": metric.ncu, "ours": ours, "theirs": theirs,
                          "verdict": word, "why": metric.why})  # fmt: skip
    return found


def by_line(profile: kd.sim.Profile, measured: ncu_csv.LineCounts) -> list[dict[str, Any]]:
    """The comparisons that ncu has a column for, line by line; none where it found no source."""
    if not measured:
        return []
    ours = {(Path(row.file).name, row.line): row for row in profile.lines if row.file}
    found = []
    for metric in kd.sim.METRICS:
        for place in sorted({*ours, *measured}) if metric.page else ():
            counts = ours[place].counts if place in ours else {}
            mine = sum(counts.get(name, 0.0) for name in metric.names)
            theirs = measured.get(place, {}).get(metric.page, 0.0)
            if mine or theirs:
                found.append({"file": place[0], "line": place[1], "column": metric.page,
                              "ours": mine, "theirs": theirs,
                              "verdict": verdict(metric.binds(counts), mine, theirs)})  # fmt: skip
    return found


def compare(name: str, names: list[str]) -> dict[str, Any]:
    """One case: simulator against ncu, in total and by line; `error` where ncu failed."""
    case = CASES[name]()
    profile = simulated(case)
    try:
        values = ncu_csv.metrics(ncu(name, "--print-units", "base", "--metrics", ",".join(names)))
        page = ncu_csv.lines(ncu(name, *SOURCE_PAGE))
    except (RuntimeError, subprocess.TimeoutExpired) as problem:
        return {"case": name, "error": str(problem)}
    return {"case": name, "totals": totals(profile, values), "lines": by_line(profile, page)}


def is_wrong(result: dict[str, Any]) -> bool:
    """Whether ncu failed, or a counter differs that must be equal."""
    rows = [*result.get("totals", ()), *result.get("lines", ())]
    return "error" in result or any(row["verdict"] == "differs" for row in rows)


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
    names = wanted_metrics()
    results = []
    for name in options.cases:
        results.append(compare(name, names))
        print(table(results[-1]), flush=True)
        if options.json:  # after each case: a run that is cut short leaves what it had
            options.json.write_text(json.dumps({"metrics": names, "cases": results}, indent=1))
    return 1 if any(map(is_wrong, results)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
