"""Grouped convolutions give on a GPU what f64 gives: widths, windows, schedules, tails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from execution import Executor
from fuse import test_conv_grouped as grouped
from fuse.grouped_runs import BF16, Images, assert_close, exact, operands
from kdsl_core import target_of
from kdsl_fuse.kernels.conv_grouped import ENTRIES
from kdsl_fuse.kernels.conv_grouped_config import GroupedConfig
from kdsl_fuse.kernels.conv_grouped_plan import candidates
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity

Array = np.ndarray[Any, Any]
COPIES = grouped.COPIES
PLANS = 8  # that are tried of each problem
pytestmark = pytest.mark.slow  # in the simulator alone `test_conv_grouped.py` has the same


def run(
    execute: Executor,
    config: GroupedConfig,
    images: Images,
    *extras: Array,
    epilogue: Any = identity,
    blocks: int = 5,
) -> tuple[Array, Array, float]:
    """The result, that in f64, and the largest sum."""
    x, w = operands(config, images)
    want = exact(config, x, w)
    y = np.full(want.shape, np.nan, BF16)
    grid = -(-x.shape[3] // config.line) * blocks
    found = execute(
        ENTRIES[config.blocks_per_sm], grid, config.threads, x, w, y, *extras,
        epilogue=epilogue, config=config,
    )[2]  # fmt: skip
    return found, want, float(np.abs(want).max())


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("paired", ("rows", "columns", "images"))
@pytest.mark.parametrize("width", (4, 8, 16, 32, 64))
def test_widths(execute: Executor, width: int, paired: str, copies: str) -> None:
    """Groups of every width."""
    config = replace(
        grouped.SMALL, group=(width, width), paired=paired, copies=copies, warps=8,
        octets={16: 2, 32: 2}.get(width, 1),
    )  # fmt: skip
    assert_close(*run(execute, config, Images(3, 30, 14, 128 // width)))


CHANGES = {**grouped.WINDOWS, **grouped.SCHEDULES}


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("name", CHANGES)
def test_windows_and_schedules(execute: Executor, name: str, copies: str) -> None:
    """Kernels, strides (loads that skip columns), dilations and paddings; ways to cut the work."""
    config = replace(grouped.SMALL, copies=copies, **CHANGES[name])
    assert_close(*run(execute, config, Images(3, 31, 15, 128 // config.group[0])))


@pytest.mark.parametrize("staged, buffers", ((None, 2), (1, 2), (1, 3)))
def test_tail(execute: Executor, staged: int | None, buffers: int) -> None:
    """Bias, residual, ReLU; the residual read by itself, or through the results' buffers."""
    rng = np.random.default_rng(1)
    residual = rng.standard_normal((2, 9, 14, 64)).astype(BF16)
    bias = np.broadcast_to(np.linspace(-1, 1, 64, dtype=np.float32), residual.shape)
    config = replace(grouped.SMALL, staged=staged, buffers=buffers)
    y, want, scale = run(execute, config, grouped.IMAGES, bias, residual, epilogue=grouped.relu)
    assert_close(y, np.maximum(want + bias + residual.astype(np.float64), 0.0), scale)


@pytest.mark.parametrize("width", (4, 16, 32))
def test_candidates(execute: Executor, width: int) -> None:
    """Some of the plans for small images, with their long rings and many warps."""
    groups = 128 // width
    problem = ConvProblem(9, 13, 29, 128, 128, (3, 3), (1, 1), (1, 1), groups=groups)
    found = candidates(problem, target_of("sm_90a"))
    for plan in found[:: len(found) // PLANS + 1]:
        assert_close(*run(execute, plan.config, Images(9, 13, 29, groups)))
