"""Depthwise convolutions give on a GPU what they give in the simulator, and that is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from fuse import test_conv_depthwise as convolutions
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels import conv_depthwise_norm_plan as norms
from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
from kdsl_fuse.kernels.conv_depthwise_plan import choose

BF16 = ml_dtypes.bfloat16
BLOCKS = 6  # multiprocessors that plans count on, so that each block computes several tiles
# In the simulator alone `test_conv_depthwise.py` and `test_conv_depthwise_norm.py` have the same.
pytestmark = pytest.mark.slow


def run(execute: Executor, plan: Any, dtype: Any) -> None:
    """A launch on few blocks, compared with f64."""
    p = plan.problem
    x, w, _ = convolutions.operands(p, dtype)
    out = np.full((p.batch, *p.output, p.filters), 77, dtype)
    got = execute.run(plan.run, x, w, out)[2]
    convolutions.assert_close(got, *convolutions.exact(p, x, w))


@pytest.mark.parametrize("name", convolutions.WINDOWS)
@pytest.mark.parametrize("dtype", (BF16, np.float16, np.float32))
def test_windows(execute: Executor, name: str, dtype: Any) -> None:
    """What is chosen for each window and type."""
    problem = replace(convolutions.WINDOWS[name], batch=5)
    run(execute, choose(problem, dtype_of(np.dtype(dtype)), multiprocessors=BLOCKS), dtype)


@pytest.mark.parametrize("name", convolutions.TILES)
def test_tiles(execute: Executor, name: str) -> None:
    """Every way to share tiles."""
    fields = {"rows": 4, "tile": (1, 2, 2), "products": 2, **convolutions.TILES[name]}
    plan = convolutions.tiled(convolutions.problem((3, 3), channels=40, batch=5), **fields)
    run(execute, replace(plan, multiprocessors=BLOCKS), BF16)


@pytest.mark.parametrize("multiplier", (2, 3))
def test_multiplier(execute: Executor, multiplier: int) -> None:
    """Several filters for each channel."""
    problem = convolutions.problem((3, 3), (1, 2), multiplier=multiplier)
    run(execute, choose(problem, kd.f16, multiprocessors=BLOCKS), np.float16)


def test_residual(execute: Executor) -> None:
    """A tail with operands of both kinds."""
    p = convolutions.problem((5, 5), batch=4)
    x, w, bias = convolutions.operands(p)
    residual = np.random.default_rng(1).standard_normal((4, *p.output, 24)).astype(BF16)
    extras = [np.broadcast_to(bias, residual.shape), residual]
    plan = choose(p, kd.bf16, extras=1, multiprocessors=BLOCKS)

    def launch(*arrays: Any) -> None:
        plan.run(*arrays, epilogue=lambda acc, b, r: acc + b.to(kd.f32) + r.to(kd.f32))

    got = execute.run(launch, x, w, np.full_like(residual, 77), *extras)[2]
    want, scale = convolutions.exact(p, x, w)
    want = want + bias.astype(np.float64) + residual.astype(np.float64)
    convolutions.assert_close(got, want, scale + 4)


@pytest.mark.parametrize("channels", (32, 96, 192, 256))
def test_normalised(execute: Executor, channels: int) -> None:
    """A layer normalisation, in one block and in clusters."""
    p = convolutions.problem((7, 7), channels=channels, batch=3)
    x, w, bias = convolutions.operands(p)
    plan = norms.choose(p)
    assert plan is not None
    epilogue = Normalised(norms.biased, 1, norms.affine, 1e-6)

    def launch(*arrays: Any) -> None:
        plan.run(*arrays, epilogue=epilogue)

    out = np.full(x.shape, 77, BF16)
    got = execute.run(launch, x, w, out, *[np.broadcast_to(bias, x.shape)] * 3)[2]
    value = convolutions.exact(p, x, w)[0] + bias.astype(np.float64)
    deviation = np.sqrt(value.var(3, keepdims=True) + 1e-6)
    normal = (value - value.mean(3, keepdims=True)) / deviation
    want = (normal + 1) * bias.astype(np.float64)
    assert (np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + 1e-4).all()
