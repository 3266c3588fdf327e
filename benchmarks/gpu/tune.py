"""Time many configurations of the Hopper GEMM on each shape of a set, quickly, in one process.

    PYTHONPATH=… python3 benchmarks/gpu/tune.py decode skinny --seconds 90 --journal tuning.jsonl

Beside the model's first choices it tries the designs of the kernel's space. `kdsl tune gemm_sm90`
tunes one product with less; here cuBLAS is timed beside it, for many products in one process. With
`--plans FILE`, a JSON object of "MxNxK" to lists of plans, it tries just those. The journal has
one JSON line a shape: microseconds by plan, of cuBLAS too. `benchmarks/make_table.py`
makes a dispatch table of journals, `benchmarks/fit_sm90_model.py` fits the model to them.
Times are of short bursts; `--best FILE` keeps the fastest few plans for `gemm.py --plans FILE`,
which times them by turns at a clock that has settled.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from operands import Buffers, buffers_of, spoil
from ours import DTYPES
from peers import at
from shapes import Case, load_cases
from timing import quick

from kdsl_core.errors import KdslError
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, candidates, parse, problem_of
from kdsl_fuse.kernels.gemm_sm90_space import designs

WORST_ERROR = 5e-3  # of a result against cuBLAS's, relative to its norm


def measured(plan: Sm90Plan, sets: list[Buffers], reference: torch.Tensor) -> float | str:
    """Microseconds of a plan, or why there are none."""
    try:
        parts = plan.parts(sets[0].a, sets[0].c)

        def launch(i: int) -> None:
            b = at(sets, i)
            plan.run(b.a, b.w, b.c, parts=parts)

        spoil(sets[0].c)
        launch(0)
        error = (sets[0].c.float() - reference).norm() / reference.norm()
        if not error < WORST_ERROR:
            return f"error {float(error):.1e}"
        return round(1e6 * quick(launch, len(sets)), 2)
    except KdslError as problem:
        return str(problem).splitlines()[0]


def choice(case: Case, most: int, stated: dict[str, list[str]]) -> list[Sm90Plan]:
    """The plans to time: those stated for the shape, or the most promising ones."""
    problem = problem_of(*case.shape, DTYPES[case.dtype])
    if stated:
        return [Sm90Plan(problem, *parse(text)) for text in stated["x".join(map(str, case.shape))]]
    plans = candidates(*case.shape, DTYPES[case.dtype], limit=8)
    others = sorted(designs(*case.shape, DTYPES[case.dtype]), key=lambda plan: plan.cycles)
    return [*plans, *others][:most]


def tuned(case: Case, plans: list[Sm90Plan]) -> dict[str, object]:
    """The journal's record of one shape."""
    sets = buffers_of(case)
    reference = torch.mm(sets[0].a, sets[0].w.T).float()
    chosen = {str(plan): plan for plan in plans}
    found = {name: measured(plan, sets, reference) for name, plan in chosen.items()}

    def rival(i: int) -> None:
        b = at(sets, i)
        torch.mm(b.a, b.w.T, out=b.c)

    return {
        "shape": case.shape,
        "cublas": round(1e6 * quick(rival, len(sets)), 2),
        "us": {name: us for name, us in found.items() if isinstance(us, float)},
        "fails": {name: why for name, why in found.items() if isinstance(why, str)},
    }


def main() -> None:
    """Tune the shapes of the sets, as long as the time lasts."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("sets", nargs="+")
    words.add_argument("--seconds", type=float, default=90.0)
    words.add_argument("--most", type=int, default=80, help="configurations of a shape")
    words.add_argument("--plans", type=Path, help="try just the plans in this file")
    words.add_argument("--best", type=Path, help="write the fastest plans of each shape there")
    words.add_argument("--keep", type=int, default=6, help="how many")
    words.add_argument("--journal", type=Path, default=Path("tuning.jsonl"))
    options = words.parse_args()
    end = time.monotonic() + options.seconds
    stated = json.loads(options.plans.read_text()) if options.plans else {}
    cases = [case for name in options.sets for case in load_cases()[name]]
    if stated:
        cases = [case for case in cases if "x".join(map(str, case.shape)) in stated]
    best: dict[str, list[str]] = {}
    with options.journal.open("a", encoding="utf-8") as journal:
        for case in cases:
            if time.monotonic() > end:
                print("out of time before", case.shape)
                break
            record = tuned(case, choice(case, options.most, stated))
            journal.write(json.dumps(record) + "\n")
            journal.flush()
            us = record["us"]
            assert isinstance(us, dict)
            fastest = sorted(us, key=us.__getitem__)[: options.keep]
            best["x".join(map(str, case.shape))] = fastest
            shown = (f"| {x} {us[x]}" for x in fastest[:3])
            print(case.shape, f"cuBLAS {record['cublas']} µs", *shown, flush=True)
            if options.best:
                options.best.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
