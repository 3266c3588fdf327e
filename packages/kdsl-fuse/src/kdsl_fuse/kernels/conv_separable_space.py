"""Which configurations of the fused separable convolution have room, and which come first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from kdsl_fuse.kernels.conv_depthwise_config import STRIP, DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_space import (
    MOST_EXTENT,
    MOST_REGISTERS,
    REGISTERS,
    SHARED_BYTES,
)
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import (
    BLOCKS_PER_SM,
    EIGHT,
    GROUP_STRIPS,
    MOST_SUMS,
    SeparableConfig,
)
from kdsl_fuse.kernels.conv_separable_model import Choice, SeparableProblem, cycles
from kdsl_fuse.kernels.gemm_sm90_config import WIDEST
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

MOST_THREADS = 1024
MOST_STAGES = 8  # of a ring
WASTE = 1.34  # most channels or strips that are computed, over those that there are
CROWDED = (4, 3)  # rows and warp groups that were slower than two groups wherever they were tried
SPARE = 24  # registers beside those that are counted


@lru_cache(maxsize=256)
def candidates(
    problem: SeparableProblem, extras: int = 0, multiprocessors: int = MULTIPROCESSORS
) -> tuple[Choice, ...]:
    """Choices that have room, the fastest first; `extras` numbers belong to each input channel."""
    found = dict.fromkeys(_all(problem, extras, WASTE))
    if not found:  # of a small image, or of many channels
        found = dict.fromkeys(_all(problem, extras, math.inf))
    return tuple(sorted(found, key=lambda choice: cycles(problem, choice, multiprocessors)))


def _all(problem: SeparableProblem, extras: int, waste: float) -> Iterator[Choice]:
    options = product(
        _channels(problem.depthwise.channels), (1, 2, 4), (1, 2, 3), (1, 2, 3, 4), (1, 2, 4),
        BLOCKS_PER_SM,
    )  # fmt: skip
    for channels, rows, groups, parts, peers, blocks in options:
        filters = filters_of(problem.filters, rows, parts * peers)
        tall = rows > problem.depthwise.output[0] or (rows, groups) == CROWDED
        if filters is None or tall:
            continue
        for tile in _tiles(problem.depthwise, rows, groups, waste):
            shape = filters, groups, parts, peers
            found = _fitted(problem, channels, rows, tile, shape, extras, blocks)
            if found is not None:
                yield found


def _channels(count: int) -> list[int]:
    """Channels of a stage that waste little."""
    good = [n for n in (64, 32) if -(-count // n) * n <= WASTE * count]
    return good if good and count > 16 else [16]


def filters_of(count: int, rows: int, shares: int) -> int | None:
    """Filters of a tile: all, or even parts of them; None where a thread has no room for so many.

    A whole number of eights for each of the shares.
    """
    unit = EIGHT * shares
    most = min(WIDEST, 2 * MOST_SUMS // rows) // unit * unit
    if most == 0:
        return None
    parts = -(-count // most)
    filters = -(-count // (parts * unit)) * unit
    return filters if filters * parts <= WASTE * count or filters == unit else None


def _tiles(p: ConvProblem, rows: int, groups: int, waste: float) -> Iterator[tuple[int, int, int]]:
    """Tiles (images, blocks of rows, strips) of which up to `waste` times as many fit."""
    room, across, down = GROUP_STRIPS * groups, -(-p.output[1] // STRIP), -(-p.output[0] // rows)
    for strips in sorted({-(-across // n) for n in range(1, across + 1)}):
        if strips > room:
            continue
        most = min(room // strips, down)
        for blocks in {-(-down // -(-down // n)) for n in range(1, most + 1)}:
            whole = blocks == down and strips == across
            images = min(room // (strips * blocks), p.batch) if whole else 1
            if room <= waste * images * blocks * strips:
                yield images, blocks, strips


def _fitted(
    problem: SeparableProblem,
    channels: int,
    rows: int,
    tile: tuple[int, int, int],
    shape: tuple[int, int, int, int],
    extras: int,
    blocks: int,
) -> Choice | None:
    """The configuration with as many stages as fit; None where there is no room for it."""
    p, (filters, groups, parts, peers) = problem.depthwise, shape
    window = DepthwiseConfig(
        p.kernel, p.stride, p.padding, p.dilation, channels, rows, tile, stages=2 * parts,
        products=p.kernel[1] + p.kernel[1] % 2,
    )  # fmt: skip
    tiles = [-(-n // m) for n, m in zip(p.output, window.output_tile[1:3], strict=True)]
    tiles.append(-(-problem.filters // filters))
    config = SeparableConfig(
        window, p.channels, filters, (tiles[0], tiles[1], tiles[2]), groups, parts, peers
    )
    if -(-p.channels // channels) < parts * peers or config.threads > MOST_THREADS:
        return None
    if max(window.input_tile[:3]) > MOST_EXTENT or registers(config) > allowed(config, blocks):
        return None
    budget, found = SHARED_BYTES // blocks - 1024, None
    for stages in range(2 * parts, MOST_STAGES + 1, parts):
        more = replace(config, window=replace(window, stages=stages))
        if more.shared_bytes(extras) > budget:
            break
        found = more
    return None if found is None else Choice(found, blocks)


def registers(config: SeparableConfig) -> int:
    """About how many registers a thread needs."""
    w = config.window
    rows = (w.rows - 1) * w.stride[0] + w.kernel[0]
    pixels = rows * 2 * w.kernel[1]
    return config.sums + 4 * w.rows + 8 * w.rows + pixels + config.words + SPARE


def allowed(config: SeparableConfig, blocks: int) -> int:
    """How many registers a thread may have, with whole warp groups over the quarters of an SM."""
    each = REGISTERS // (config.threads * blocks)
    return min(each // 8 * 8, MOST_REGISTERS)
