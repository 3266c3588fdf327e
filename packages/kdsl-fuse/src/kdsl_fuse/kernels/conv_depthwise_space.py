"""Which configurations of the Hopper depthwise convolution are worth trying, and which first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from kdsl_fuse.kernels.conv_depthwise_config import STRIP, WIDTHS, DepthwiseConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem

SHARED_BYTES = 233_472  # of a multiprocessor, 1 KiB of which each block takes for itself
REGISTERS, MOST_REGISTERS = 65_536, 248  # of a multiprocessor and of a thread
MOST_CHANNELS = 256  # of all teams together: 1024 threads
MOST_STRIPS = 14  # of a tile
MOST_UNITS = 8  # of a tile of several images
MOST_EXTENT = 256  # of a box that TMA copies
# teams of a block, blocks of a multiprocessor, stages
_SHARES = (
    (1, 1, 2), (1, 1, 3), (1, 2, 2), (1, 2, 3), (1, 3, 1), (1, 4, 1), (1, 4, 2), (2, 1, 2),
    (2, 1, 3), (2, 1, 4), (2, 2, 1), (2, 2, 2), (3, 1, 2), (4, 1, 2), (4, 1, 3),
)  # fmt: skip
# Teams, blocks of a multiprocessor and stages that are chosen, what an H200 computed fastest first.
_LARGE = ((3, 1, 2), (2, 1, 2), (1, 2, 1), (1, 1, 2), (1, 1, 1))
_SMALL = ((3, 1, 3), *_LARGE)  # large windows of small images
_WIDE = ((1, 2, 2), (2, 1, 3), (1, 1, 2), (1, 1, 1))  # 64 channels
_NARROW = ((2, 1, 3), (2, 1, 2), (1, 2, 2), (1, 1, 2), (1, 1, 1))
_STRIDED = _NARROW[1:]
LARGE_TAPS, SMALL_COLUMNS = 49, 32  # where instructions, not memory, bound the speed
SPARE = 8  # registers, for what the estimate misses
IDLE, TWICE = 1.15, 1.6  # most of warps' time, and of what is read, over what is needed


@lru_cache(maxsize=1024)
def first(
    problem: ConvProblem, extras: int = 0, tensor_cores: bool = True
) -> DepthwiseConfig | None:
    """The configuration that is chosen for a tail with `extras` of the result's size.

    None where no tile fits.
    """
    p, found = problem, []
    large = p.kernel[0] * p.kernel[1] >= LARGE_TAPS
    channels, ways = _ways(p, large)
    products = _products(p, large) if tensor_cores else 0
    for teams, blocks, stages in ways:
        config = DepthwiseConfig(
            p.kernel, p.stride, p.padding, p.dilation, channels, _rows(p.output[0], 8 - large),
            teams=teams, stages=stages, products=products,
            together=1 if ways is _STRIDED else 2, blocks_per_sm=blocks,
        )  # fmt: skip
        if registers(config, extras) + SPARE <= allowed(config):
            found.append(fitted(p, config))
    room = [config for config in found if config is not None]
    good = (c for c in room if idle(c) <= IDLE and reads(p, c) <= TWICE)
    return next(good, min(room, key=lambda c: idle(c) * reads(p, c), default=None))


def _ways(p: ConvProblem, large: bool) -> tuple[int, tuple[tuple[int, int, int], ...]]:
    """Channels of a tile, and the ways to share it, best first."""
    narrow = 32 if p.channels > 16 else 16
    if large:
        return narrow, _SMALL if p.output[1] <= SMALL_COLUMNS else _LARGE
    strided = max(p.stride) > 1
    if p.channels >= 64 and not (strided and p.kernel[1] > 3):
        return 64, _WIDE
    return narrow, _STRIDED if strided else _NARROW


def _products(p: ConvProblem, large: bool) -> int:
    """How many columns of taps tensor cores take."""
    columns = p.kernel[1]
    if max(p.stride) > 1 or (large and p.output[1] <= SMALL_COLUMNS):
        return (columns - 1) // 2 * 2
    return (columns + 1) // 4 * 4


def idle(config: DepthwiseConfig) -> float:
    """How many pairs of strips a tile takes for each that it has."""
    return 2 * config.units / config.halves


def reads(problem: ConvProblem, config: DepthwiseConfig) -> float:
    """How often an element of the input is read: by neighbouring tiles, where it is halo."""
    p, times = problem, 1.0
    sizes = zip((p.height, p.width), p.output, p.stride, p.padding, strict=True)
    for axis, (size, results, stride, padding) in enumerate(sizes, 1):
        step, reach = config.output_tile[axis] * stride, config.input_tile[axis]
        starts = (i * step - padding for i in range(-(-results * stride // step)))
        times *= sum(min(at + reach, size) - max(at, 0) for at in starts) / size
    return times


def _rows(height: int, limit: int) -> int:
    """Rows of a strip: up to a limit, as many as leave the fewest outside of the image."""
    most = min(height, limit)
    return min(
        range(max(most // 2, 1), most + 1), key=lambda rows: (-(-height // rows) * rows, -rows)
    )


def candidates(problem: ConvProblem) -> list[DepthwiseConfig]:
    """Configurations that have room, for a tuner to try."""
    found = dict.fromkeys(configs(problem))
    return [config for config in found if spilling(config) is None and overfull(config) is None]


def configs(problem: ConvProblem) -> Iterator[DepthwiseConfig]:
    """Configurations, each with the largest tile that fits; some of them do not fit at all."""
    p = problem
    heights = [n for n in (4, 7, 8, 14) if -(-p.output[0] // n) * n <= 1.15 * p.output[0]]
    options = product(
        widths(p.channels), heights or [min(p.output[0], 8)], _SHARES, shares(p.kernel), (1, 2)
    )
    for (channels, slabs), rows, (teams, blocks, stages), products, together in options:
        if teams * channels * slabs > MOST_CHANNELS or together == 1:
            continue
        config = DepthwiseConfig(
            p.kernel, p.stride, p.padding, p.dilation, channels, rows, teams=teams, stages=stages,
            products=products, together=together, slabs=slabs, blocks_per_sm=blocks,
        )  # fmt: skip
        yield fitted(p, config) or replace(config, tile=(1, 1, 1))


def widths(channels: int) -> list[tuple[int, int]]:
    """Channels of a slab, and slabs of a tile."""
    found = [(n, 1) for n in WIDTHS if n < 2 * channels and (n > 16 or channels <= 16)]
    if channels % 32:
        found += [(16, n) for n in (3, 5) if channels % (16 * n) == 0]
    elif channels % 96 == 0:
        found.append((32, 3))
    return found


def shares(kernel: tuple[int, int]) -> list[int]:
    """How many columns of taps tensor cores may take: more of large windows."""
    columns = kernel[1]
    least = 0 if columns < 7 else 4
    return [n for n in range(0, columns + columns % 2 + 1, 2) if n >= least]


def registers(config: DepthwiseConfig, extras: int = 0) -> int:
    """About how many registers a thread needs for weights, sums, pixels, and all the rest.

    Each of the `extras` takes two of a row, and its addresses some more.
    """
    rows, columns = config.kernel
    others = max(columns - config.products, 0)
    weights = rows * (config.products + 2 * others)
    pixels = 2 * (columns + columns % 2) * config.together
    held = (4 + 2 * extras) * config.rows + 20 * extras
    return weights + held + pixels + 4 * others + (4 if config.products else 16)


def allowed(config: DepthwiseConfig) -> int:
    """How many registers a thread may have."""
    each = REGISTERS // (config.threads * config.blocks_per_sm)
    return min(each // 8 * 8, MOST_REGISTERS)


def fitted(
    problem: ConvProblem, config: DepthwiseConfig, reserved: int = 0
) -> DepthwiseConfig | None:
    """The configuration with the largest tile that fits shared memory; None where none does.

    Rows that are as wide as the image come first, then as many of them as fit, then whole images.
    `reserved` bytes of each block are for others.
    """
    rows, columns = problem.output
    strips = _parts(-(-columns // STRIP), MOST_STRIPS)
    while strips:
        for tile in _shorter(-(-rows // config.rows), strips):
            found = replace(config, tile=tile)
            if fits(found, reserved):
                return _together(problem, found, reserved)
        strips = -(-strips // 2) if strips > 1 else 0
    return None


def fits(config: DepthwiseConfig, reserved: int = 0) -> bool:
    """Whether so many blocks have room, and TMA takes the tile at once."""
    return overfull(config, reserved) is None


def overfull(config: DepthwiseConfig, reserved: int = 0) -> str | None:
    """Why so many blocks have no room, or TMA does not take the tile at once; None where they do.

    `reserved` bytes of each block are for others.
    """
    room = SHARED_BYTES // config.blocks_per_sm - 1024 - reserved
    if config.shared_bytes > room:
        return f"a block takes {config.shared_bytes} bytes of shared memory, of {room}"
    extents = config.input_tile[:3]
    if max(extents) > MOST_EXTENT:
        return f"TMA copies up to {MOST_EXTENT} pixels along a mode at once, not {extents}"
    return None


def spilling(config: DepthwiseConfig) -> str | None:
    """Why registers do not suffice, as far as is known; None if they do."""
    wanted, granted = registers(config), allowed(config)
    return None if wanted <= granted else f"a thread wants {wanted} registers, of {granted}"


def _parts(size: int, most: int) -> int:
    """The size of even parts that are no larger than `most`."""
    return -(-size // -(-size // most))


def _shorter(blocks: int, strips: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of fewer and fewer rows."""
    for count in range(1, blocks + 1):
        yield 1, -(-blocks // count), strips


def _together(problem: ConvProblem, config: DepthwiseConfig, reserved: int) -> DepthwiseConfig:
    """Tiles of several images where one is small."""
    rows, columns = problem.output
    _, tile_rows, tile_columns, _ = config.output_tile
    while tile_rows >= rows and tile_columns >= columns:
        images, blocks, strips = config.tile
        more = replace(config, tile=(2 * images, blocks, strips))
        if not fits(more, reserved) or more.units > MOST_UNITS or more.tile[0] > problem.batch:
            break
        config = more
    return config
