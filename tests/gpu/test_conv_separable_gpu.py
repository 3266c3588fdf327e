"""Depthwise and pointwise convolutions in one kernel are right on a GPU, in all their forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from execution import Executor
from fuse import test_conv_separable as convolutions
from kdsl_fuse.kernels.conv_depthwise_plan import broadcast
from kdsl_fuse.kernels.conv_separable_config import SeparableConfig, Tails
from kdsl_fuse.kernels.conv_separable_model import Choice
from kdsl_fuse.kernels.conv_separable_plan import SeparablePlan, choose

BLOCKS = 6  # multiprocessors that plans count on, so that each block computes several tiles


def run(execute: Executor, problem: Any, config: SeparableConfig | None = None) -> None:
    """A launch on few blocks with biases and a residual, compared with f64."""
    plan = choose(problem, 1, BLOCKS)
    if config is not None:
        plan = SeparablePlan(problem, Choice(config, 1), BLOCKS)
    given, d = convolutions.Operands(problem), problem.depthwise
    out = np.full(given.out_shape, 77, convolutions.BF16)

    def launch(x: Any, w: Any, v: Any, out: Any, bias: Any, second: Any, residual: Any) -> None:
        epilogue = Tails(convolutions.biased_relu6, 1, convolutions.biased_and_added)
        extras = [
            broadcast(bias, (*given.out_shape[:3], d.channels)),
            broadcast(second, given.out_shape), residual,
        ]  # fmt: skip
        plan.run(x, w, v, out, *extras, epilogue=epilogue)

    got = execute.run(
        launch, given.x, given.w, given.pointwise, out, given.bias, given.second, given.residual
    )[3]
    convolutions.assert_close(got, *given.want(residual=True))


@pytest.mark.parametrize(
    "name", ("four rows", "images", "two warp groups", "tiles of filters", "parts", "all shares")
)
def test_tiles(execute: Executor, name: str) -> None:
    """Ways to share tiles, channels and filters, over several tiles for each block."""
    sizes, fields = convolutions.TILES[name]
    problem = convolutions.separable(**{"channels": 40, "batch": 3, **sizes})
    run(execute, problem, convolutions.configured(problem, **fields))


@pytest.mark.parametrize(
    "kernel, stride, channels, filters", ((3, 1, 32, 16), (3, 2, 96, 24), (5, 1, 40, 40))
)
def test_chosen(execute: Executor, kernel: int, stride: int, channels: int, filters: int) -> None:
    """What is chosen, for several tiles of each block."""
    sizes = {"channels": channels, "image": (22, 23), "batch": 2}
    run(execute, convolutions.separable(filters, kernel, stride, **sizes))
