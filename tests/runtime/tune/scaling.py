"""A kernel with its space, for the tests of the tuner: y = 2·x, right in most configurations."""

from __future__ import annotations

import os
import time

import numpy as np

import kdsl_core as kd
from kdsl_runtime.tune import Call, Space


@kd.kernel
def scaled(
    x: kd.Tensor["f32", "n"],
    y: kd.Tensor["f32", "n"],
    step: kd.Static,
    factor: kd.Static,
):
    """y = factor · x; neighbouring threads are `step` elements apart, which costs sectors."""
    first = kd.block_idx()[0] * kd.block_dim()[0] * step
    for i in range(step):
        at = first + kd.thread_idx()[0] * step + i
        y[at] = x[at] * factor


def tensors(problem):
    """x and y."""
    n = problem.size("n")
    return {"x": kd.spec(problem["dtype"], n), "y": kd.spec(problem["dtype"], n)}


def calls(problem, config, arrays):
    """One launch, after whatever the configuration does to its process."""
    mishap(config.get("mishap", ""), arrays["x"])
    threads, step = config["threads"], config["step"]
    grid = problem.size("n") // (threads * step)
    factor = 3.0 if config.get("mishap") == "wrong" else 2.0
    return [
        Call(scaled[grid, threads], (arrays["x"], arrays["y"]), {"step": step, "factor": factor})
    ]


def mishap(kind, x):
    """Die or hang where a candidate runs, on arrays with data."""
    if not isinstance(x, np.ndarray):
        return
    if kind == "dies":
        os.abort()
    if kind == "hangs":
        time.sleep(600)


def whole_blocks(problem, config):
    """n is a multiple of what a block computes."""
    part = config["threads"] * config["step"]
    n = problem.size("n")
    return None if n % part == 0 else f"{n} elements are no multiple of {part}"


def reference(problem, arrays):
    """y."""
    return {"y": 2 * arrays["x"].astype(np.float64)}


COMMON = {"tensors": tensors, "calls": calls, "reference": reference, "bound": 1e-6}
SPACE = Space(
    "scaled",
    options={"threads": (32, 64, 2048), "step": (1, 2, 4)},
    constraints=(whole_blocks,),
    **COMMON,
)


def one_at_a_time(problem, config):
    """Mishaps happen with one step."""
    return "enough mishaps" if config["mishap"] and config["step"] > 1 else None


MISHAPS = Space(
    "mishaps",
    options={"threads": (32,), "step": (1, 4), "mishap": ("", "wrong", "dies", "hangs")},
    constraints=(whole_blocks, one_at_a_time),
    **COMMON,
)
