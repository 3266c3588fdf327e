"""Depthwise convolutions on Hopper ready to launch: a configuration, and the grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kdsl_fuse.kernels.conv_depthwise_config import STRIP, DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS, identity
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

SHARED_BYTES = 233_472  # of a multiprocessor, 1 KiB of which each block takes for itself


@dataclass(frozen=True)
class DepthwisePlan:
    """One way to compute a depthwise convolution."""

    problem: ConvProblem
    config: DepthwiseConfig
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        c = self.config
        tile = "x".join(map(str, (*c.tile[:2], c.tile[2], c.channels)))
        return (
            f"{tile} r{c.rows} t{c.teams} s{c.stages} b{c.blocks_per_sm} p{c.products}"
        )

    @property
    def grid(self) -> int:
        """Blocks: as many as run at a time, the same number for each part of the channels."""
        p, c = self.problem, self.config
        sizes = (p.batch, *p.output)
        tiles = 1
        for size, extent in zip(sizes, c.output_tile[:3], strict=True):
            tiles *= -(-size // extent)
        parts = -(-p.channels // c.channels)
        room = self.multiprocessors * c.blocks_per_sm // parts
        return parts * max(1, min(tiles, room))

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        kernel = KERNELS[self.config.blocks_per_sm]
        return kernel.configure(grid=self.grid, block=self.config.threads, overlap=True)

    def run(
        self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Callable[..., Any] = identity
    ) -> None:
        """out = epilogue(convolution, extras…), on the arrays' current stream."""
        taps = w.reshape(w.shape[0], -1)
        self.launch(x, taps, out, *extras, epilogue=epilogue, config=self.config)


def fitted(problem: ConvProblem, config: DepthwiseConfig) -> DepthwiseConfig | None:
    """The configuration with the largest tile that fits shared memory, None where none does."""
    p = problem
    rows, columns = p.output
    budget = SHARED_BYTES // config.blocks_per_sm - 1024
    blocks, strips = -(-rows // config.rows), -(-columns // STRIP)
    while strips > 14:
        strips = -(-strips // 2)
    while True:
        for parts in range(1, blocks + 1):
            tile = (1, -(-blocks // parts), strips)
            found = replace(config, tile=tile)
            if found.shared_bytes <= budget and max(found.input_tile) <= 256:
                break
        else:
            if strips == 1:
                return None
            strips = -(-strips // 2)
            continue
        break
    while parts == 1 and strips * STRIP >= columns:
        more = replace(found, tile=(found.tile[0] * 2, *found.tile[1:]))
        if more.shared_bytes > budget or more.units > 8 or more.tile[0] > p.batch:
            break
        found = more
    return found
