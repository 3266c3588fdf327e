"""Depthwise convolutions against cuDNN (PyTorch, channels last), side by side.

    python3 benchmarks/gpu/conv_depthwise.py --seconds 85

The shapes are `conv.depthwise` of benchmarks/shapes.toml, in bf16 of normal numbers, NHWC. Each
side is checked against f64 on one image, then timed as CUDA graphs over rotating buffers. `--tune`
tries other configurations of ours, and times the fastest beside the chosen one.
"""

from __future__ import annotations

import argparse
import os
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from shapes import SHAPES_FILE, buffer_sets

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_plan import DepthwisePlan
from kdsl_fuse.kernels.conv_depthwise_space import fitted
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS, identity
from kdsl_fuse.kernels.conv_problem import ConvProblem

SHAPES = [[256,112,112,32,32,3,1,32],[256,56,56,144,144,3,2,144],[256,28,28,240,240,5,2,240],[256,14,14,672,672,5,1,672],[256,7,7,1152,1152,3,1,1152],[128,56,56,96,96,7,1,96],[128,28,28,192,192,7,1,192],[128,14,14,384,384,7,1,384],[16,512,512,64,64,3,1,64]]


@dataclass(frozen=True)
class Case:
    """One convolution."""

    problem: ConvProblem

    @classmethod
    def of(cls, row: list[int]) -> Case:
        """From [N, H, W, Cin, Cout, R, stride, groups]; padding R // 2."""
        n, h, w, c, k, r, stride, groups = row
        return cls(
            ConvProblem(n, h, w, c, k, (r, r), (stride,) * 2, (r // 2,) * 2, groups=groups)
        )

    @property
    def name(self) -> str:
        """One of a kind."""
        p = self.problem
        return f"n{p.batch} {p.height}x{p.width} c{p.channels} {p.kernel[0]}x{p.kernel[1]} s{p.stride[0]}"


class Set:
    """One set of buffers."""

    def __init__(self, p: ConvProblem) -> None:
        import torch

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda").to(torch.bfloat16)

        self.x = normal(p.batch, p.height, p.width, p.channels)
        self.w = normal(p.filters, *p.kernel, 1)
        self.out = torch.empty(
            (p.batch, *p.output, p.filters), device="cuda", dtype=torch.bfloat16
        )


def conv(p: ConvProblem, x: Any, w: Any) -> Any:
    """PyTorch's convolution of NHWC images."""
    import torch

    y = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, p.stride, p.padding, p.dilation, p.groups
    )
    return y.permute(0, 2, 3, 1)


def variants(p: ConvProblem) -> list[DepthwisePlan]:
    taps = p.kernel[1]
    height = p.output[0]
    rows = next((r for r in (8, 7) if height % r == 0), 8)
    shapes = [(32, 2, 1, 2), (32, 2, 2, 1), (32, 1, 3, 1), (32, 1, 2, 2), (64, 1, 2, 1), (32, 3, 1, 2), (32, 1, 4, 1), (32, 2, 1, 2, 2), (32, 1, 3, 1, 2)]
    products = {3: (0,), 5: (0, 2, 4), 7: (4, 6, 2, 8)}[taps]
    found = []
    def add(channels, teams, blocks, stages, rows, product, buffers=1):
        c = DepthwiseConfig(p.kernel, p.stride, p.padding, p.dilation, channels=channels, rows=rows, teams=teams, stages=stages, products=product, buffers=buffers, blocks_per_sm=blocks)
        c = fitted(p, c)
        if c is not None:
            plan = DepthwisePlan(p, c)
            if str(plan) not in map(str, found):
                found.append(plan)
    for shape in shapes:
        add(*shape[:4], rows, products[0], *shape[4:])
    for product in products[1:]:
        add(32, 2, 1, 2, rows, product)
        add(32, 1, 3, 1, rows, product)
    for r in (4, 6):
        add(32, 2, 1, 2, r, products[0])
        add(32, 1, 3, 1, r, products[0])
    if taps == 3:
        add(16, 4, 2, 1, rows, 0)
        add(32, 2, 3, 1, rows, 0)
        add(32, 2, 3, 1, 4, 0)
        add(32, 1, 6, 1, 4, 0)
        add(64, 1, 3, 1, 4, 0)
    return found


def build(job: tuple[DepthwisePlan]) -> str:
    plan = job
    p, c = plan.problem, plan.config
    sp = lambda *s: kd.spec("bf16", s, align=16)
    try:
        KERNELS[c.blocks_per_sm].cubin(
            sp(p.batch, p.height, p.width, p.channels), sp(p.channels, c.taps),
            sp(p.batch, *p.output, p.filters), target="sm_90a", block=c.threads,
            epilogue=identity, config=c)
    except Exception as e:
        return f"{type(e).__name__} {e}"[:200]
    return ""


def measure(case: Case, options: argparse.Namespace) -> Any:
    import torch
    import timing
    from sides import Sides

    p = case.problem
    size = p.moved_bytes(2)
    sets = [Set(p) for _ in range(buffer_sets(size))]
    first = sets[0]
    exact = conv(p, first.x[-1:].double(), first.w.double())
    sides = Sides(sets, exact, lambda y: y[-1:], lambda s: (s.out,))
    sides.add("torch cuDNN", lambda s: conv(p, s.x, s.w))
    plans = variants(p)

    def ours(plan: DepthwisePlan) -> Callable[[Set], Any]:
        def launch(s: Set) -> Any:
            plan.run(s.x, s.w, s.out)
            return s.out
        return launch

    for plan in plans:
        sides.add(f"kdsl {plan}", ours(plan))
    quick = {n: timing.quick(l, len(sets)) for n, l in sides.launches.items() if n.startswith("kdsl")}
    ordered = sorted(quick, key=quick.__getitem__)
    for n in ordered:
        print(f"    {n:44} {1e6*quick[n]:8.1f} us {1e-12*size/quick[n]:5.2f} TB/s")
    names = ["torch cuDNN", *ordered[:2]]
    return {"name": case.name, "flops": p.flops, "bytes": size, "chosen": ordered[0] if ordered else "", "quick": quick, **sides.timed(names, options.seconds_per_shape)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--cases", nargs="+", type=int)
    words.add_argument("--seconds-per-shape", type=float, default=0.4)
    words.add_argument("--seconds", type=float, default=85.0)
    words.add_argument("--dry", action="store_true")
    options = words.parse_args()
    cases = [Case.of(SHAPES[i]) for i in options.cases or range(len(SHAPES))]
    begun = time.monotonic()
    jobs = [plan for case in cases for plan in variants(case.problem)]
    with ProcessPoolExecutor(max(2, (os.cpu_count() or 2) - 1)) as pool:
        results = list(pool.map(build, jobs))
    for job, result in zip(jobs, results, strict=True):
        if result or options.dry:
            print(job, result or "ok")
    print(f"{len(jobs)} built in {time.monotonic() - begun:.1f} s", flush=True)
    if options.dry:
        return
    import torch
    from sides import run
    torch.backends.cudnn.benchmark = True
    run(cases, partial(measure, options=options), options.seconds, "conv_depthwise")


if __name__ == "__main__":
    main()
