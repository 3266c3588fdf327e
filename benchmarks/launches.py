"""The launches whose simulation is measured: one kernel of each kind, with its arguments."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_core.lang import launch
from kdsl_core.lang.simulate import Simulated
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

EXAMPLES = Path(__file__).parents[1] / "examples"
THREADS = 256
ELEMENTS = 1 << 20
SIDE = 1024  # of the matrices that softmax and transpose take
MULTIPROCESSORS = 64
CHECKS = {"all": "all", "none": ()}


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is launched with."""

    kernel: Any
    grid: Any
    block: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    cluster: Any = None

    def run(self, checks: str = "all", *, profile: bool = False) -> Simulated:
        """One simulated launch with all checks or with "none"."""
        return kd.simulate(
            self.kernel, grid=self.grid, block=self.block, cluster=self.cluster, args=self.args,
            kwargs=self.kwargs, checks=CHECKS[checks], profile=profile,
        )  # fmt: skip


def launch_of(run: Callable[[], Any], kernel: str = "") -> Launch:
    """The launch that a call would make, of several that of the kernel of this name; none is made.

    Raises: ValueError when it is none, or several.
    """
    found: list[Launch] = []

    def note(made: Any, *args: Any, **kwargs: Any) -> None:
        if kernel in ("", made.kernel.__name__):
            found.append(Launch(made.kernel, made.grid, made.block, args, kwargs, made.cluster))

    with mock.patch.object(launch.Launch, "__call__", note):
        run()
    (only,) = found
    return only


@kd.kernel
def scale_and_add(
    x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], z: kd.Tensor["f32", "n"], each: kd.Static
):
    """z = 2·x + y, `each` neighbouring elements a thread, the last ones behind a bound."""
    first = (kd.block_idx()[0] * THREADS + kd.thread_idx()[0]) * each
    for i in range(each):
        if first + i < z.shape[0]:
            z[first + i] = 2.0 * x[first + i] + y[first + i]


def element_wise(each: int) -> Launch:
    """About a million elements."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2))
    grid = ELEMENTS // (THREADS * each)
    return Launch(scale_and_add, grid, THREADS, (x, y, np.empty_like(x)), {"each": each})


def softmax() -> Launch:
    """A warp for each row of a square matrix."""
    example = runpy.run_path(str(EXAMPLES / "softmax.py"))
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    warps = example["WARPS"]
    return Launch(example["softmax"], SIDE // warps, 32 * warps, (x, np.empty_like(x)))


def transpose() -> Launch:
    """A square matrix, tile by tile through shared memory."""
    example = runpy.run_path(str(EXAMPLES / "transpose.py"))
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    tile = example["TILE"]
    block = tile * example["ROWS"]
    return Launch(example["transpose"], (SIDE // tile, SIDE // tile), block, (x, np.empty_like(x)))


def operands(m: int, n: int, k: int) -> tuple[np.ndarray[Any, Any], ...]:
    """A (m, k), B (n, k) and C (m, n) in bf16."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return a, b, np.empty((m, n), ml_dtypes.bfloat16)


def ampere(size: int) -> Launch:
    """The GEMM of sm_80, three stages."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (128, 128, 32), (2, 2), 3)
    grid = (size // config.tile[0]) * (size // config.tile[1])
    kwargs = {"epilogue": identity, "config": config}
    return Launch(gemm_sm80, grid, config.threads, operands(size, size, size), kwargs)


def hopper(m: int, n: int, k: int, config: Sm90Config) -> Launch:
    """The GEMM of sm_90a, three stages."""
    a, b, c = operands(m, n, k)
    plan = Sm90Plan(model.Problem(m, n, k), config, multiprocessors=MULTIPROCESSORS)
    parts = plan.parts(a, c)
    return Launch(
        gemm_sm90, plan.grid, config.threads, (a, b, c if parts is None else parts),
        {"epilogue": identity, "config": config}, plan.cluster,
    )  # fmt: skip


TILE = (128, 64, 64)
LAUNCHES: dict[str, Callable[[], Launch]] = {
    "gemm_sm80 256": lambda: ampere(256),
    "gemm_sm90 256": lambda: hopper(256, 256, 256, Sm90Config(TILE, 3)),
    "gemm_sm90 512": lambda: hopper(512, 512, 512, Sm90Config(TILE, 3)),
    "gemm_sm90 split K": lambda: hopper(256, 256, 1024, Sm90Config(TILE, 3, splits=8)),
    "gemm_sm90 cluster": lambda: hopper(256, 256, 256, Sm90Config(TILE, 3, cluster=(2, 1))),
    "element-wise 1": lambda: element_wise(1),
    "element-wise 8": lambda: element_wise(8),
    "softmax": softmax,
    "transpose": transpose,
}
