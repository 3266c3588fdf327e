"""How many cycles a grouped convolution takes, by a model whose numbers were fitted on an H200.

Five things are done at the same time: memory is read and written, by as many bytes as are on the
way; tensor cores multiply; shared memory is read; and each block does one step after the other. Of
their times a norm is taken, which is little more than the longest.
"""

from __future__ import annotations

from typing import Any

from kdsl_fuse.kernels.conv_grouped_config import GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem

ELEMENT = 2  # bytes
# Fitted to measured plans of benchmarks/gpu/conv_grouped.py; cycles of a multiprocessor.
BYTES_PER_CYCLE = 16.6  # of memory
LATENCY = 1260  # of memory, for bytes on the way
LINE_COST = {16: 1.25, 32: 1.0, 64: 1.0}  # of memory, by channels of a line
PRODUCT = 1.85  # of the tensor cores, for a product of 16 x 8 x 16
PASS = 0.74  # of shared memory, for 128 bytes
CHAIN = 6  # from a product to the next one of the same sum
STRIP, STEP, SLAB = 176, 460, 120  # of a warp, around what it computes
NORM = 3.6
MEMORY_NORM = 2.4


def cycles(problem: ConvProblem, config: GroupedConfig, blocks: int, chips: int) -> float:
    """Cycles of a launch in which `blocks` blocks share each line of channels' items."""
    c = config
    chunks = -(-problem.channels // c.line)
    turns = -(-items(problem, c) // blocks)
    resident = -(-blocks * chunks // chips)  # blocks of a multiprocessor
    steps = turns * c.steps
    work = _Work(c)
    times = (
        _memory(problem, c, resident, chips),
        steps * resident * work.products * c.strips * c.parts * PRODUCT,
        steps * resident * work.passes * PASS,
        _latency(c, work, steps, turns * c.slabs),
    )
    return norm(times, NORM)


def items(problem: ConvProblem, config: GroupedConfig) -> int:
    """Pieces of images, each with one line of channels, that blocks take one by one."""
    (rows, columns), c = problem.output, config
    packs = -(-problem.batch // c.images)
    return packs * -(-rows // (c.rows * c.steps)) * -(-columns // c.columns)


class _Work:
    """What a warp does for a strip, and a block for a step."""

    def __init__(self, config: GroupedConfig) -> None:
        c = config
        taps = -(-c.octets_read * c.kernel[1] // 2)  # steps of the products
        self.chain = c.kernel[0] * taps
        self.products = self.chain * c.units * c.octets
        rows = {
            unit * c.stride[0] + r * c.dilation[0]
            for unit in range(c.units)
            for r in range(c.kernel[0])
        }
        self.loads = 4 * len(rows) * taps + (2 * self.chain * c.octets) * (c.weights == "shared")
        slab = c.slab * c.width * c.line * len(c.planes)
        results = 2 * c.rows * c.columns * c.filters
        self.passes = c.strips * c.parts * self.loads
        self.passes += (slab + results) * c.images * ELEMENT // 128


def _memory(problem: ConvProblem, config: GroupedConfig, resident: int, chips: int) -> float:
    p, c = problem, config
    moved = p.moved_bytes(ELEMENT) / chips / BYTES_PER_CYCLE * LINE_COST[c.line]
    stages = max(c.stages - c.window - (c.teams - 1) / 2, 0.5)
    row = min(c.columns * c.stride[1], p.width) * c.line * ELEMENT * c.images
    coming = stages * min(c.slab, p.height) * row * resident
    read = p.batch * p.height * p.width * p.channels * ELEMENT / chips
    return norm((moved, read * LATENCY / coming), MEMORY_NORM)


def _latency(config: GroupedConfig, work: _Work, steps: int, slabs: int) -> float:
    """Of a block whose teams take steps by turns, `together` strips at a time."""
    c = config
    issued = (work.products * 4 * PRODUCT + work.loads / 2) * c.together
    strip = STRIP + max(work.chain * CHAIN, issued)
    return steps * (STEP + -(-c.strips // c.together) * strip) / c.teams + slabs * SLAB


def norm(times: Any, power: float) -> float:
    """One time for things that are done at the same time: little more than the longest."""
    return float(sum(time**power for time in times) ** (1 / power))
