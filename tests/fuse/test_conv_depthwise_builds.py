"""Depthwise convolutions as machine code: nothing spills, the assembler does not warn."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_core as kd
from covering import combined
from fuse.test_sm90_builds import MOST_SHARED
from kdsl_fuse.kernels.conv_depthwise import conv_depthwise
from kdsl_fuse.kernels.conv_depthwise_plan import DepthwisePlan, DirectPlan, choose
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_runtime.assemble import assemble


def square(batch: int, size: int, channels: int, taps: int, stride: int = 1) -> ConvProblem:
    """A convolution of square images by square windows."""
    pad, both = (taps // 2,) * 2, (taps,) * 2
    return ConvProblem(
        batch, size, size, channels, channels, both, (stride,) * 2, pad, groups=channels
    )


# those of the benchmark, and the largest windows
PROBLEMS = {
    "112 3x3": square(256, 112, 32, 3),
    "56 3x3 s2": square(256, 56, 144, 3, 2),
    "28 5x5 s2": square(256, 28, 240, 5, 2),
    "14 5x5": square(256, 14, 672, 5),
    "7 3x3": square(256, 7, 1152, 3),
    "56 7x7": square(128, 56, 96, 7),
    "28 7x7": square(128, 28, 192, 7),
    "14 7x7": square(128, 14, 384, 7),
    "512 3x3": square(16, 512, 64, 3),
    "9x9": square(8, 32, 64, 9),
    "11x11": square(8, 32, 64, 11),
    "1x31": ConvProblem(8, 1, 4096, 256, 256, (1, 31), padding=(0, 15), groups=256),
    "31x1": ConvProblem(8, 128, 32, 64, 64, (31, 1), padding=(15, 0), groups=64),
}


def biased(acc: Any, bias: Any) -> Any:
    """A bias for each channel."""
    return acc + bias.to(kd.f32)


def residual(acc: Any, scale: Any, shift: Any, other: Any) -> Any:
    """A folded normalisation, ReLU, and a residual."""
    return kd.maximum(acc * scale.to(kd.f32) + shift.to(kd.f32) + other.to(kd.f32), 0.0)


TAILS = {"alone": (identity, 0, 0), "bias": (biased, 1, 0), "residual": (residual, 2, 1)}


def report(plan: DepthwisePlan | DirectPlan, dtype: str, tail: str, target: str) -> Any:
    """What the assembler says of a plan's kernel."""
    p, c = plan.problem, plan.config
    function, channelwise, full = TAILS[tail]
    result = (p.batch, *p.output, p.filters)
    hopper = isinstance(plan, DepthwisePlan)
    taps = (p.filters, c.taps) if hopper else (p.filters, *p.kernel)
    image = (p.batch, p.height, p.width, p.channels)
    given = [kd.spec(dtype, shape) for shape in (image, taps, result)]
    given += [kd.spec(dtype, result, strides=(0, 0, 0, 1))] * channelwise
    given += [kd.spec(dtype, result)] * full
    kernel = KERNELS[c.blocks_per_sm] if isinstance(plan, DepthwisePlan) else conv_depthwise
    module = kernel.module(*given, target=target, block=c.threads, epilogue=function, config=c)
    assert module.shared_bytes <= MOST_SHARED
    if isinstance(plan, DepthwisePlan):
        assert module.shared_bytes <= plan.config.shared_bytes
    return assemble(module, target).report


def assert_clean(found: Any) -> None:
    """No spill and no warning."""
    assert found.warnings == ()
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)


@pytest.mark.parametrize("name, tail", combined([*PROBLEMS], [*TAILS], together=1))
def test_hopper(name: str, tail: str) -> None:
    """What is chosen on sm_90a."""
    plan = choose(PROBLEMS[name], kd.bf16, extras=TAILS[tail][2])
    assert isinstance(plan, DepthwisePlan)
    assert_clean(report(plan, "bf16", tail, "sm_90a"))


@pytest.mark.parametrize("name, dtype", combined([*PROBLEMS], ["f16", "f32"], together=1))
def test_portable(name: str, dtype: str) -> None:
    """What is chosen for f32, and on sm_80."""
    target = {"f16": "sm_80", "f32": "sm_90a"}[dtype]
    plan = choose(PROBLEMS[name], kd.f16 if dtype == "f16" else kd.f32, target=target)
    assert isinstance(plan, DirectPlan)
    assert_clean(report(plan, dtype, "bias", target))
