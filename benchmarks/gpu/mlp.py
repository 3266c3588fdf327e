"""Gated products in one kernel against PyTorch: act(x · Wgᵀ) * (x · Wuᵀ), by turns.

    python3 benchmarks/gpu/mlp.py --seconds 95

All sides of a shape (kdsl's plans, torch eager and torch.compile, with two weights or with one that
holds both) run as CUDA graphs over rotating buffers of normal bf16. Each is first checked against
f64 at sampled places. The ratio is the fastest of PyTorch's over the fastest of kdsl's; "chosen" is
the plan that kdsl takes when nothing was measured. With `--down`, the product behind it is timed,
too, on all sides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timing
import torch
from report import geomean
from shapes import SHAPES_FILE, buffer_sets

import kdsl_core as kd
from kdsl_core.errors import KdslError
from kdsl_fuse.kernels import gemm_sm90_plan
from kdsl_fuse.kernels.gated_sm90_plan import GatedPlan, candidates, choose, gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, parse

functional = torch.nn.functional
ACTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {  # kdsl's, PyTorch's
    "swiglu": (silu, functional.silu),
    "geglu": (gelu, lambda x: functional.gelu(x, approximate="tanh")),
}
WORST_ERROR = 1e-2  # of sampled results, relative to their norm
SAMPLED = 128  # rows and columns that are computed in f64
KEPT = 3  # of kdsl's plans, timed by turns


@dataclass(frozen=True)
class Case:
    """(m, hidden) · two weights (inner, hidden)ᵀ, and with `down` (hidden, inner)ᵀ behind them."""

    m: int
    hidden: int
    inner: int
    act: str
    down: bool = False

    @property
    def name(self) -> str:
        """One of a kind."""
        tail = " + down" if self.down else ""
        return f"{self.m}x{self.hidden}x{self.inner} {self.act}{tail}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.m * self.hidden * self.inner * (3 if self.down else 2)

    @property
    def bytes(self) -> int:
        """Weights, operand and result."""
        weights = self.hidden * self.inner * (3 if self.down else 2)
        return 2 * (weights + self.m * (self.hidden + self.inner))


class Set:
    """One set of buffers; `gate` and `up` are the halves of `both`, as a user may keep them."""

    def __init__(self, case: Case) -> None:
        m, hidden, inner = case.m, case.hidden, case.inner
        self.x = self.normal(m, hidden)
        self.both = self.normal(2 * inner, hidden) / hidden**0.5
        self.gate, self.up = self.both[:inner], self.both[inner:]
        self.c = torch.empty(m, inner, device="cuda", dtype=torch.bfloat16)
        if case.down:
            self.down = self.normal(hidden, inner) / inner**0.5
            self.y = torch.empty(m, hidden, device="cuda", dtype=torch.bfloat16)

    @staticmethod
    def normal(*shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


class Trial:
    """One case: its buffers, and the sides that computed it right."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.sets = [Set(case) for _ in range(buffer_sets(case.bytes))]
        self.rows, self.columns = (
            torch.randint(0, size, (SAMPLED,), device="cuda")
            for size in (case.m, case.hidden if case.down else case.inner)
        )
        self.exact = self._exact()
        self.launches: dict[str, timing.Launch] = {}
        self.errors: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def _exact(self) -> torch.Tensor:
        """The result in f64 at sampled rows and columns."""
        s, act = self.sets[0], ACTS[self.case.act][1]
        x = s.x[self.rows].double()
        if not self.case.down:
            gate, up = (x @ w[self.columns].double().T for w in (s.gate, s.up))
            return act(gate) * up
        gate, up = (x @ w.double().T for w in (s.gate, s.up))
        return (act(gate) * up) @ s.down[self.columns].double().T

    def add(self, name: str, launch: Callable[[Set], torch.Tensor]) -> None:
        """Keep a side if its result is right."""
        s = self.sets[0]
        for result in (s.c, s.y) if self.case.down else (s.c,):
            result.fill_(float("nan"))
        try:
            part = launch(s)[self.rows][:, self.columns].double()
        except (KdslError, RuntimeError) as problem:
            self.failures[name] = str(problem).splitlines()[0]
            return
        error = float((part - self.exact).norm() / self.exact.norm())
        if not error < WORST_ERROR:
            self.failures[name] = f"error {error:.1e}"
            return
        self.errors[name] = error
        self.launches[name] = lambda i: launch(self.sets[i % len(self.sets)])

    def quickest(self, prefix: str, most: int) -> list[str]:
        """The fastest few sides of a kind, by a short look."""
        names = [name for name in self.launches if name.startswith(prefix)]
        if len(names) <= most:
            return names
        seconds = {name: timing.quick(self.launches[name], len(self.sets)) for name in names}
        return sorted(names, key=seconds.__getitem__)[:most]

    def timed(self, names: list[str], seconds: float) -> dict[str, timing.Times]:
        """The sides by turns."""
        count = len(self.sets)
        sides = {name: timing.prepared(self.launches[name], count) for name in names}
        return timing.interleaved(sides, seconds)


def ours(plan: GatedPlan, case: Case) -> Callable[[Set], torch.Tensor]:
    """A plan of kdsl's."""
    epilogue = gated(ACTS[case.act][0])
    down = gemm_sm90_plan.choose(case.m, case.hidden, case.inner, kd.bf16) if case.down else None

    def launch(s: Set) -> torch.Tensor:
        plan.run(s.x, s.gate, s.up, s.c, epilogue=epilogue)
        if down is None:
            return s.c
        down.run(s.c, s.down, s.y)
        return s.y

    return launch


