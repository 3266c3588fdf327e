"""The portable convolution in the simulator with all checks: types, channels, windows, tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.conv_numbers import BF16, Array, assert_close, exact, lying, operands, unwritten
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm80 import conv_sm80
from kdsl_fuse.kernels.conv_sm80_plan import choose
from kdsl_fuse.kernels.conv_views import filter_matrix
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, identity
from kdsl_runtime.assemble import assemble

WINDOWS = {
    "3x3": ConvProblem(2, 9, 11, 72, 40, (3, 3), padding=(1, 1)),
    "strided": ConvProblem(2, 9, 11, 24, 72, (3, 2), (2, 1), (1, 0)),
    "odd channels, dilated": ConvProblem(2, 9, 11, 13, 33, (3, 3), (2, 2), (2, 2), (2, 2)),
    "two channels": ConvProblem(1, 9, 11, 2, 40, (5, 5), (2, 2), (2, 2)),
    "steps beyond TMA": ConvProblem(1, 40, 40, 3, 40, (3, 3), (16, 9), (2, 2)),
    "far beyond": ConvProblem(1, 300, 3, 8, 16, (3, 1), (3, 1), (140, 0), (120, 1)),
    "wider than the image": ConvProblem(1, 3, 4, 16, 16, (5, 5), padding=(3, 2)),
    "a line": ConvProblem(2, 1, 50, 64, 40, (1, 9), padding=(0, 4)),
    "1x1": ConvProblem(1, 9, 11, 40, 24, (1, 1)),
}


def convolve(
    problem: ConvProblem,
    x: Array,
    w: Array,
    *extras: Array,
    epilogue: Any = identity,
    f32_precision: str = "ieee",
) -> Array:
    """The result of one launch, from NaN."""
    plan = choose(problem, dtype_of(x.dtype), f32_precision=f32_precision)
    out = unwritten(problem, x.dtype)
    rows = [np.broadcast_to(extra, out.shape) for extra in extras]
    matrices = (y.reshape(-1, problem.filters) for y in (out, *rows))
    kd.simulate(
        conv_sm80, grid=plan.grid, block=plan.block, args=(x, filter_matrix(w), *matrices),
        kwargs={"epilogue": epilogue, **plan.statics}, checks=("all", "unwritten"),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    """Strides, dilations, paddings and channels of bf16."""
    problem = WINDOWS[name]
    x, w = operands(problem)
    assert_close(convolve(problem, x, w), exact(problem, x, w))


@pytest.mark.parametrize("precision, bound", (("ieee", 1e-6), ("tf32", 1e-3)))
@pytest.mark.parametrize("name", ("odd channels, dilated", "strided"))
def test_f32(name: str, precision: str, bound: float) -> None:
    """f32 exactly on the ordinary cores, or rounded to tf32 on tensor cores."""
    problem = WINDOWS[name]
    x, w = operands(problem, np.float32)
    y, want = convolve(problem, x, w, f32_precision=precision), exact(problem, x, w)
    assert np.abs(y - want).max() < bound * np.abs(want).max()


def test_f16_in_nchw() -> None:
    """Images may lie in any order."""
    problem = WINDOWS["3x3"]
    x, w = operands(problem, np.float16)
    assert_close(convolve(problem, lying(x, (0, 3, 1, 2)), w), exact(problem, x, w))


def test_tail_and_groups() -> None:
    """A bias, a residual and ReLU behind the sums, for each of three groups."""
    problem = ConvProblem(1, 9, 11, 24, 36, (3, 3), padding=(1, 1), groups=3)
    x, w = operands(problem)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(36).astype(np.float32)
    residual = rng.standard_normal(unwritten(problem).shape).astype(BF16)

    def tail(acc: Any, bias: Any, residual: Any) -> Any:
        return kd.maximum(acc + bias, 0.0) + residual.to(kd.f32)

    out = unwritten(problem)
    choose(problem, kd.bf16).run(x, w, out, bias, residual, epilogue=tail)
    want = np.maximum(exact(problem, x, w) + bias, 0) + residual.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=1e-2, atol=1e-2)


BUILDS = {
    "bf16": ("bf16", "ieee", 64), "f16, odd channels": ("f16", "ieee", 3),
    "f32": ("f32", "ieee", 64), "f32, odd channels": ("f32", "ieee", 3),
    "tf32": ("f32", "tf32", 64),
}  # fmt: skip


@pytest.mark.parametrize("name, target", combined([*BUILDS], ("sm_80", "sm_90a"), together=1))
def test_builds_are_clean(name: str, target: str) -> None:
    """Neither spills nor warnings, for few and for many pixels."""
    dtype, precision, channels = BUILDS[name]
    for size, batch in ((56, 64), (7, 1)):
        problem = ConvProblem(batch, size, size, channels, 128, (3, 3), padding=(1, 1))
        plan = choose(problem, dtype_of(dtype), f32_precision=precision, target=target)
        pixels = batch * size * size
        module = conv_sm80.module(
            kd.spec(dtype, (batch, size, size, channels)), kd.spec(dtype, (128, 9 * channels)),
            kd.spec(dtype, (pixels, 128)),
            target=target, block=plan.block, epilogue=identity, **plan.statics,
        )  # fmt: skip
        report = assemble(module, target).report
        assert report.warnings == ()
        assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0), plan


def test_configurations_are_those_of_the_product() -> None:
    """The portable convolution takes what the portable matrix product takes."""
    plan = choose(WINDOWS["3x3"], kd.bf16)
    assert isinstance(plan.config, GemmConfig)
    with pytest.raises(kd.ArgumentError, match="f32_precision") as caught:
        choose(WINDOWS["3x3"], kd.f32, f32_precision="bf16")
    assert caught.value.code == "K932"
