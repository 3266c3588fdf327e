"""Dense convolutions against cuDNN (channels last) and torch.compile, by turns.

    python3 benchmarks/gpu/conv.py --seconds 80
    python3 benchmarks/gpu/conv.py --fused --seconds 80

The shapes are `conv.dense` of benchmarks/shapes.toml, NHWC in bf16 of normal numbers. Each side is
checked against f64 on the first and the last image, then timed as CUDA graphs over rotating
buffers; cuDNN chooses its algorithm by measuring (`cudnn.benchmark`). With `--fused` a BatchNorm
with statistics, a residual and a ReLU follow, which PyTorch's side has from torch.compile, too. The
ratio is the fastest of PyTorch's over the fastest of kdsl's; "chosen" is kdsl's own choice.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import timing
import torch
from conv_cases import Case, exact, normal
from shapes import SHAPES_FILE, buffer_sets
from sides import Result, Sides, run

import kdsl_core as kd
from kdsl_fuse.kernels import gemm_sm90_plan, stem_sm90_plan
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, choose, plan_of
from kdsl_fuse.kernels.conv_sm90_space import designs
from kdsl_fuse.kernels.gemm_sm90 import identity

functional = torch.nn.functional
KEPT = 4  # of kdsl's plans, timed by turns
EPSILON = 1e-5  # of the BatchNorm


class Set:
    """One set of buffers, NHWC; PyTorch sees them as NCHW, channels last."""

    def __init__(self, case: Case) -> None:
        p = case.problem
        taps = p.kernel[0] * p.kernel[1] * p.channels
        self.x = normal(p.batch, p.height, p.width, p.channels)
        self.w = normal(p.filters, *p.kernel, p.channels) / math.sqrt(taps)
        self.out = torch.empty(p.batch, *p.output, p.filters, device="cuda", dtype=torch.bfloat16)
        self.extras: tuple[torch.Tensor, ...] = ()
        if case.fused:
            self.mean, self.bias = (0.1 * torch.randn(p.filters, device="cuda") for _ in range(2))
            self.variance, self.gain = (0.5 + torch.rand(p.filters, device="cuda") for _ in "vg")
            self.residual = torch.randn_like(self.out)
            scale = self.gain / torch.sqrt(self.variance + EPSILON)
            self.extras = (scale, self.bias - self.mean * scale, self.residual)


def exact_of(case: Case, s: Set) -> torch.Tensor:
    """The first and the last image's results in f64."""
    some = [0, -1]
    y = exact(s.x[some], s.w, case.problem)
    if case.fused:
        scale, bias, residual = s.extras
        y = torch.relu(y * scale.double() + bias.double() + residual[some].double())
    return y


def peers(case: Case) -> dict[str, Callable[[Set], torch.Tensor]]:
    """PyTorch's ways."""
    p = case.problem

    def conv(x: Any, w: Any) -> Any:
        seen = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        return functional.conv2d(*seen, None, p.stride, p.padding, p.dilation)

    def block(x: Any, w: Any, mean: Any, variance: Any, gain: Any, bias: Any, residual: Any) -> Any:
        y = functional.batch_norm(conv(x, w), mean, variance, gain, bias, False, 0.0, EPSILON)
        return torch.relu(y + residual.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    if not case.fused:
        return {"torch cuDNN": lambda s: conv(s.x, s.w).permute(0, 2, 3, 1)}
    compiled = torch.compile(block, dynamic=False)

    def of(function: Any) -> Callable[[Set], torch.Tensor]:
        return lambda s: function(s.x, s.w, s.mean, s.variance, s.gain, s.bias, s.residual)

    return {"torch.compile": of(compiled), "torch eager": of(block)}


def tail(acc: Any, scale: Any, bias: Any, residual: Any) -> Any:
    """A BatchNorm as a scale and a bias, a residual, and ReLU."""
    return kd.maximum(acc * scale + bias + residual.to(kd.f32), 0.0)


def ours(case: Case, plan: ConvPlan) -> Callable[[Set], torch.Tensor]:
    """A plan of kdsl's."""
    epilogue = tail if case.fused else identity

    def launch(s: Set) -> torch.Tensor:
        plan.run(s.x, s.w, s.out, *s.extras, epilogue=epilogue)
        return s.out

    return launch


def plans_of(case: Case, options: argparse.Namespace) -> list[ConvPlan]:
    """The chosen plan, and others worth a look."""
    first = choose(case.problem, kd.bf16, tail=case.fused, reads=case.fused)
    if options.most == 1:
        return [first]
    others = designs(case.problem, kd.bf16)
    if options.plans:
        stated = tomllib.loads(options.plans.read_text()).get(case.name.removesuffix(" fused"), ())
        others = (
            plan_of(case.problem, kd.bf16, None, *gemm_sm90_plan.parse(text)) for text in stated
        )
    if stem_sm90_plan.fits(case.problem):
        others = [*stem_sm90_plan.candidates(case.problem), *others]
    return list({str(plan): plan for plan in (first, *others)}.values())


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All that is known of a case after measuring it: short looks at all, the best by turns."""
    first = Set(case)
    sets = [first, *(Set(case) for _ in range(buffer_sets(case.bytes) - 1))]
    sides = Sides(sets, exact_of(case, first), lambda y: y[[0, -1]], lambda s: (s.out,))
    for name, launch in peers(case).items():
        if not (options.no_compile and name == "torch.compile"):
            sides.add(name, launch)
    plans = plans_of(case, options)
    for plan in plans[: options.most]:
        if options.verbose:
            print(f"  {plan}", flush=True)
        sides.add(f"kdsl {plan}", ours(case, plan))
    looks = {
        name: round(1e6 * timing.quick(launch, len(sets)), 1)
        for name, launch in sides.launches.items()
    }
    names = sorted(looks, key=looks.__getitem__)
    print("       ", " | ".join(f"{name} {looks[name]}" for name in names[:8]))
    chosen = f"kdsl {plans[0]}"
    kept = [name for name in names if name.startswith("kdsl")][:KEPT]
    timed = [*(name for name in names if name.startswith("torch") or name == chosen), *kept]
    return {
        "name": case.name, "problem": asdict(case.problem), "fused": case.fused,
        "flops": case.problem.flops, "bytes": case.bytes, "chosen": chosen, "looks": looks,
        **sides.timed(timed, options.seconds_per_shape),
    }  # fmt: skip


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/conv.json."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--cases", nargs="+", type=int, help="numbers of shapes, instead of all")
    words.add_argument("--fused", action="store_true", help="BatchNorm, residual and ReLU behind")
    words.add_argument("--batch", type=int, help="images, instead of the shapes' own numbers")
    words.add_argument("--most", type=int, default=30, help="plans of kdsl for a shape")
    words.add_argument("--verbose", action="store_true", help="name each plan before it runs")
    words.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    words.add_argument("--plans", type=Path, help="TOML file of plans by shape, to time instead")
    words.add_argument("--seconds-per-shape", type=float, default=0.5)
    words.add_argument("--seconds", type=float, default=80.0, help="no shape is begun behind it")
    options = words.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = tomllib.loads(SHAPES_FILE.read_text())["conv"]["dense"]
    chosen = options.cases or range(len(rows))
    sized = [[options.batch or rows[i][0], *rows[i][1:]] for i in chosen]
    cases = [Case.of(row, options.fused) for row in sized]
    name = "conv-fused" if options.fused else "conv"
    run(cases, partial(measure, options=options), options.seconds, name)


if __name__ == "__main__":
    main()
