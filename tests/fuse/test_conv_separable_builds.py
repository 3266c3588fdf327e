"""Separable convolutions as machine code: nothing spills, the assembler does not warn."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_core as kd
from covering import combined
from fuse.test_conv_depthwise_builds import assert_clean
from fuse.test_conv_separable import biased, biased_and_added, biased_relu6
from fuse.test_sm90_builds import MOST_SHARED
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import Tails
from kdsl_fuse.kernels.conv_separable_model import SeparableProblem
from kdsl_fuse.kernels.conv_separable_plan import SeparablePlan, choose
from kdsl_fuse.kernels.conv_separable_space import candidates
from kdsl_runtime.assemble import assemble


def square(size: int, channels: int, filters: int, taps: int = 3, step: int = 1) -> Any:
    """Convolutions of 32 square images."""
    depthwise = ConvProblem(
        32, size, size, channels, channels, (taps,) * 2, (step,) * 2, (taps // 2,) * 2,
        groups=channels,
    )  # fmt: skip
    return SeparableProblem(depthwise, filters)


PROBLEMS = {
    "112 32->16": square(112, 32, 16),
    "112 96->24 s2": square(112, 96, 24, 3, 2),
    "56 144->24": square(56, 144, 24),
    "56 144->40 5x5 s2": square(56, 144, 40, 5, 2),
    "28 192->32": square(28, 192, 32),
    "28 120->40 5x5": square(28, 120, 40, 5),
    "14 576->96": square(14, 576, 96),
    "7 960->160": square(7, 960, 160),
    "112 32->64": square(112, 32, 64),
    "56 128->128": square(56, 128, 128),
    "28 256->256": square(28, 256, 256),
    "14 512->512": square(14, 512, 512),
}
TAILS = {"biases": (biased, False), "residual": (biased_and_added, True)}


def report(plan: SeparablePlan, dtype: str, tail: str) -> Any:
    """What the assembler says of a plan's kernel."""
    p, (function, residual) = plan.problem.depthwise, TAILS[tail]
    between, result = ((p.batch, *p.output, n) for n in (p.channels, plan.problem.filters))
    image = p.batch, p.height, p.width, p.channels
    shapes = image, (p.channels, plan.config.window.taps), (result[3], p.channels), result
    given = [kd.spec(dtype, shape) for shape in shapes]
    given += [kd.spec(dtype, shape, strides=(0, 0, 0, 1)) for shape in (between, result)]
    given += [kd.spec(dtype, result)] * residual
    module = plan.launch.kernel.module(
        *given, target="sm_90a", block=plan.config.threads, cluster=plan.cluster,
        epilogue=Tails(biased_relu6, 1, function), config=plan.config,
    )  # fmt: skip
    assert module.shared_bytes <= min(MOST_SHARED, plan.config.shared_bytes(2))
    return assemble(module, "sm_90a").report


@pytest.mark.parametrize("name, tail", combined([*PROBLEMS], [*TAILS], together=1))
def test_chosen(name: str, tail: str) -> None:
    """What is chosen for blocks of MobileNet and its kin."""
    assert_clean(report(choose(PROBLEMS[name], 1), "bf16", tail))


@pytest.mark.parametrize("name", ("56 144->24", "28 256->256"))
def test_candidates(name: str) -> None:
    """What a tuner would try first."""
    for choice in candidates(PROBLEMS[name], 1)[:4]:
        assert_clean(report(SeparablePlan(PROBLEMS[name], choice), "f16", "biases"))
