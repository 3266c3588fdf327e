"""Grouped convolutions against cuDNN (channels last) and torch.compile, by turns.

    python3 benchmarks/gpu/conv_grouped.py --seconds 80
    python3 benchmarks/gpu/conv_grouped.py --fused --seconds 80

The shapes are `conv.grouped` of benchmarks/shapes.toml, NHWC in bf16 of normal numbers. Each side
is checked against f64 on the first and the last image, then timed as CUDA graphs over rotating
buffers; cuDNN chooses its algorithm by measuring (`cudnn.benchmark`). With `--fused` a bias, a
residual and a ReLU follow. The ratio is the fastest of PyTorch's over the fastest of kdsl's;
"chosen" is kdsl's own choice. `--space 10` tries kdsl's other
configurations for ten seconds a shape.
"""

from __future__ import annotations

import argparse
import math
import random
import time
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

import timing
import torch
from conv_cases import Case, exact, normal
from shapes import SHAPES_FILE, buffer_sets
from sides import Result, Sides, run

import kdsl_core as kd
from kdsl_core.ir.target import target_of
from kdsl_fuse.kernels.conv_grouped_plan import GroupedPlan, broadcast, candidates, choose
from kdsl_fuse.kernels.gemm_sm90 import identity

functional = torch.nn.functional
KEPT = 3  # of kdsl's plans, timed by turns
PROMISING = 80  # plans from which others are drawn


class Set:
    """One set of buffers, NHWC; PyTorch sees them as NCHW, channels last."""

    def __init__(self, case: Case) -> None:
        p = case.problem
        depth = p.channels // p.groups
        self.x = normal(p.batch, p.height, p.width, p.channels)
        self.w = normal(p.filters, *p.kernel, depth)
        self.w /= math.sqrt(depth * p.kernel[0] * p.kernel[1])
        self.out = torch.empty(p.batch, *p.output, p.filters, device="cuda", dtype=torch.bfloat16)
        self.extras: tuple[torch.Tensor, ...] = ()
        if case.fused:
            self.bias, self.residual = normal(p.filters), torch.randn_like(self.out)
            self.extras = (broadcast(self.bias, tuple(self.out.shape)), self.residual)


def exact_of(case: Case, s: Set) -> torch.Tensor:
    """The first and the last image's results in f64."""
    some = [0, -1]
    y = exact(s.x[some], s.w, case.problem)
    if case.fused:
        y = torch.relu(y + s.bias.double() + s.residual[some].double())
    return y


def peers(case: Case) -> dict[str, Callable[[Set], torch.Tensor]]:
    """PyTorch's ways."""
    p = case.problem

    def conv(x: Any, w: Any, bias: Any = None) -> Any:
        seen = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        return functional.conv2d(*seen, bias, p.stride, p.padding, p.dilation, p.groups)

    def block(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        y = torch.relu(conv(x, w, bias) + residual.permute(0, 3, 1, 2))
        return y.permute(0, 2, 3, 1)

    if not case.fused:
        return {"torch cuDNN": lambda s: conv(s.x, s.w).permute(0, 2, 3, 1)}
    compiled = torch.compile(block, dynamic=False)

    def of(function: Any) -> Callable[[Set], torch.Tensor]:
        return lambda s: function(s.x, s.w, s.bias, s.residual)

    return {"torch.compile": of(compiled), "torch eager": of(block)}


def tail(acc: Any, bias: Any, residual: Any) -> Any:
    """Bias, residual, and ReLU."""
    return kd.maximum(acc + bias.to(kd.f32) + residual.to(kd.f32), 0.0)


def ours(case: Case, plan: GroupedPlan) -> Callable[[Set], torch.Tensor]:
    """A plan of kdsl's."""
    epilogue = tail if case.fused else identity

    def launch(s: Set) -> torch.Tensor:
        plan.run(s.x, s.w, s.out, *s.extras, epilogue=epilogue)
        return s.out

    return launch


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All that is known of a case after measuring it."""
    first = Set(case)
    sets = [first, *(Set(case) for _ in range(buffer_sets(case.bytes) - 1))]
    sides = Sides(sets, exact_of(case, first), lambda y: y[[0, -1]], lambda s: (s.out,))
    for name, launch in peers(case).items():
        sides.add(name, launch)
    staged = 1 if case.fused else None
    chosen = choose(case.problem, staged=staged)
    sides.add(f"kdsl {chosen}", ours(case, chosen))
    end = time.monotonic() + options.space
    others = []
    if options.space:
        others = candidates(case.problem, target_of("sm_90a"), staged=staged)[:PROMISING]
    if case.fused:
        sides.add(f"kdsl {choose(case.problem)}", ours(case, choose(case.problem)))
    random.Random(0).shuffle(others)
    for plan in others:
        if time.monotonic() < end:
            sides.add(f"kdsl {plan}", ours(case, plan))
    quick = {}
    for name in [name for name in sides.launches if name.startswith("kdsl")]:
        quick[name] = 1e6 * timing.quick(sides.launches[name], len(sets))
    if options.space:
        for name, microseconds in sorted(quick.items(), key=lambda item: item[1]):
            print(f"    {microseconds:8.1f} µs  {name}", flush=True)
    best = sorted(quick, key=quick.__getitem__)[:KEPT]
    names = [*(n for n in sides.launches if n.startswith("torch")), f"kdsl {chosen}", *best]
    names = [name for name in names if name in sides.launches]
    return {
        "name": case.name, "flops": case.problem.flops, "bytes": case.bytes, "quick": quick,
        "chosen": f"kdsl {chosen}", **sides.timed(names, options.seconds_per_shape),
    }  # fmt: skip


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/conv_grouped.json."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--cases", nargs="+", type=int, help="numbers of shapes, instead of all")
    words.add_argument("--fused", action="store_true", help="with bias, residual and ReLU")
    words.add_argument("--space", type=float, default=0.0, help="seconds for other plans of ours")
    words.add_argument("--seconds-per-shape", type=float, default=0.8)
    words.add_argument("--seconds", type=float, default=80.0, help="no shape is begun behind it")
    options = words.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = tomllib.loads(SHAPES_FILE.read_text())["conv"]["grouped"]
    chosen = options.cases or range(len(rows))
    cases = [Case.of(row, options.fused) for i, row in enumerate(rows) if i in chosen]
    bandwidth = timing.copy_bandwidth()
    print(f"copy of 1 GiB: {1e-12 * bandwidth:.2f} TB/s", flush=True)
    run(cases, partial(measure, options=options), options.seconds, "conv_grouped")


if __name__ == "__main__":
    main()