def peers(case: Case) -> dict[str, Callable[[Set], torch.Tensor]]:
    """The ways to write it with PyTorch."""
    act = ACTS[case.act][1]

    def two(s: Set) -> torch.Tensor:
        return _two(s.x, s.gate, s.up, s.down if case.down else None)

    def merged(s: Set) -> torch.Tensor:
        return _merged(s.x, s.both, s.down if case.down else None)

    def _two(x: Any, gate: Any, up: Any, down: Any) -> Any:
        h = act(functional.linear(x, gate)) * functional.linear(x, up)
        return h if down is None else functional.linear(h, down)

    def _merged(x: Any, both: Any, down: Any) -> Any:
        gate, up = functional.linear(x, both).chunk(2, dim=-1)
        h = act(gate) * up
        return h if down is None else functional.linear(h, down)

    compiled_two = torch.compile(_two, dynamic=False)
    compiled_merged = torch.compile(_merged, dynamic=False)
    return {
        "torch eager": two,
        "torch eager, one weight": merged,
        "torch.compile": lambda s: compiled_two(s.x, s.gate, s.up, s.down if case.down else None),
        "torch.compile, one weight": lambda s: compiled_merged(
            s.x, s.both, s.down if case.down else None
        ),
    }


def plans_of(case: Case, options: argparse.Namespace) -> list[GatedPlan]:
    """kdsl's plans: the chosen one first, then stated ones or candidates."""
    sizes = case.m, case.inner, case.hidden
    first = choose(*sizes, kd.bf16)
    if options.plans:
        problem = first.both.problem
        return [first, *(GatedPlan(Sm90Plan(problem, *parse(text))) for text in options.plans)]
    return [first, *candidates(*sizes, kd.bf16, limit=options.candidates)]


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """All that is known of a case after measuring it."""
    trial = Trial(case)
    with torch.no_grad():
        for name, launch in peers(case).items():
            trial.add(name, launch)
        plans = plans_of(case, options)
        for plan in plans:
            if f"kdsl {plan}" not in trial.errors | trial.failures:
                trial.add(f"kdsl {plan}", ours(plan, case))
        chosen = f"kdsl {plans[0]}"
        best = trial.quickest("kdsl", KEPT)
        if chosen in trial.launches and chosen not in best:
            best.append(chosen)
        names = [*trial.quickest("torch", 4), *best]
        times = trial.timed(names, options.seconds_per_shape)
    sides = {name: {**found.record(), "error": trial.errors[name]} for name, found in times.items()}
    return {
        "name": case.name, "flops": case.flops, "bytes": case.bytes, "chosen": chosen,
        "sides": sides, "failures": trial.failures,
    }  # fmt: skip


def fastest(result: dict[str, Any], prefix: str) -> tuple[str, float]:
    """Name and seconds of the fastest side of a kind; infinite where there is none."""
    sides = {
        name: side["median"] for name, side in result["sides"].items() if name.startswith(prefix)
    }
    name = min(sides, key=sides.__getitem__, default="")
    return name, sides.get(name, float("inf"))


def line(result: dict[str, Any]) -> str:
    """A case in the table."""
    (mine, seconds), (peer, rival) = fastest(result, "kdsl"), fastest(result, "torch")
    chosen = result["sides"].get(result["chosen"], {}).get("median", float("nan"))
    return (
        f"{result['name']:<30} {1e6 * seconds:9.1f} µs {1e-12 * result['flops'] / seconds:4.0f} TF "
        f"{1e-12 * result['bytes'] / seconds:5.2f} TB/s  {rival / seconds:5.3f}  "
        f"(chosen {rival / chosen:5.3f})  {mine}; {peer} {1e6 * rival:.1f} µs"
    )


def table(results: list[dict[str, Any]], facts: dict[str, str]) -> str:
    """The whole report."""
    ratios = [fastest(r, "torch")[1] / fastest(r, "kdsl")[1] for r in results]
    lines = [" · ".join(f"{key} {value}" for key, value in facts.items()), *map(line, results)]
    for result in results:
        lines += [f"  {result['name']}: {k}: {v}" for k, v in result["failures"].items()]
    summary = f"geomean {geomean(ratios):.3f}  worst {min(ratios, default=float('nan')):.3f}"
    return "\n".join([*lines, f"{summary}  ({len(ratios)} shapes)"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--shapes", nargs="+", metavar="MxHxI", help="only these")
    words.add_argument("--plans", nargs="+", help="of kdsl's, instead of candidates")
    words.add_argument("--candidates", type=int, default=4, help="of the model's, beside others")
    words.add_argument("--down", action="store_true", help="with the product behind")
    words.add_argument("--seconds-per-shape", type=float, default=1.5)
    words.add_argument("--seconds", type=float, default=95.0, help="no shape is begun behind it")
    return words


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/mlp.json."""
    options = parser().parse_args()
    begun = time.monotonic()
    torch.manual_seed(0)
    rows = tomllib.loads(SHAPES_FILE.read_text())["fused_mlp"]["gated"]
    cases = [Case(*row, down=options.down) for row in rows]
    if options.shapes:
        cases = [c for c in cases if f"{c.m}x{c.hidden}x{c.inner}" in options.shapes]
    facts, results = timing.device_record(), []
    for case in cases:
        spent = time.monotonic() - begun
        if spent < options.seconds:
            results.append(measure(case, options))
            print(f"{time.monotonic() - begun:5.1f} s  {line(results[-1])}", flush=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()
    if os.environ.get("OUT"):
        record = {"device": facts, "arguments": sys.argv[1:], "results": results}
        (Path(os.environ["OUT"]) / "mlp.json").write_text(json.dumps(record, indent=1) + "\n")
    print()
    print(table(results, facts))


if __name__ == "__main__":
    main()
