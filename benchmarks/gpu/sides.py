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
RIVALS = ("torch", "Triton")  # how the names of other programs' sides start
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
            self.failures[name] = one_line(problem)
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
        seconds = {}
        for name in names:
            try:
                seconds[name] = timing.quick(self.launches[name], len(self.sets))
            except FAILURES as problem:
                self.failures[name] = one_line(problem)
        return sorted(seconds, key=seconds.__getitem__)[:most]

    def timed(self, names: Iterable[str], seconds: float) -> Result:
        """What is known of the sides after timing those named by turns, for the JSON."""
        chosen = {}
        for name in dict.fromkeys(names):
            try:
                chosen[name] = timing.prepared(self.launches[name], len(self.sets))
            except FAILURES as problem:
                self.failures[name] = one_line(problem)
        found = timing.interleaved(chosen, seconds)
        records = {
            name: {**times.record(), "error": self.errors[name]} for name, times in found.items()
        }
        return {"sides": records, "failures": self.failures}


def one_line(problem: BaseException) -> str:
    """An error's type, and the first line of what it says."""
    return f"{type(problem).__name__}: {problem}".splitlines()[0]


def fastest(result: Result, *prefixes: str) -> tuple[str, float]:
    """Name and seconds of the fastest side of some kinds; infinite where there is none."""
    sides = {
        name: side["median"] for name, side in result["sides"].items() if name.startswith(prefixes)
    }
    name = min(sides, key=sides.__getitem__, default="")
    return name, sides.get(name, math.inf)


def ratio(result: Result) -> float:
    """How many times faster kdsl's fastest side is than the others'."""
    return fastest(result, *RIVALS)[1] / fastest(result, "kdsl")[1]


def line(result: Result) -> str:
    """A case in the table: kdsl's fastest side and the others', and what `chosen` would give."""
    if "error" in result:
        return f"{result['name']:<36} failed: {result['error'][:160]}"
    (mine, seconds), (peer, rival) = fastest(result, "kdsl"), fastest(result, *RIVALS)
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
    ratios = [ratio(result) for result in results if "error" not in result]
    summary = f"geomean {geomean(ratios):.3f}  worst {min(ratios, default=math.nan):.3f}"
    return "\n".join([*lines, f"{summary}  ({len(ratios)} shapes)"])


def run(cases: Iterable[Any], measure: Callable[[Any], Result], seconds: float, name: str) -> None:
    """Measure case after case, none begun after `seconds`; the table, and $OUT/`name`.json.

    The file is written after each case, and a case that fails costs only itself.
    """
    begun = time.monotonic()
    torch.manual_seed(0)
    facts, results = timing.device_record(), []
    for case in cases:
        if time.monotonic() - begun < seconds:
            results.append(_tried(case, measure))
            print(f"{time.monotonic() - begun:5.1f} s  {line(results[-1])}", flush=True)
            _keep(name, {"device": facts, "arguments": sys.argv[1:], "results": results})
            torch.compiler.reset()  # else the limit of recompilations makes later cases eager
            torch.cuda.empty_cache()
    print()
    print(table(results, facts))


def _tried(case: Any, measure: Callable[[Any], Result]) -> Result:
    try:
        with torch.no_grad():
            return measure(case)
    except FAILURES as problem:
        return {"name": case.name, "error": one_line(problem), "sides": {}, "failures": {}}


def _keep(name: str, record: Result) -> None:
    if os.environ.get("OUT"):
        path = Path(os.environ["OUT"]) / f"{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
