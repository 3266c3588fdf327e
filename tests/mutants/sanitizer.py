"""The campaign's mutants on a GPU under compute-sanitizer, side by side with the simulator.

PYTHONPATH=packages/…/src:tests python3 -m mutants.sanitizer --each 16 --json sanitizer.json

Only mutants that end: what the simulator calls a deadlock or a misused barrier may hang a GPU.
`--each` of those that it catches by one code, or by wrong numbers alone, run under each tool in a
process of their own. Unchanged kernels run as well: a tool that complains of them proves nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import kdsl_core as kd
from kdsl_core.lang.arguments import bind
from kdsl_core.ptx import emit
from kdsl_runtime.device_copy import DeviceCopy
from mutants.campaign import campaign, chosen
from mutants.trial import Outcome, bench

TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
ENDS = ("K501", "K502", "K503", "K504", "K512", "K513", "wrong")  # mutants that cannot hang
TARGET = "sm_90a"
FOUND, HUNG = 9, -1  # exit statuses
PATIENCE = 60  # seconds
UNCHANGED = -1  # the number that stands for no mutant


@dataclass(frozen=True)
class Compared:
    """A mutant, what the simulator says of it ("wrong" for numbers), and which tools report it."""

    case: str
    number: int
    operator: str
    simulator: str
    reported: tuple[str, ...]
    failed: tuple[str, ...]


def launch(name: str, number: int) -> None:
    """Run a mutant, or the unchanged kernel, once on the GPU."""
    from kdsl_runtime.launch import load

    place = bench(name)
    traced = place.traced
    if number != UNCHANGED:
        mutant = list(place.mutants())[number]
        traced = place.traced_as(mutant.apply(traced.kernel))
    arrays = [DeviceCopy(x) if isinstance(x, np.ndarray) else x for x in place.launch.args()]
    bound = bind(place.launch.kernel.signature, arrays, place.launch.statics)
    loaded = load(emit(traced.kernel, kd.target_of(TARGET)))
    block = traced.kernel.block_dim
    loaded.launch(place.grid, block, traced.values(bound), cluster=place.cluster)
    next(x for x in arrays if isinstance(x, DeviceCopy)).read()  # waits


def runnable(each: int, sample: int, processes: int) -> Iterator[Outcome]:
    """Of a sample of all mutants up to `each` that the simulator catches in the same way."""
    missing = Counter(dict.fromkeys(ENDS, each))
    outcomes = list(campaign(chosen("*", "*", sample), processes))
    for outcome in sorted(outcomes, key=lambda o: (o.case, o.number)):
        if missing[kind_of(outcome)] > 0:
            missing[kind_of(outcome)] -= 1
            yield outcome


def kind_of(outcome: Outcome) -> str:
    """The code of a hazard, "wrong" for numbers alone, or what else became of a mutant."""
    return outcome.code if outcome.result == "caught" else outcome.result


def status(tool: str, name: str, number: int) -> int:
    """The exit status of one run under one tool."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    command += ["--report-api-errors", "no", sys.executable, "-m", "mutants.sanitizer"]
    try:
        return subprocess.run(
            [*command, "--launch", name, str(number)], capture_output=True, timeout=PATIENCE
        ).returncode
    except subprocess.TimeoutExpired:
        return HUNG


def compared(pool: ThreadPoolExecutor, outcomes: Sequence[Outcome]) -> list[Compared]:
    """What the tools say of mutants."""
    runs = [{tool: pool.submit(status, tool, o.case, o.number) for tool in TOOLS} for o in outcomes]
    found = []
    for outcome, run in zip(outcomes, runs, strict=True):
        ended = {tool: future.result() for tool, future in run.items()}
        reported = tuple(tool for tool, code in ended.items() if code == FOUND)
        failed = tuple(tool for tool, code in ended.items() if code not in (0, FOUND))
        names = outcome.case, outcome.number, outcome.operator, kind_of(outcome)
        found.append(Compared(*names, reported, failed))
    return found


def table(rows: Sequence[Compared]) -> str:
    """Markdown: how many mutants of each kind the simulator and the tools report."""
    head = ["simulator says", "mutants", *TOOLS, "any tool", "run failed", "neither"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind in ("unchanged", *ENDS):
        some = [row for row in rows if row.simulator == kind]
        silent = sum(not row.reported for row in some) if kind == "wrong" else 0
        counts = [
            len(some), *(sum(tool in row.reported for row in some) for tool in TOOLS),
            sum(bool(row.reported) for row in some), sum(bool(row.failed) for row in some), silent,
        ]  # fmt: skip
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main() -> None:
    """Choose, run, and show the table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--each", type=int, default=16, help="mutants of each kind")
    words.add_argument("--sample", type=int, default=600, help="mutants to choose them from")
    words.add_argument("--processes", type=int, default=12)
    words.add_argument("--json", type=Path)
    words.add_argument("--launch", nargs=2, metavar=("CASE", "NUMBER"), help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.launch:
        launch(options.launch[0], int(options.launch[1]))
        return
    mutants = list(runnable(options.each, options.sample, options.processes))
    names = sorted({outcome.case for outcome in mutants})
    controls = [Outcome(name, "", UNCHANGED, "", "", "unchanged") for name in names]
    with ThreadPoolExecutor(options.processes) as pool:
        rows = compared(pool, [*controls, *mutants])
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
