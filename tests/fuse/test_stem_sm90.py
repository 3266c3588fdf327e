"""The Hopper convolution of few channels in the simulator with all checks, and its machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from fuse.conv_numbers import BF16, Array, assert_close, exact, lying, operands, unwritten
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, choose, conv2d_sm90
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.stem_sm90 import StemConfig, stem_sm90
from kdsl_fuse.kernels.stem_sm90_plan import StemPlan, candidates, fits
from kdsl_runtime.assemble import assemble

PROBLEMS = {
    "7x7/2": ConvProblem(2, 18, 24, 3, 24, (7, 7), (2, 2), (3, 3)),
    "3x3/2": ConvProblem(2, 18, 24, 3, 64, (3, 3), (2, 2), (1, 1)),
    "unpadded": ConvProblem(1, 18, 24, 3, 16, (3, 3), (2, 2)),
    "grey": ConvProblem(1, 18, 24, 1, 16, (5, 5), (2, 2), (2, 2)),
    "two channels": ConvProblem(1, 9, 24, 2, 16, (3, 4), (1, 1), (1, 2)),
    "four channels": ConvProblem(1, 9, 24, 4, 16, (3, 3), (1, 1), (1, 1)),
    "patches": ConvProblem(1, 32, 48, 3, 128, (4, 4), (4, 4)),
    "odd filters": ConvProblem(1, 18, 24, 3, 13, (7, 7), (2, 2), (3, 3)),
    "several boxes a line": ConvProblem(1, 6, 160, 3, 16, (3, 3), (2, 2), (1, 1)),
}


def convolve(
    config: StemConfig, problem: ConvProblem, x: Array, w: Array, *extras: Array,
    epilogue: Any = identity, result: Any = BF16, **options: Any,
) -> Array:  # fmt: skip
    """The result of a launch of three blocks, from NaN."""
    plan = StemPlan(problem, config, 3)
    out = unwritten(problem, result)
    rows = [np.broadcast_to(extra, out.shape) for extra in extras]
    matrices = (plan.oriented(y.reshape(-1, problem.filters)) for y in (out, *rows))
    kd.simulate(
        stem_sm90, grid=plan.grid, block=config.threads,
        args=(x.reshape(*x.shape[:2], -1), w.reshape(w.shape[0], -1), *matrices),
        kwargs={"epilogue": epilogue, **plan.statics}, checks=("all", "unwritten"), overlap=True,
        **options,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("name", PROBLEMS)
def test_windows(name: str) -> None:
    """Windows of pairs, padded on all sides, whose rows are no whole runs."""
    problem = PROBLEMS[name]
    assert fits(problem)
    x, w = operands(problem)
    assert_close(convolve(StemConfig.of(problem, 1, 2, 3), problem, x, w), exact(problem, x, w))


@pytest.mark.parametrize("blocks, consumers, stages", ((2, 3, 2), (1, 1, 2), (3, 2, 2)))
def test_shares(blocks: int, consumers: int, stages: int) -> None:
    """Warp groups and rings of other sizes; tiles that end behind an image."""
    problem = PROBLEMS["7x7/2"]
    x, w = operands(problem)
    config = StemConfig.of(problem, blocks, consumers, stages)
    first = convolve(config, problem, x, w)
    assert_close(first, exact(problem, x, w))
    assert first.tobytes() == convolve(config, problem, x, w, order="shuffle", seed=1).tobytes()


def test_values_beside_windows() -> None:
    """Infinities between windows reach no sum."""
    problem = ConvProblem(1, 16, 32, 3, 8, (3, 3), (4, 4))
    x, w = operands(problem)
    inside = np.zeros(x.shape, bool)
    for r, s in np.ndindex(3, 3):
        inside[:, r::4, s::4] = True
    x[~inside] = np.inf
    want = exact(problem, np.where(inside, x, 0).astype(BF16), w)
    assert_close(convolve(StemConfig.of(problem, 1, 1, 2), problem, x, w), want)


def tail(acc: Any, scale: Any, bias: Any, residual: Any) -> Any:
    """A BatchNorm as a scale and a bias, a residual, and ReLU."""
    return kd.maximum(acc * scale + bias + residual.to(kd.f32), 0.0)


@pytest.mark.parametrize("result", (BF16, np.float32))
def test_tail(result: Any) -> None:
    """BatchNorm, residual and ReLU behind the sums; f32 results leave by ordinary stores."""
    problem = PROBLEMS["7x7/2"]
    x, w = operands(problem)
    rng = np.random.default_rng(1)
    scale, bias = (rng.standard_normal(24).astype(np.float32) for _ in range(2))
    residual = rng.standard_normal(unwritten(problem).shape).astype(BF16)
    config = StemConfig.of(problem, 1, 2, 2)
    y = convolve(config, problem, x, w, scale, bias, residual, epilogue=tail, result=result)
    want = np.maximum(exact(problem, x, w) * scale + bias + residual.astype(np.float64), 0)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-2, atol=1e-2)


def test_choice() -> None:
    """Stems take this kernel where they lie as it reads them; others are packed."""
    problem = ConvProblem(256, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3))
    assert isinstance(choose(problem, kd.bf16), StemPlan)
    assert isinstance(choose(problem, kd.bf16, lines=False), ConvPlan)
    for other in (
        ConvProblem(256, 224, 224, 3, 64, (3, 3)),  # odd steps
        ConvProblem(256, 224, 223, 3, 64, (7, 7), (2, 2)),  # lines that TMA cannot take
        ConvProblem(256, 224, 224, 3, 256, (7, 7), (2, 2)),
        ConvProblem(256, 224, 224, 3, 64, (7, 7), (2, 2), dilation=(2, 2)),
        ConvProblem(256, 224, 224, 3, 64, (16, 16), (16, 16)),  # too many fragments
    ):
        assert not fits(other)


def test_call_in_either_layout() -> None:
    """One call computes a stem of images in NHWC and, through packing, in NCHW."""
    problem = PROBLEMS["7x7/2"]
    x, w = operands(problem)
    for images in (x, lying(x, (0, 3, 1, 2))):
        y = conv2d_sm90(images, w, stride=2, padding=3)
        assert_close(y, exact(problem, x, w))


@pytest.mark.parametrize("fused", (False, True))
@pytest.mark.parametrize("filters", (64, 32))
def test_builds_are_clean(filters: int, fused: bool) -> None:
    """No candidate for a stem of 224 × 224 images spills or makes the assembler warn."""
    problem = ConvProblem(256, 224, 224, 3, filters, (7, 7), (2, 2), (3, 3))
    rows, columns = problem.output
    pixels = rows * columns
    c = kd.spec("bf16", (pixels, filters, 256), strides=(filters, 1, pixels * filters))
    vector = kd.spec("f32", c.shape, strides=(0, 1, 0))
    for plan in candidates(problem):
        module = stem_sm90.module(
            kd.spec("bf16", (256, 224, 224 * 3)), kd.spec("bf16", (filters, 147)), c,
            *([vector, vector, c] if fused else []), target="sm_90a", block=plan.config.threads,
            epilogue=tail if fused else identity, **plan.statics,
        )  # fmt: skip
        report = assemble(module, "sm_90a").report
        assert report.warnings == ()
        assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0), plan
        room = plan.side_by_side
        assert room * module.shared_bytes <= 232_448
