"""What the ports of products share beside their kernels: the launch, and a first check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from operands import operands

import kdsl_core as kd


def launch_tiles(
    plan: Callable[[str], Any], tile: tuple[int, int], threads: int, A: Any, B: Any, C: Any
) -> dict[str, Any]:
    """A block for each tile of C; `plan` follows from how A lies in memory."""
    majors = "TN" if A.strides[1] == A.itemsize else "NT"
    grid = C.shape[0] // tile[0], C.shape[1] // tile[1]
    return {"grid": grid, "block": threads, "args": (A, B, C), "kwargs": {"plan": plan(majors)}}


def check(
    kernel: Any, launch: Callable[..., dict[str, Any]], k: int, dtype: Any, **bounds: float
) -> None:
    """Both kinds of operands in the simulator, compared with NumPy."""
    for majors in ("TN", "NT"):
        a, b, c = operands(128, 128, k, majors, dtype)
        kd.simulate(kernel, **launch(a, b, c))
        np.testing.assert_allclose(c, a.astype(np.float64) @ b.T, **bounds)
        print(f"{majors}: C of {len(a)} × {len(b)} is right, and nothing raced")
