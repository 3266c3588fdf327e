"""How many cycles a depthwise convolution takes on Hopper: an order for a tuner to try plans in.

As for grouped convolutions, things are done at the same time (memory is read and written, tensor
cores multiply, instructions are issued, shared memory is read), and of their times a norm is taken.
"""

from __future__ import annotations

import math

from kdsl_fuse.kernels import conv_grouped_model as grouped
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_window import reached
from kdsl_fuse.kernels.conv_problem import ConvProblem

ELEMENT = 2  # bytes
SCHEDULERS = 4  # of a multiprocessor, each issues an instruction in a cycle
# Set so that at 1755 MHz nine chosen plans take 0.7 to 1.1 times what was measured of them
# (docs/facts.md; `test_depthwise_model`).
AROUND, AROUND_ROW = 90, 9  # instructions of a warp around a pair of strips, and a row of both
ORDINARY = 1.5  # issue slots of an instruction that unpacks a pixel or multiplies it
WAIT, CHAIN = 900, 60  # cycles that a pair of strips takes besides, and each step of input rows


def cycles(
    problem: ConvProblem, config: DepthwiseConfig, grid: tuple[int, int], chips: int
) -> float:
    """Cycles of a launch of `grid` blocks on so many multiprocessors."""
    c = config
    tiles = math.prod(
        -(-size // extent)
        for size, extent in zip((problem.batch, *problem.output), c.output_tile[:3], strict=True)
    )
    resident = -(-grid[0] * grid[1] // chips)  # blocks of a multiprocessor
    turns = -(-tiles // grid[1])  # tiles of a block
    pairs = turns * resident * c.units * c.groups  # of strips, of a multiprocessor's warps
    work = _Work(c)
    times = (
        _memory(problem, c, resident, chips),
        pairs * work.products * grouped.PRODUCT,
        pairs * work.instructions / SCHEDULERS,
        (pairs * work.passes + turns * resident * work.tile_passes) * grouped.PASS,
        turns * (-(-c.units // c.teams) * (WAIT + work.rows // c.together * CHAIN) + grouped.SLAB),
    )
    return grouped.norm(times, grouped.NORM)


class _Work:
    """What a warp does for a pair of strips, and copies do for a tile."""

    def __init__(self, config: DepthwiseConfig) -> None:
        c = config
        down, across = c.kernel
        self.rows = len(reached(c.rows, down, c.stride[0], c.dilation[0]))
        rest = max(across - c.products, 0)
        loads = self.rows * -(-across // 2)
        self.products = c.rows * down * c.products // 2
        ordinary = ORDINARY * 4 * rest * (self.rows + c.rows * down)  # unpacked, and multiplied
        self.instructions = loads + self.products + ordinary + AROUND + AROUND_ROW * c.rows
        self.passes = 4 * loads * min(c.stride[1], 2) + 2 * c.rows
        moved = math.prod(c.input_tile) + math.prod(c.output_tile)
        self.tile_passes = ELEMENT * moved // 128


def _memory(problem: ConvProblem, config: DepthwiseConfig, resident: int, chips: int) -> float:
    """Of all that is moved, and of waiting where few bytes are on the way."""
    p, c = problem, config
    line = grouped.LINE_COST[c.channels]
    moved = p.moved_bytes(ELEMENT) / chips / grouped.BYTES_PER_CYCLE * line
    coming = max(c.stages - 1, 0.5) * math.prod(c.input_tile) * ELEMENT * resident
    read = p.batch * p.height * p.width * p.channels * ELEMENT / chips
    return grouped.norm((moved, read * grouped.LATENCY / coming), grouped.MEMORY_NORM)
