"""Grouped convolutions as machine code: nothing spills, the assembler does not warn."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_core as kd
from covering import combined
from fuse.test_conv_grouped import PROBLEMS, relu
from kdsl_fuse.kernels.conv_grouped import ENTRIES
from kdsl_fuse.kernels.conv_grouped_plan import GroupedPlan, candidates, choose
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_runtime.assemble import assemble

TARGETS = ("sm_80", "sm_90a")
TIGHTEST = 2  # candidates of a problem, those with the fewest registers to spare


def assert_clean(
    plan: GroupedPlan, target: str, *extras: Any, epilogue: Any = identity, dtype: str = "bf16"
) -> None:
    """No spill, no warning, no more registers than a multiprocessor has for its blocks."""
    p, c = plan.problem, plan.config
    depth = p.channels // p.groups
    module = ENTRIES[c.blocks_per_sm].module(
        kd.spec(dtype, (p.batch, p.height, p.width, p.channels)),
        kd.spec(dtype, (p.filters, *p.kernel, depth)),
        kd.spec(dtype, (p.batch, *p.output, p.filters)),
        *extras, target=target, block=c.threads, epilogue=epilogue, config=c,
    )  # fmt: skip
    report = assemble(module, target).report
    assert report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)
    assert report.registers <= c.registers_allowed
    assert module.shared_bytes <= kd.target_of(target).shared_bytes


@pytest.mark.parametrize("problem, target", combined(PROBLEMS, TARGETS, together=1))
def test_chosen(problem: ConvProblem, target: str) -> None:
    """What is chosen, for both types, and the candidates that are nearest to the limit."""
    found = sorted(
        candidates(problem, kd.target_of(target)),
        key=lambda plan: plan.config.registers_allowed - plan.config.registers_wanted,
    )
    assert_clean(choose(problem, target=target), target, dtype="f16")
    for plan in found[:TIGHTEST]:
        assert_clean(plan, target)


@pytest.mark.parametrize("problem, target", combined(PROBLEMS[:6], TARGETS, together=1))
def test_tails(problem: ConvProblem, target: str) -> None:
    """Bias, residual, ReLU."""
    shape = (problem.batch, *problem.output, problem.filters)
    bias = kd.spec("f32", shape, strides=(0, 0, 0, 1))
    plan = choose(problem, staged=1, target=target)
    assert_clean(plan, target, bias, kd.spec("bf16", shape), epilogue=relu)
