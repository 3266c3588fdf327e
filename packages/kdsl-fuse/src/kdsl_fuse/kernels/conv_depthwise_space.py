"""Which configurations of the Hopper depthwise convolution are worth trying, and which first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from kdsl_fuse.kernels.conv_depthwise_config import STRIP, WIDTHS, DepthwiseConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem

SHARED_BYTES = 233_472  # of a multiprocessor, 1 KiB of which each block takes for itself
REGISTERS = 65_536  # of a multiprocessor
MOST_STRIPS = 14  # of a tile
MOST_UNITS = 8  # of a tile of several images
MOST_EXTENT = 256  # of a box that TMA copies
# teams of a block, blocks of a multiprocessor, stages
_SHARES = ((1, 2, 1), (1, 2, 2), (1, 3, 1), (1, 4, 1), (2, 1, 2), (2, 2, 1), (3, 1, 2))


@lru_cache(maxsize=1024)
def first(problem: ConvProblem) -> DepthwiseConfig | None:
    """The configuration that is chosen; None where no tile fits."""
    p = problem
    taps, height = p.kernel[0] * p.kernel[1], p.output[0]
    channels = 32 if p.channels > 16 else 16
    rows = min(max((r for r in (4, 7, 8) if height % r == 0), default=8), max(height, 1))
    products = 0 if taps < 25 else p.kernel[1] - 1 - (p.kernel[1] - 1) % 2
    for blocks, stages in ((3, 1), (2, 1), (1, 1)):
        config = DepthwiseConfig(
            p.kernel, p.stride, p.padding, p.dilation, channels, rows, teams=1, stages=stages,
            products=products, blocks_per_sm=blocks,
        )  # fmt: skip
        found = fitted(p, config)
        if found is not None:
            return found
    return None


def candidates(problem: ConvProblem) -> list[DepthwiseConfig]:
    """Configurations that have room, for a tuner to try."""
    p, found = problem, {}
    widths = [n for n in WIDTHS if n < 2 * p.channels]
    for channels, (teams, blocks, stages), buffers in product(widths, _SHARES, (1, 2)):
        for rows, products in product((4, 6, 7, 8), shares(p.kernel)):
            config = DepthwiseConfig(
                p.kernel, p.stride, p.padding, p.dilation, channels, rows, teams=teams,
                stages=stages, buffers=buffers, products=products, blocks_per_sm=blocks,
            )  # fmt: skip
            if registers(config) * config.threads * blocks <= REGISTERS:
                found[fitted(p, config)] = None
    return [config for config in found if config is not None]


def shares(kernel: tuple[int, int]) -> list[int]:
    """How many columns of taps tensor cores may take."""
    columns = kernel[1]
    return [n for n in range(0, columns + columns % 2 + 1, 2) if n or columns < 9]


def registers(config: DepthwiseConfig) -> int:
    """About how many registers a thread needs for weights, sums, pixels, and all the rest."""
    rows, columns = config.kernel
    weights = rows * (config.products + 2 * max(columns - config.products, 0))
    return weights + 4 * config.rows + 2 * (columns + columns % 2) + 40


def fitted(problem: ConvProblem, config: DepthwiseConfig) -> DepthwiseConfig | None:
    """The configuration with the largest tile that fits shared memory; None where none does.

    Rows that are as wide as the image come first, then as many of them as fit, then whole images.
    """
    rows, columns = problem.output
    strips = _parts(-(-columns // STRIP), MOST_STRIPS)
    while strips:
        for tile in _shorter(-(-rows // config.rows), strips):
            found = replace(config, tile=tile)
            if fits(found):
                return _together(problem, found)
        strips = -(-strips // 2) if strips > 1 else 0
    return None


def fits(config: DepthwiseConfig) -> bool:
    """Whether so many blocks have room, and TMA takes the tile at once."""
    budget = SHARED_BYTES // config.blocks_per_sm - 1024
    return config.shared_bytes <= budget and max(config.input_tile) <= MOST_EXTENT


def _parts(size: int, most: int) -> int:
    """The size of even parts that are no larger than `most`."""
    return -(-size // -(-size // most))


def _shorter(blocks: int, strips: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of fewer and fewer rows."""
    for count in range(1, blocks + 1):
        yield 1, -(-blocks // count), strips


def _together(problem: ConvProblem, config: DepthwiseConfig) -> DepthwiseConfig:
    """Tiles of several images where one is small."""
    rows, columns = problem.output
    _, tile_rows, tile_columns, _ = config.output_tile
    while tile_rows >= rows and tile_columns >= columns:
        images, blocks, strips = config.tile
        more = replace(config, tile=(2 * images, blocks, strips))
        if not fits(more) or more.units > MOST_UNITS or more.tile[0] > problem.batch:
            break
        config = more
    return config
