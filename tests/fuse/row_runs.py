"""Running row-wise plans in the simulator with every check, and references in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_core.sim import Profile
from kdsl_fuse.kernels import rows_plan
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.rows import RowConfig, rows

Array = np.ndarray[Any, Any]


def simulated(
    program: RowProgram, *operands: Array, config: RowConfig | None = None, order: str = "linear"
) -> Profile:
    """The counters of a launch in which nothing is wrong and every output is written."""
    plan = rows_plan.choose(program, *operands)
    config = config or plan.config
    result = kd.simulate(
        rows,
        grid=config.grid(plan.height),
        block=config.threads,
        cluster=config.cluster if config.cluster > 1 else None,
        args=plan.views(operands),
        kwargs={"program": program, "config": config},
        checks=("all", "unwritten"),
        overlap=True,
        order=order,
    )
    return result.profile


def softmax(x: Array) -> Array:
    """In f64."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    """In f64."""
    wide = x.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def normalised(x: Array, eps: float, centred: bool) -> Array:
    """RMSNorm or LayerNorm without weights, in f64."""
    wide = x.astype(np.float64)
    if centred:
        wide = wide - wide.mean(-1, keepdims=True)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps)
