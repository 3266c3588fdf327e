"""kdsl's matrix products against PyTorch (cuBLAS) and the best of cuBLASLt, side by side.

    python3 benchmarks/gpu/gemm.py --sets square decode --json results/gpu/gemm.json

All sides of a shape run by turns, as CUDA graphs over random normal buffers that the L2 cache
cannot hold; figures are medians. Every candidate is first checked against f64 at sampled rows and
columns and against the whole of cuBLAS's result. `--tune` tries all candidates of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import case_line, table
from shapes import Case, load_cases
from supervise import Supervisor


def parser() -> argparse.ArgumentParser:
    """The command line."""
    sets = load_cases()
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--sets", nargs="+", choices=sets, default=["square"])
    words.add_argument("--shapes", nargs="+", metavar="MxNxK", help="only these of the sets")
    words.add_argument("--dtype", choices=("bf16", "f16"), help="instead of bf16")
    words.add_argument("--tune", action="store_true", help="try all candidates of ours")
    words.add_argument("--plans", type=Path, metavar="FILE",
                       help='of ours also these: JSON of "MxNxK" to lists of plans')  # fmt: skip
    words.add_argument("--first", type=int, default=1, help="how many of ours without --tune")
    words.add_argument("--keep", type=int, default=3, help="how many of ours are timed by turns")
    words.add_argument("--candidates", type=int, default=12, help="how many of ours are made")
    words.add_argument("--compile", nargs="*", default=["default"], metavar="MODE",
                       help="modes of torch.compile, for the fused set")  # fmt: skip
    words.add_argument("--seconds-per-shape", type=float, default=1.0)
    words.add_argument("--seconds", type=float, default=540.0, help="for the whole run")
    words.add_argument("--silence", type=float, default=60.0, help="seconds until a worker hangs")
    words.add_argument("--json", type=Path, default=default_json())
    words.add_argument("--worker", nargs=2, type=Path, help=argparse.SUPPRESS)
    return words


def default_json() -> Path | None:
    """`gemm.json` in the folder $OUT, where there is one."""
    return Path(os.environ["OUT"]) / "gemm.json" if os.environ.get("OUT") else None


def selected(options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for."""
    sets = load_cases()
    cases = [case for name in options.sets for case in sets[name]]
    if options.shapes:
        cases = [c for c in cases if "x".join(map(str, c.shape)) in options.shapes]
    if options.dtype:
        cases = [replace(c, dtype=options.dtype) if c.dtype == "bf16" else c for c in cases]
    return cases


def work(options: argparse.Namespace) -> None:
    """Measure the jobs of a file, in order, and write the journal of `supervise`."""
    import measure
    import timing
    import torch

    jobs, journal = options.worker

    def write(**entry: Any) -> None:
        with journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    torch.manual_seed(0)
    write(copy=timing.copy_bandwidth(), device=timing.device_record())
    chosen = measure.Options(
        options.seconds_per_shape, options.tune, options.first, options.keep, options.candidates,
        tuple(options.compile), json.loads(options.plans.read_text()) if options.plans else {},
    )  # fmt: skip
    for job in json.loads(jobs.read_text()):
        case, excluded = Case(**job["case"]), frozenset(job["excluded"])
        result = measure.measure(
            case, chosen, excluded, lambda text, name=case.name: write(case=name, trying=text)
        )
        write(case=case.name, result=result)
        measure.release()


def main() -> None:
    """Measure in workers, tell each case as it comes, then the table; keep all in the JSON."""
    options = parser().parse_args()
    if options.worker:
        work(options)
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(
            command,
            Path(folder),
            options.silence,
            deadline,
            lambda result: print(case_line(result), flush=True),
        )
        results = supervisor.run(selected(options))
    facts = supervisor.facts
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {**facts, "arguments": sys.argv[1:], "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print()
    print(table(results, facts.get("device", {}), facts.get("copy")))


if __name__ == "__main__":
    main()
