"""Convolutions for sm_80 and everything newer, ready to launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import Target
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm80 import conv_sm80
from kdsl_fuse.kernels.conv_sm90_operands import Window
from kdsl_fuse.kernels.conv_views import filter_matrix, groups_of
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, identity, plan_gemm

SMALL = (64, 64, 64)  # the tile of images that are not copied by vectors


@dataclass(frozen=True)
class PortablePlan:
    """One way to compute a convolution: a launch for each group."""

    problem: ConvProblem
    config: GemmConfig
    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    kernel = conv_sm80
    cluster = None

    def __str__(self) -> str:
        c = self.config
        return f"{'x'.join(map(str, c.tile))} s{c.stages} {c.atom}"

    @property
    def statics(self) -> dict[str, Any]:
        """The kernel's trace-time arguments but for the epilogue."""
        return {"config": self.config, "window": Window.of(self.problem, self.config.tile[2])}

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        return conv_sm80.configure(grid=self.grid, block=self.block)

    def run(
        self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Callable[..., Any] = identity
    ) -> None:
        """out = epilogue(convolution of x and w, extras…), on the arrays' current stream.

        Shapes: x (n, h, w, c) in any strides, w (k, r, s, c / groups), out (n, p, q, k); extras
        broadcast to out's shape.
        Raises: ArgumentError K998 for filters, or a result, that are no rows of a matrix.
        """
        for images, filters, results, operands in groups_of(self.problem, x, w, (out,), extras):
            matrix = filter_matrix(filters)
            if matrix is None:
                raise kd.ArgumentError(
                    "filters are no rows of one matrix: each has its rows, columns and channels "
                    "behind each other",
                    code="K998",
                    fix="pass a contiguous array of (filters, rows, columns, channels / groups)",
                )
            self.launch(images, matrix, *results, *operands, epilogue=epilogue, **self.statics)


def choose(
    problem: ConvProblem,
    dtype: DType,
    *,
    target: str | Target = "sm_80",
    f32_precision: str = "ieee",
) -> PortablePlan:
    """The plan for operands of a type; `f32_precision` as of `plan_gemm`."""
    rows, columns = problem.output
    one = replace(
        problem, channels=problem.channels // problem.groups,
        filters=problem.filters // problem.groups, groups=1,
    )  # fmt: skip
    depth = one.kernel[0] * one.kernel[1] * one.channels
    config, grid, block = plan_gemm(
        one.batch * rows * columns, one.filters, depth, dtype,
        target=target, f32_precision=f32_precision,
    )  # fmt: skip
    if dtype.bytes == 2 and one.channels % 2:  # element by element: a thread has many places
        config = GemmConfig(config.atom, SMALL, (2, 4), 3)
        tiles = -(-one.batch * rows * columns // SMALL[0]) * -(-one.filters // SMALL[1])
        grid, block = (tiles, 1, 1), (config.threads, 1, 1)
    return PortablePlan(problem, config, grid, block)
