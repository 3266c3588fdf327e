"""Depthwise and pointwise convolutions in one kernel, against two and PyTorch, by turns.

    python3 benchmarks/gpu/conv_separable.py --compile --seconds 85

The shapes are `conv.separable` of benchmarks/shapes.toml, in bf16 of normal numbers, NHWC: blocks
of MobileNet and its kin. Behind the depthwise convolution come a bias and ReLU6, behind the
pointwise one a bias. Each side is checked against f64 on one image, then timed as CUDA graphs over
rotating buffers; cuDNN chooses its algorithms by measuring. "kdsl two" is ours as two kernels,
which is what fused functions get where the model of times says so.
`--tune 20` builds other configurations, on all processors, and times the fastest few.
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
from kdsl_fuse.kernels import conv_depthwise_plan as depthwise
from kdsl_fuse.kernels import conv_separable_space as space
from kdsl_fuse.kernels import conv_sm90_plan as pointwise
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import Tails
from kdsl_fuse.kernels.conv_separable_model import SeparableProblem, apart_us
from kdsl_fuse.kernels.conv_separable_plan import SeparablePlan, choose

TARGET = "sm_90a"
FIRST = 8  # of those that the model puts first, which are tried; others are of the better half


def biased_relu6(acc: Any, bias: Any) -> Any:
    """min(max(x + bias, 0), 6)."""
    return kd.minimum(kd.maximum(acc + bias.to(kd.f32), 0.0), 6.0)


def biased(acc: Any, bias: Any) -> Any:
    """x + bias."""
    return acc + bias.to(kd.f32)


EPILOGUE = Tails(biased_relu6, 1, biased)


@dataclass(frozen=True)
class Case:
    """Two convolutions."""

    problem: SeparableProblem

    @classmethod
    def of(cls, row: list[int]) -> Case:
        """From [N, H, W, Cin, Cout, R, stride]; padding R // 2."""
        n, h, w, c, k, r, step = row
        first = ConvProblem(n, h, w, c, c, (r, r), (step, step), (r // 2,) * 2, groups=c)
        return cls(SeparableProblem(first, k))

    @property
    def name(self) -> str:
        """One of a kind."""
        p = self.problem.depthwise
        sizes = f"{p.batch}x{p.height}x{p.width}x{p.channels}->{self.problem.filters}"
        return f"{sizes} {p.kernel[0]}x{p.kernel[1]}/{p.stride[0]}"


class Set:
    """One set of buffers, NHWC."""

    def __init__(self, case: Case) -> None:
        import torch

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (scale * torch.randn(shape, device="cuda")).to(torch.bfloat16)

        p, filters = case.problem.depthwise, case.problem.filters
        self.x = normal(p.batch, p.height, p.width, p.channels)
        self.w = normal(p.channels, *p.kernel, 1, scale=1 / p.kernel[0])
        self.v = normal(filters, 1, 1, p.channels, scale=p.channels**-0.5)
        self.biases = normal(p.channels), normal(filters)
        self.between = torch.empty_like(normal(p.batch, *p.output, p.channels))
        self.out = torch.empty_like(normal(p.batch, *p.output, filters))


def torchs(case: Case) -> Callable[..., Any]:
    """PyTorch's program, NHWC."""
    import torch
    from torch.nn import functional

    p = case.problem.depthwise

    def program(x: Any, w: Any, v: Any, first: Any, second: Any) -> Any:
        x, w, v = (y.permute(0, 3, 1, 2) for y in (x, w, v))
        y = functional.conv2d(x, w, first, p.stride, p.padding, p.dilation, p.groups)
        y = functional.conv2d(functional.relu6(y), v, second)
        return y.permute(0, 2, 3, 1)

    assert torch.backends.cudnn.is_available()
    return program


def plans_of(case: Case, tune: int) -> list[SeparablePlan]:
    """The chosen plan, and some others."""
    first = choose(case.problem, 1)
    choices = list(space.candidates(case.problem, 1)) if tune else []
    some = choices[: min(FIRST, tune)]
    left = [choice for choice in choices[: len(choices) // 2] if choice not in some]
    some += random.Random(0).sample(left, min(max(tune - len(some), 0), len(left)))
    plans = [first, *(SeparablePlan(case.problem, choice) for choice in some)]
    return list({str(plan): plan for plan in plans}.values())


def build(job: tuple[Case, SeparablePlan]) -> None:
    """Put a plan's machine code into the cache, so that the first launch finds it."""
    plan, p, k = job[1], job[0].problem.depthwise, job[0].problem.filters
    images, between, result = (
        (p.batch, p.height, p.width, p.channels), (p.batch, *p.output, p.channels),
        (p.batch, *p.output, k),
    )  # fmt: skip
    arrays = [images, (p.channels, plan.config.window.taps), (k, p.channels), result]
    given = [kd.spec("bf16", shape, align=16) for shape in arrays]
    given += [kd.spec("bf16", shape, strides=(0, 0, 0, 1), align=16) for shape in (between, result)]
    launch = plan.launch
    try:
        launch.kernel.cubin(
            *given, target=TARGET, block=plan.config.threads, cluster=plan.cluster,
            epilogue=EPILOGUE, config=plan.config,
        )  # fmt: skip
    except KdslError:
        return  # the launch says so again


def fused(case: Case, plan: SeparablePlan) -> Callable[[Set], Any]:
    """Both convolutions in one launch."""
    p = case.problem.depthwise
    shapes = (p.batch, *p.output, p.channels), (p.batch, *p.output, case.problem.filters)

    def launch(s: Set) -> Any:
        extras = [b.expand(shape) for b, shape in zip(s.biases, shapes, strict=True)]
        plan.run(s.x, s.w, s.v, s.out, *extras, epilogue=EPILOGUE)
        return s.out

    return launch


def apart(case: Case) -> Callable[[Set], Any]:
    """Ours as two kernels."""
    p, k = case.problem.depthwise, case.problem.filters
    second = ConvProblem(p.batch, *p.output, p.channels, k, (1, 1))
    plans = (
        depthwise.choose(p, kd.bf16, target=TARGET),
        pointwise.choose(second, kd.bf16, tail=True),
    )
    between = p.batch, *p.output, p.channels

    def launch(s: Set) -> Any:
        plans[0].run(s.x, s.w, s.between, s.biases[0].expand(between), epilogue=biased_relu6)
        plans[1].run(s.between, s.v, s.out, s.biases[1], epilogue=biased)
        return s.out

    return launch


def measure(case: Case, options: argparse.Namespace) -> Any:
    """All that is known of a case after measuring it."""
    import torch
    from sides import Sides

    program, size = torchs(case), case.problem.moved_bytes(2)
    sets = [Set(case) for _ in range(buffer_sets(size))]
    one = sets[0]
    exact = program(one.x[-1:].double(), one.w.double(), one.v.double(),
                    *(b.double() for b in one.biases))  # fmt: skip
    sides = Sides(sets, exact, lambda y: y[-1:], lambda s: (s.out, s.between))
    sides.add("torch", lambda s: program(s.x, s.w, s.v, *s.biases))
    if options.compile:
        compiled = torch.compile(program, dynamic=False)
        sides.add("torch.compile", lambda s: compiled(s.x, s.w, s.v, *s.biases))
    sides.add("kdsl two", apart(case))
    plans = plans_of(case, options.tune)
    for plan in plans:
        sides.add(f"kdsl {plan}", fused(case, plan))
    first, two = f"kdsl {plans[0]}", "kdsl two"
    chosen = first if plans[0].about_us < apart_us(case.problem) else two
    names = ["torch", "torch.compile", two, first, *sides.quickest("kdsl", 4)]
    result = {
        "name": case.name, "flops": case.problem.flops, "bytes": size, "chosen": chosen,
        **sides.timed([n for n in names if n in sides.launches], options.seconds_per_shape),
    }  # fmt: skip
    if options.tune:
        result["quick"] = quick(sides)
    return result


def quick(sides: Any) -> dict[str, float]:
    """All plans by a short look. Units: µs."""
    import timing

    mine = (name for name in sides.launches if name.startswith("kdsl"))
    return {n: 1e6 * timing.quick(sides.launches[n], len(sides.sets)) for n in mine}


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/conv_separable.json."""
    options = built_first.parser(__doc__).parse_args()
    rows = tomllib.loads(SHAPES_FILE.read_text())["conv"]["separable"]
    cases = [Case.of(rows[i]) for i in options.cases or range(len(rows))]
    built_first.run(cases, plans_of, build, measure, options, "conv_separable")


if __name__ == "__main__":
    main()
