"""Convolutions give the same bits in the simulator and on a GPU, and those are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from fuse.conv_numbers import BF16, assert_close, exact, lying, operands, unwritten
from kdsl_fuse.kernels import conv_sm80_plan
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_plan import conv2d_sm90, plan_of
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

DENSE = ConvProblem(2, 12, 14, 64, 72, (3, 3), padding=(1, 1))
PROBLEMS = {
    "3x3": DENSE,
    "strided, dilated": ConvProblem(2, 19, 14, 64, 40, (3, 2), (2, 3), (2, 1), (2, 1)),
    "strided 1x1": ConvProblem(2, 12, 14, 72, 72, (1, 1), (2, 2)),
    "1x1": ConvProblem(2, 12, 14, 72, 72, (1, 1)),
    "32 channels": ConvProblem(2, 12, 14, 32, 40, (3, 3), padding=(1, 1)),
    "8 channels": ConvProblem(2, 12, 14, 8, 40, (3, 3), padding=(1, 1)),
    "13 channels": ConvProblem(2, 12, 14, 13, 40, (3, 3), padding=(1, 1)),
    "stem": ConvProblem(3, 26, 32, 3, 64, (7, 7), (2, 2), (3, 3)),
    "packed stem": ConvProblem(3, 26, 31, 3, 64, (7, 7), (2, 2), (3, 3)),
    "3 channels without steps": ConvProblem(2, 12, 14, 3, 24, (3, 3), padding=(1, 1)),
    "wide groups": ConvProblem(1, 12, 14, 144, 48, (3, 3), padding=(1, 1), groups=2),
    "k split": ConvProblem(1, 7, 7, 512, 128, (3, 3), padding=(1, 1)),
    "a line": ConvProblem(2, 1, 100, 64, 40, (1, 9), padding=(0, 4)),
    "steps of 16": ConvProblem(1, 64, 48, 3, 24, (16, 16), (16, 16)),
}


def steps(problem: ConvProblem) -> dict[str, Any]:
    """The keywords of a call."""
    names = "stride", "padding", "dilation", "groups"
    return {name: getattr(problem, name) for name in names}


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_calls(execute: Executor, name: str) -> None:
    """The plan that is chosen for each kind of problem."""
    problem = PROBLEMS[name]
    x, w = operands(problem)

    def call(x: Any, w: Any, out: Any) -> None:
        conv2d_sm90(x, w, out, **steps(problem))

    y = execute.run(call, x, w, unwritten(problem))[2]
    assert_close(y, exact(problem, x, w))


def tail(acc: Any, bias: Any, residual: Any) -> Any:
    """A bias, ReLU and a residual."""
    return kd.maximum(acc + bias, 0.0) + residual.to(kd.f32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ("3x3", "stem", "1x1", "k split"))
def test_tails(execute: Executor, name: str) -> None:
    """A bias, ReLU and a residual behind the sums."""
    problem = PROBLEMS[name]
    x, w = operands(problem)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(problem.filters).astype(np.float32)
    residual = rng.standard_normal(unwritten(problem).shape).astype(BF16)

    def call(x: Any, w: Any, out: Any, bias: Any, residual: Any) -> None:
        conv2d_sm90(x, w, out, bias, residual, epilogue=tail, **steps(problem))

    y = execute.run(call, x, w, unwritten(problem), bias, residual)[2]
    want = np.maximum(exact(problem, x, w) + bias, 0) + residual.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-2, atol=1e-2)


CONFIGS = {
    "cooperative": Sm90Config((128, 64, 64), 3),
    "pingpong": Sm90Config((64, 64, 64), 3, "pingpong", registers=(40, 232)),
    "cluster of two rows": Sm90Config((128, 64, 64), 3, cluster=(2, 1)),
    "cluster of two columns": Sm90Config((128, 64, 64), 3, cluster=(1, 2)),
    "k shared": Sm90Config((64, 16, 64), 3, consumers=1, peers=2),
}


@pytest.mark.gpu
@pytest.mark.parametrize("swap", (False, True))
@pytest.mark.parametrize("name", CONFIGS)
def test_schedules(execute: Executor, name: str, swap: bool) -> None:
    """Each way to share the work, pixels on either side of the product."""
    x, w = operands(DENSE)
    plan = plan_of(DENSE, kd.bf16, None, CONFIGS[name], swap, multiprocessors=4)
    y = execute.run(plan.run, x, w, unwritten(DENSE))[2]
    assert_close(y, exact(DENSE, x, w))


@pytest.mark.gpu
def test_nchw(execute: Executor) -> None:
    """Images and filters in another order are copied first."""
    x, w = operands(DENSE)
    x, w = lying(x, (0, 3, 1, 2)), lying(w, (0, 3, 1, 2))

    def call(x: Any, w: Any, out: Any) -> None:
        conv2d_sm90(x, w, out, **steps(DENSE))

    assert_close(execute.run(call, x, w, unwritten(DENSE))[2], exact(DENSE, x, w))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype, precision", ((BF16, "ieee"), (np.float32, "ieee"), (np.float32, "tf32"))
)
@pytest.mark.parametrize("name", ("3x3", "strided, dilated", "13 channels"))
def test_portable(execute: Executor, name: str, dtype: Any, precision: str) -> None:
    """The kernel for sm_80, which has f32 as well."""
    problem = PROBLEMS[name]
    x, w = operands(problem, dtype)
    kind = kd.f32 if dtype is np.float32 else kd.bf16
    plan = conv_sm80_plan.choose(problem, kind, f32_precision=precision)
    y = execute.run(plan.run, x, w, unwritten(problem, dtype))[2]
    bound = {"ieee": 1e-6, "tf32": 1e-3}[precision] if dtype is np.float32 else 5e-3
    want = exact(problem, x, w)
    assert np.abs(y.astype(np.float64) - want).max() < bound * np.abs(want).max()
