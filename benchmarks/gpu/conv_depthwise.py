"""Depthwise convolutions against PyTorch (cuDNN, channels last, and torch.compile), by turns.

    python3 benchmarks/gpu/conv_depthwise.py --seconds 85

The shapes are `conv.depthwise` of benchmarks/shapes.toml, in bf16 of normal numbers, NHWC, alone
and with a tail: bias and SiLU; a folded normalisation, ReLU and a residual; or bias and a layer
normalisation over all channels (7 × 7 only, as in ConvNeXt). Each side is checked against f64 on
one image, then timed as CUDA graphs over rotating buffers. `--tune` builds other configurations of
ours, on all processors, and times the fastest two beside the chosen one.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import built_first
from shapes import SHAPES_FILE, buffer_sets

import kdsl_core as kd
from kdsl_core.errors import KdslError
from kdsl_fuse.kernels import conv_depthwise_norm_plan as norm_plan
from kdsl_fuse.kernels import conv_depthwise_space as space
from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
from kdsl_fuse.kernels.conv_depthwise_norm_plan import NormalisedPlan, affine, biased
from kdsl_fuse.kernels.conv_depthwise_plan import DepthwisePlan, DirectPlan, choose
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity

Plan = DepthwisePlan | DirectPlan | NormalisedPlan
TARGET = "sm_90a"
EPSILON = 1e-6


def biased_silu(acc: Any, bias: Any) -> Any:
    """(x + bias) · sigmoid(x + bias)."""
    x = acc + bias.to(kd.f32)
    return x * kd.sigmoid(x, approx=True)


def normalised_relu(acc: Any, scale: Any, shift: Any, residual: Any) -> Any:
    """max(x · scale + shift + residual, 0)."""
    x = kd.fma(acc, scale.to(kd.f32), shift.to(kd.f32))
    return kd.maximum(x + residual.to(kd.f32), 0.0)


TAILS: dict[str, tuple[Callable[..., Any], int, int]] = {  # channel extras, full extras
    "alone": (identity, 0, 0),
    "bias+silu": (biased_silu, 1, 0),
    "bn+relu+residual": (normalised_relu, 2, 1),
    "layer_norm": (Normalised(biased, 1, affine, EPSILON), 3, 0),
}


@dataclass(frozen=True)
class Case:
    """One convolution with its tail."""

    problem: ConvProblem
    tail: str

    @classmethod
    def of(cls, row: list[int], tail: str) -> Case:
        """From [N, H, W, Cin, Cout, R, stride, groups]; padding R // 2."""
        n, h, w, c, k, r, step, groups = row
        half = (r // 2, r // 2)
        return cls(ConvProblem(n, h, w, c, k, (r, r), (step, step), half, groups=groups), tail)

    @property
    def name(self) -> str:
        """One of a kind."""
        p, tail = self.problem, "" if self.tail == "alone" else f" {self.tail}"
        return f"n{p.batch} {p.height}x{p.width} c{p.channels} k{p.kernel[0]} s{p.stride[0]}{tail}"

    @property
    def bytes(self) -> int:
        """Of all operands and the result, in bf16."""
        p, (_, channelwise, full) = self.problem, TAILS[self.tail]
        rows, columns = p.output
        extras = p.filters * (channelwise + full * p.batch * rows * columns)
        return p.moved_bytes(2) + 2 * extras


class Set:
    """One set of buffers."""

    def __init__(self, case: Case) -> None:
        import torch

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda").to(torch.bfloat16)

        p, (_, channelwise, full) = case.problem, TAILS[case.tail]
        shape = (p.batch, *p.output, p.filters)
        self.x, self.w = (
            normal(p.batch, p.height, p.width, p.channels),
            normal(p.filters, *p.kernel, 1),
        )
        self.out = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        self.extras = [normal(p.filters) for _ in range(channelwise)]
        self.extras += [normal(*shape) for _ in range(full)]


def torchs(case: Case) -> Callable[..., Any]:
    """PyTorch's program of x, w and extras, NHWC."""
    import torch
    from torch.nn import functional

    p = case.problem

    def program(x: Any, w: Any, *extras: Any) -> Any:
        x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        y = functional.conv2d(x, w, None, p.stride, p.padding, p.dilation, p.groups)
        y = y.permute(0, 2, 3, 1)
        if case.tail == "bias+silu":
            return functional.silu(y + extras[0])
        if case.tail == "alone":
            return y
        if case.tail == "layer_norm":
            return functional.layer_norm(y + extras[0], (p.filters,), *extras[1:], EPSILON)
        return torch.relu(y * extras[0] + extras[1] + extras[2])

    return program


def plans_of(case: Case, tune: int) -> list[Plan]:
    """The chosen plan, and some others."""
    if case.tail == "layer_norm":
        return list(norm_plan.candidates(case.problem)[: 1 + tune])
    first = choose(case.problem, kd.bf16, target=TARGET, extras=TAILS[case.tail][2])
    others = space.candidates(case.problem) if tune else []
    others = random.Random(0).sample(others, min(tune, len(others)))
    plans = {str(plan): plan for plan in (first, *(DepthwisePlan(case.problem, c) for c in others))}
    return list(plans.values())


def build(job: tuple[Case, Plan]) -> None:
    """Put a plan's machine code into the cache, so that the first launch finds it."""
    (case, plan), p = job, job[0].problem
    epilogue, channelwise, full = TAILS[case.tail]
    if isinstance(plan, DirectPlan):
        return
    result = (p.batch, *p.output, p.filters)
    arrays = [(p.batch, p.height, p.width, p.channels), (p.channels, plan.config.taps), result]
    given = [kd.spec("bf16", shape, align=16) for shape in arrays]
    given += [kd.spec("bf16", result, strides=(0, 0, 0, 1), align=16)] * channelwise
    given += [kd.spec("bf16", result, align=16)] * full
    kernel, c = KERNELS[plan.config.blocks_per_sm], plan.config
    blocks = getattr(plan, "cluster", 1)
    options = {"block": c.threads, "cluster": (blocks, 1, 1) if blocks > 1 else None}
    try:
        kernel.cubin(*given, target=TARGET, **options, epilogue=epilogue, config=c)
    except KdslError:
        return  # the launch says so again


def ours(case: Case, plan: Plan) -> Callable[[Set], Any]:
    """A launch of a plan."""
    shape = (case.problem.batch, *case.problem.output, case.problem.filters)

    def launch(s: Set) -> Any:
        extras = [x.expand(shape) for x in s.extras]
        plan.run(s.x, s.w, s.out, *extras, epilogue=TAILS[case.tail][0])
        return s.out

    return launch


def measure(case: Case, options: argparse.Namespace) -> Any:
    """All that is known of a case after measuring it."""
    import torch
    from sides import Sides

    first, program = Set(case), torchs(case)
    sets = [first, *(Set(case) for _ in range(buffer_sets(case.bytes) - 1))]
    one = [x[-1:] if x.dim() == 4 else x for x in first.extras]
    exact = program(first.x[-1:].double(), first.w.double(), *(x.double() for x in one))
    sides = Sides(sets, exact, lambda y: y[-1:], lambda s: (s.out,))
    sides.add("torch", lambda s: program(s.x, s.w, *s.extras))
    if options.compile and case.tail != "alone":
        compiled = torch.compile(program, dynamic=False)
        sides.add("torch.compile", lambda s: compiled(s.x, s.w, *s.extras))
    plans = plans_of(case, options.tune)
    for plan in plans:
        sides.add(f"kdsl {plan}", ours(case, plan))
    chosen = f"kdsl {plans[0]}"
    names = [n for n in sides.launches if n.startswith("torch") or n == chosen]
    names += sides.quickest("kdsl", 2)
    return {
        "name": case.name, "flops": case.problem.flops, "bytes": case.bytes, "chosen": chosen,
        **sides.timed(names, options.seconds_per_shape),
    }  # fmt: skip


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/conv_depthwise.json."""
    words = built_first.parser(__doc__)
    words.add_argument("--tails", nargs="+", choices=TAILS, default=list(TAILS))
    options = words.parse_args()
    rows = tomllib.loads(SHAPES_FILE.read_text())["conv"]["depthwise"]
    numbers = options.cases or range(len(rows))
    cases = [Case.of(rows[i], tail) for tail in options.tails for i in numbers]
    cases = [c for c in cases if c.tail != "layer_norm" or c.problem.kernel == (7, 7)]
    built_first.run(cases, plans_of, build, measure, options, "conv_depthwise")


if __name__ == "__main__":
    main()
