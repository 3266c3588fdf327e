"""Several programs for one case: each checked at sampled places, then timed by turns, and a table.

For benchmarks that run in one process: a side that is wrong, or raises, is left out and named.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timing
import torch
from report import geomean

from kdsl_core.errors import KdslError

FAILURES = (KdslError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)
WORST_ERROR = 1e-2  # of sampled results, relative to their norm
Result = dict[str, Any]


@dataclass
class Sides:
    """The sides of one case that are right: `sample` of their result is `exact`, in f64.

    `sets` are buffers that take turns; a side is a function of one of them that gives the result.
    Results that sides write to, given by `spoil`, are filled with NaN before each check.
    """

    sets: list[Any]
    exact: torch.Tensor
    sample: Callable[[torch.Tensor], torch.Tensor]
    spoil: Callable[[Any], Iterable[torch.Tensor]]
    launches: dict[str, timing.Launch] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, program: Callable[[Any], torch.Tensor]) -> None:
        """Run a side once, and keep it if its result is right."""
        if name in self.launches or name in self.failures:
            return
        for result in self.spoil(self.sets[0]):
            result.fill_(math.nan)
        try:
            found = self.sample(program(self.sets[0])).double()
            error = float((found - self.exact).norm() / self.exact.norm())
        except FAILURES as problem:
            self.failures[name] = f"{type(problem).__name__}: {problem}".splitlines()[0]
            return
        if not error < WORST_ERROR:
            self.failures[name] = f"error {error:.1e}"
            return
        self.errors[name] = error
        self.launches[name] = lambda i: program(self.sets[i % len(self.sets)])

    def quickest(self, prefix: str, most: int) -> list[str]:
        """The fastest few sides of a kind, by a short look."""
        names = [name for name in self.launches if name.startswith(prefix)]
        if len(names) <= most:
            return names
        seconds = {name: timing.quick(self.launches[name], len(self.sets)) for name in names}
        return sorted(names, key=seconds.__getitem__)[:most]

    def timed(self, names: Iterable[str], seconds: float) -> Result:
        """What is known of the sides after timing those named by turns, for the JSON."""
        chosen = {
            name: timing.prepared(self.launches[name], len(self.sets))
            for name in dict.fromkeys(names)
        }
        found = timing.interleaved(chosen, seconds)
        records = {
            name: {**times.record(), "error": self.errors[name]} for name, times in found.items()
        }
        return {"sides": records, "failures": self.failures}


def fastest(result: Result, prefix: str) -> tuple[str, float]:
    """Name and seconds of the fastest side of a kind; infinite where there is none."""
    sides = {
        name: side["median"] for name, side in result["sides"].items() if name.startswith(prefix)
    }
    name = min(sides, key=sides.__getitem__, default="")
    return name, sides.get(name, math.inf)


def ratio(result: Result) -> float:
    """How many times faster kdsl's fastest side is than PyTorch's."""
    return fastest(result, "torch")[1] / fastest(result, "kdsl")[1]


def line(result: Result) -> str:
    """A case in the table: kdsl's fastest side and PyTorch's, and what `chosen` would give."""
    (mine, seconds), (peer, rival) = fastest(result, "kdsl"), fastest(result, "torch")
    chosen = result["sides"].get(result["chosen"], {}).get("median", math.nan)
    teraflops = 1e-12 * result["flops"]
    return (
        f"{result['name']:<36} {1e6 * seconds:9.1f} µs {teraflops / seconds:4.0f} TF "
        f"{1e-12 * result['bytes'] / seconds:5.2f} TB/s {rival / seconds:6.3f} "
        f"(chosen {rival / chosen:5.3f})  {mine}; {peer} {1e6 * rival:.1f} µs "
        f"{teraflops / rival:.0f} TF"
    )


def table(results: list[Result], facts: dict[str, str]) -> str:
    """The whole report."""
    lines = [" · ".join(f"{key} {value}" for key, value in facts.items()), *map(line, results)]
    for result in results:
        lines += [f"  {result['name']}: {k}: {v}" for k, v in result["failures"].items()]
    ratios = [ratio(result) for result in results]
    summary = f"geomean {geomean(ratios):.3f}  worst {min(ratios, default=math.nan):.3f}"
    return "\n".join([*lines, f"{summary}  ({len(ratios)} shapes)"])


def run(cases: Iterable[Any], measure: Callable[[Any], Result], seconds: float, name: str) -> None:
    """Measure case after case, none begun after `seconds`; the table, and $OUT/`name`.json."""
    begun = time.monotonic()
    torch.manual_seed(0)
    facts, results = timing.device_record(), []
    for case in cases:
        if time.monotonic() - begun < seconds:
            with torch.no_grad():
                results.append(measure(case))
            print(f"{time.monotonic() - begun:5.1f} s  {line(results[-1])}", flush=True)
            torch.compiler.reset()  # else the limit of recompilations makes later cases eager
            torch.cuda.empty_cache()
    if os.environ.get("OUT"):
        record = {"device": facts, "arguments": sys.argv[1:], "results": results}
        path = Path(os.environ["OUT"]) / f"{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
    print()
    print(table(results, facts))
