"""Gated products and attention as machine code: nothing spills, the assembler does not warn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kdsl_core as kd
from fuse.test_sm90_builds import MOST_SHARED
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.attention_sm90 import attention_sm90
from kdsl_fuse.kernels.attention_sm90_config import Sm90AttentionConfig
from kdsl_fuse.kernels.attention_sm90_plan import choose as choose_attention
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gated_sm90_plan import GatedPlan, candidates, choose, gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, parse, problem_of
from kdsl_runtime.assemble import assemble

SIZE = 4096
SIZES = ((4096, 14336, 4096), (16, 14336, 4096), (128, 14336, 4096), (8192, 28672, 8192))
# every configuration that these sizes are tried with
GATED = {str(plan): plan.both for sizes in SIZES for plan in candidates(*sizes, kd.bf16, limit=3)}
BIASED = {
    str(plan): plan.both
    for plan in (choose(*sizes, kd.bf16, extras=True) for sizes in SIZES)
} | {"128x256x64": Sm90Plan(choose(*SIZES[0], kd.bf16).both.problem, Sm90Config(
    (128, 256, 64), 4, registers=(40, 232)))}  # fmt: skip


def assert_clean(module: Any, threads: int) -> None:
    """No spill, no warning, no more than a multiprocessor has."""
    report = assemble(module, "sm_90a").report
    assert report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)
    assert report.registers * threads <= 65_536
    assert module.shared_bytes <= MOST_SHARED


def gated_module(plan: Sm90Plan, epilogue: Any, *extras: Any, result: str = "bf16") -> Any:
    """The kernel for square matrices."""
    matrix = kd.spec("bf16", (SIZE, SIZE))
    return gated_sm90.module(
        matrix, matrix, matrix, kd.spec(result, (SIZE, SIZE)), *extras,
        target="sm_90a", block=plan.config.threads, cluster=plan.cluster,
        epilogue=epilogue, **GatedPlan(plan).statics,
    )  # fmt: skip


@pytest.mark.parametrize("name", GATED)
def test_gated(name: str) -> None:
    """Candidates of the benchmark's shapes."""
    plan = GATED[name]
    assert_clean(gated_module(plan, gated(silu)), plan.config.threads)


@pytest.mark.parametrize("name", BIASED)
def test_gated_with_biases(name: str) -> None:
    """Two biases, for which wide tiles need more registers."""
    plan, bias = BIASED[name], kd.spec("bf16", (SIZE, SIZE), strides=(0, 1))
    assert_clean(gated_module(plan, gated(gelu), bias, bias), plan.config.threads)


SWAPPED = (  # weights as rows, for 8 to 64 rows of activations
    "128x8x128 s6 coop1", "128x16x64 s12 coop1", "128x16x128 s6 coop1 c2x1", "128x16x128 s6 ping2",
    "128x32x128 s5 coop1", "128x64x128 s4 coop1", "256x16x64 s6 coop1", "256x16x128 s3 coop2",
    "256x64x64 s4 coop2",
)  # fmt: skip


@pytest.mark.parametrize("text", SWAPPED)
@pytest.mark.parametrize("result, biases", (("bf16", 0), ("bf16", 2), ("f32", 0)))
def test_gated_with_weights_as_rows(text: str, result: str, biases: int) -> None:
    """Two blocks of sums in each warp group, results transposed on their way out."""
    config, swap = parse(f"{text} swap")
    plan = Sm90Plan(problem_of(config.tile[1], 2 * SIZE, SIZE, kd.bf16), config, swap)
    extras = [kd.spec("bf16", (SIZE, SIZE), strides=(0, 1))] * biases
    module = gated_module(plan, gated(silu), *extras, result=result)
    assert_clean(module, config.threads)


def test_gated_to_f32() -> None:
    """Results that leave by ordinary stores."""
    plan = choose(4096, 4096, 4096, kd.bf16, kd.f32).both
    assert_clean(gated_module(plan, gated(silu), result="f32"), plan.config.threads)


def chosen(dim: int, mask: str | None, biased: bool, queries: int = SIZE) -> Sm90AttentionConfig:
    """The configuration that is chosen."""
    problem = AttentionProblem(2, 16, 16, queries, SIZE, dim)
    return choose_attention(problem, mask, biased=biased).config


ATTENTION = {
    f"{dim} {mask} {'biased' if biased else 'plain'}": (chosen(dim, mask, biased), biased)
    for dim in (64, 96, 128, 192, 256)
    for mask, biased in ((None, False), ("top-left", False), ("bottom-right", True))
} | {
    "one group": (chosen(128, None, False, queries=1), False),
    "no turns": (replace(chosen(128, None, False), turns=False), False),
    "three groups": (
        Sm90AttentionConfig(64, 128, consumers=3, turns=False, registers=(32, 160)), False
    ),
    "heads first": (replace(chosen(128, None, False), layout="bhsd"), False),
    "wide": (Sm90AttentionConfig(128, 160, registers=(24, 240)), False),
    "wide, short heads": (Sm90AttentionConfig(64, 192, registers=(24, 240)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    """What is chosen for each head dimension, and others that the benchmark tries."""
    config, biased = ATTENTION[name]
    sizes = (SIZE, 16) if config.layout == "bshd" else (16, SIZE)
    operand = kd.spec("bf16", (2, *sizes, config.dim))
    bias = [kd.spec("bf16", (2, 16, SIZE, SIZE))] if biased else []
    module = attention_sm90.module(
        operand, operand, operand, operand, *bias,
        target="sm_90a", block=config.threads, config=config, scale=0.125, together=4,
    )  # fmt: skip
    assert_clean(module, config.threads)
