"""How long a fused separable convolution takes, about, and the two kernels in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kdsl_fuse.kernels.conv_depthwise_config import CLUSTERS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import DEPTH, WARPS, SeparableConfig
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

# Fitted to what an H200 needed for some hundred configurations of thirteen shapes (docs/facts.md).
STEP, ROW, RUN = 110.0, 26.0, 2.0  # instructions of a warp for sixteen channels, a row, some words
RESULT = 2.7  # instructions for a result of each of a warp's rows of sixteen pixels
HIDDEN = 1.6  # warps of a scheduler that make it issue half as much as it can
TAPS = 7.0  # cycles of a scheduler for two taps of a warp's row
READ = 5.4  # cycles of a multiprocessor for four matrices
LOADED = 27.0  # bytes that arrive in a cycle
START, TILE, STAGE, CLUSTER = 5600.0, 800.0, 250.0, 1600.0  # cycles that nothing hides
BESIDE = 1.36  # how much longer blocks take beside others
ADDED = 0.05  # cycles for a byte of sums that parts add up
MEMORY = 2140.0  # bytes that all multiprocessors read and write in a cycle
CYCLES_PER_US = 1700.0
SCHEDULERS, NARROWEST = 4, 32  # of a multiprocessor; filters that take no less time when fewer
# Two kernels, fitted likewise: what both launches take besides, bytes of the depthwise one in a µs,
# µs of a tap of one that large windows have more than 9 of, and of a pixel and a multiplication and
# addition of the pointwise one.
APART, DEPTHWISE_BYTES_PER_US, TAP_US, PIXEL_US, PRODUCT_US = 6.0, 2.7e6, 5e-8, 4.8e-5, 8e-10
FEW_TAPS = 9


@dataclass(frozen=True)
class SeparableProblem:
    """A depthwise convolution, and `filters` pointwise ones of its results."""

    depthwise: ConvProblem
    filters: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of both."""
        p = self.depthwise
        return p.flops + 2 * p.batch * math.prod(p.output) * p.channels * self.filters

    def moved_bytes(self, element_bytes: int) -> int:
        """Bytes of the input, the weights and the result, each counted once."""
        p = self.depthwise
        pixels = p.batch * math.prod(p.output)
        image = p.batch * p.height * p.width * p.channels
        weights = p.channels * (math.prod(p.kernel) + self.filters)
        return element_bytes * (image + weights + pixels * self.filters)


@dataclass(frozen=True)
class Choice:
    """A configuration, and how many blocks of it a multiprocessor has."""

    config: SeparableConfig
    blocks_per_sm: int


def count(problem: SeparableProblem, config: SeparableConfig) -> int:
    """Tiles of all images and filters."""
    return -(-problem.depthwise.batch // config.window.tile[0]) * math.prod(config.tiles)


def at_once(choice: Choice, multiprocessors: int = MULTIPROCESSORS) -> int:
    """Blocks, or clusters of them, that run at a time."""
    clusters = CLUSTERS[choice.config.peers] * multiprocessors // MULTIPROCESSORS
    return max(clusters, 1) * choice.blocks_per_sm


def cycles(problem: SeparableProblem, choice: Choice, multiprocessors: int) -> float:
    """About how many cycles a launch takes."""
    config, blocks = choice.config, choice.blocks_per_sm
    turns = -(-count(problem, config) // at_once(choice, multiprocessors))
    hidden = 1 + HIDDEN * SCHEDULERS / (WARPS * config.consumers * blocks)
    loaded = 2 * config.stages * _stage(config) / LOADED
    busy = max(_issued(config) * hidden, _multiplied(config) * hidden, _read(config), loaded)
    waited = TILE + STAGE * config.stages / config.parts
    added = 4 * ADDED * 128 * config.sums * config.consumers * (config.shares > 1)
    if blocks > 1:
        busy *= BESIDE
    tile = blocks * busy + waited / blocks + added + CLUSTER * (config.peers > 1)
    moved = problem.moved_bytes(2) * MULTIPROCESSORS / multiprocessors / MEMORY
    return START + max(turns * tile, moved)


def _steps(config: SeparableConfig) -> float:
    """How often the warps of a block take sixteen channels for a tile."""
    return WARPS * config.groups * config.own_channels / DEPTH


def _matrices(config: SeparableConfig) -> float:
    """Loads of four matrices for sixteen channels."""
    w = config.window
    rows = (w.rows - 1) * w.stride[0] + w.kernel[0]
    pairs = rows * (w.kernel[1] // 2) + -(-rows // 2) * (w.kernel[1] % 2)
    return 2 * pairs * w.stride[1]


def _issued(config: SeparableConfig) -> float:
    """Cycles in which a scheduler issues the instructions of a tile."""
    w = config.window
    step = STEP + ROW * w.rows + RUN * config.words / 4 + _matrices(config)
    results = WARPS * config.consumers * w.rows * config.width
    return (_steps(config) * step + RESULT * results) / SCHEDULERS


def _multiplied(config: SeparableConfig) -> float:
    """Cycles of the tensor cores for a tile."""
    w = config.window
    taps = _steps(config) / SCHEDULERS * 2 * w.rows * -(-w.taps // 2) * TAPS
    products = _steps(config) / WARPS * w.rows * max(config.filters, NARROWEST) / 2
    return taps + products


def _read(config: SeparableConfig) -> float:
    """Cycles of shared memory for a tile."""
    return _steps(config) * (READ * _matrices(config) + 2 * config.words)


def _stage(config: SeparableConfig) -> int:
    """Elements of a stage of the ring."""
    return math.prod(config.window.input_tile) + config.filters * config.window.channels


def apart_us(problem: SeparableProblem, multiprocessors: int = MULTIPROCESSORS) -> float:
    """About how long two kernels take, one behind the other."""
    p, chip = problem.depthwise, multiprocessors / MULTIPROCESSORS
    pixels, taps = p.batch * math.prod(p.output), math.prod(p.kernel)
    first = p.moved_bytes(2) / DEPTHWISE_BYTES_PER_US
    if taps > FEW_TAPS:
        first += pixels * p.channels * taps * TAP_US
    second = pixels * PIXEL_US + (problem.flops - p.flops) * PRODUCT_US
    return APART + (first + second) / chip
