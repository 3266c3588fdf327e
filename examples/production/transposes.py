"""A service of one kernel: yᵀ for matrices of any whole number of tiles, in the fastest known way.

The worked example of `docs/workflow.md`: kernel, space, and what the service calls.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_runtime import dispatch
from kdsl_runtime.tune import Call, Problem, Space

DEVICE = "NVIDIA H200"  # what the tables are asked for where no GPU says its own name
DEFAULT = {"tile": 32, "pad": 0}
TABLES = dispatch.Dispatch("transpose")
SEEN: Counter[str] = Counter()  # problems that were asked for


@kd.kernel
def transpose(
    x: kd.Tensor["f32", "m n"], y: kd.Tensor["f32", "n m"], tile: kd.Static, pad: kd.Static
):
    """y = xᵀ, one tile a block, one row of it a warp at a time."""
    shared = kd.smem(kd.f32, kd.Layout((tile, tile), (tile + pad, 1)), name="shared")
    bx, by, _ = kd.block_idx()
    column, row, _ = kd.thread_idx()
    for i in range(0, tile, 8):
        shared[row + i, column] = x[by * tile + row + i, bx * tile + column]
    kd.sync_threads()
    for i in range(0, tile, 8):
        y[bx * tile + row + i, by * tile + column] = shared[column, row + i]


def answer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the service does with a matrix."""
    problem = Problem.of(m=x.shape[0], n=x.shape[1], dtype="f32")
    SEEN[str(problem)] += 1
    config = TABLES.choose(DEVICE, problem, model=lambda: DEFAULT).config
    y = np.empty(x.shape[::-1], x.dtype)
    (call,) = calls(problem, config, {"x": x, "y": y})
    call.launch(*call.args, **call.statics)
    return y


def calls(problem: Problem, config: Any, arrays: Any) -> list[Call]:
    """The launches of a configuration."""
    tile = config["tile"]
    launch = transpose[(problem.size("n") // tile, problem.size("m") // tile), (tile, 8)]
    return [Call(launch, (arrays["x"], arrays["y"]), dict(config))]


def tensors(problem: Problem) -> dict[str, Any]:
    """What a problem's arrays are."""
    m, n = problem.size("m"), problem.size("n")
    return {"x": kd.spec("f32", (m, n)), "y": kd.spec("f32", (n, m))}


def whole_tiles(problem: Problem, config: Any) -> str | None:
    """Why a configuration cannot serve a problem; None if it can."""
    rest = problem.size("m") % config["tile"], problem.size("n") % config["tile"]
    return None if rest == (0, 0) else f"the matrix is no multiple of {config['tile']}"


space = Space(
    "transpose",
    options={"tile": (32, 64), "pad": (0, 1)},
    constraints=(whole_tiles,),
    tensors=tensors,
    calls=calls,
    reference=lambda problem, arrays: {"y": arrays["x"].T},
    bound=0.0,
)


def example_transpose() -> dict[str, Any]:
    """A launch for `kdsl inspect transposes.py`."""
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    args = x, np.empty((96, 64), np.float32)
    return {"grid": (3, 2), "block": (32, 8), "args": args, "kwargs": dict(DEFAULT)}
