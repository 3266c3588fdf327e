"""The Hopper convolution's machine code: no plan in use spills or makes the assembler warn."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import kdsl_core as kd
from covering import combined
from kdsl_core.errors import KdslError
from kdsl_fuse.kernels.conv_pack import Packing
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90 import conv_sm90
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, choose
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_runtime.assemble import assemble

SHAPES = Path(__file__).parents[2] / "benchmarks" / "shapes.toml"
MOST_SHARED = 232_448  # bytes of a block


def problem_of(row: list[int]) -> ConvProblem:
    """From [images, height, width, channels, filters, kernel, stride, groups]."""
    n, h, w, c, k, r, stride, groups = row
    pad = r // 2
    return ConvProblem(n, h, w, c, k, (r, r), (stride, stride), (pad, pad), groups=groups)


PROBLEMS = [
    *map(problem_of, tomllib.loads(SHAPES.read_text())["conv"]["dense"]),
    ConvProblem(64, 224, 224, 3, 64, (3, 3), padding=(1, 1)),  # packed, rows joined
    ConvProblem(64, 56, 56, 20, 40, (3, 3), padding=(1, 1)),  # packed
    ConvProblem(64, 56, 56, 48, 40, (5, 5), padding=(2, 2)),
    ConvProblem(1, 7, 7, 512, 512, (3, 3), padding=(1, 1)),  # K is split
]
KINDS = {"plain": (False, False), "tail": (True, False), "matrix": (True, True)}


def silu(acc: Any, bias: Any) -> Any:
    """SiLU of a biased sum."""
    x = acc + bias
    return x * kd.sigmoid(x, approx=True)


def residual(acc: Any, scale: Any, bias: Any, more: Any) -> Any:
    """A BatchNorm as a scale and a bias, a residual, and ReLU."""
    return kd.maximum(acc * scale + bias + more.to(kd.f32), 0.0)


TAILS = {"plain": (identity, ""), "tail": (silu, "v"), "matrix": (residual, "vvm")}


def specs(plan: ConvPlan, extras: str) -> list[Any]:
    """The kernel's arguments: images, filters, result, and operands of the tail."""
    p, seen = plan.problem, plan.seen
    rows, columns = p.output
    size, depth = (p.batch * rows * columns, p.filters), seen.channels
    taps = seen.kernel[0] * seen.kernel[1]
    pitches = None
    if plan.packing is not None and plan.packing.joined:
        pitches, depth = joined(plan.packing)
    results = [kd.spec("bf16", size), *(operand(size, kind) for kind in extras)]
    if plan.config.splits > 1:
        parts = (size[1], 1, size[0] * size[1])
        results = [kd.spec("f32", (*size, plan.config.splits), strides=parts)]
    if plan.product.swap:
        results = [swapped(x) for x in results]
    images = (seen.batch, seen.height, seen.width, seen.channels)
    filters = kd.spec("bf16", (p.filters, depth, taps), strides=(taps * depth, 1, depth))
    return [kd.spec("bf16", images, strides=pitches), filters, *results]


def joined(packing: Packing) -> tuple[tuple[int, ...], int]:
    """The strides of images whose windows' rows are joined, and the channels of such filters."""
    (_, height, wide, pitch), (_, _, columns, _) = packing.shapes
    step = packing.problem.stride[1] * pitch
    return (height * wide * pitch, wide * pitch, step, 1), columns * pitch


def operand(size: tuple[int, int], kind: str) -> Any:
    """A matrix like the result, or a vector along filters."""
    return kd.spec("bf16", size) if kind == "m" else kd.spec("f32", size, strides=(0, 1))


def swapped(x: Any) -> Any:
    """A spec with its first two modes in the other order."""
    strides = x.strides
    order = (1, 0, *range(2, len(x.shape)))
    return kd.spec(
        x.dtype, [x.shape[i] for i in order], strides=[strides[i] for i in order]
    )  # fmt: skip


@pytest.mark.parametrize("problem, kind", combined(PROBLEMS, [*KINDS], together=1))
def test_builds_are_clean(problem: ConvProblem, kind: str) -> None:
    """Registers suffice, the wgmma pipeline holds, shared memory fits a multiprocessor."""
    tail, reads = KINDS[kind]
    plan = choose(problem, kd.bf16, tail=tail, reads=reads, lines=False)
    assert isinstance(plan, ConvPlan)
    if plan.panel is None:
        return  # a matrix product, whose configurations have a test of their own
    epilogue, extras = TAILS[kind] if plan.config.splits == 1 else (identity, "")
    module = conv_sm90.module(
        *specs(plan, extras), target="sm_90a", block=plan.block, cluster=plan.cluster,
        epilogue=epilogue, **plan.statics,
    )  # fmt: skip
    report = assemble(module, "sm_90a").report
    assert report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0), plan
    assert module.shared_bytes <= MOST_SHARED
    assert ".im2col." in module.text


def test_only_hopper() -> None:
    """Another target is refused by name."""
    plan = choose(PROBLEMS[2], kd.bf16)
    assert isinstance(plan, ConvPlan)
    with pytest.raises(KdslError, match="sm_90"):
        conv_sm90.module(
            *specs(plan, ""), target="sm_80", block=plan.block, epilogue=identity, **plan.statics
        )
