"""How long a Hopper GEMM will take, by arithmetic: the choice of a configuration without a GPU.

A tile's time is that of its busiest resource (tensor cores, shared memory, L2), a launch's that of
its waves of tiles and of the bytes that memory must deliver. Constants are those of an H200, from
docs/facts.md; only their ratios matter here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_fuse.kernels.gemm_sm90 import GROUP, WARP, Sm90Config

SHARED_BYTES = 232_448  # of one block
SM_SHARED_BYTES = 233_472  # of a multiprocessor; a block costs 1 KiB beside its own
REGISTERS = 65_536
BARRIER_BYTES = 2_048  # barriers, flags and alignment

FLOPS_PER_CYCLE = 4_096  # dense, 16-bit, one multiprocessor
SHARED_PER_CYCLE = 128  # bytes
L2_PER_CYCLE = 60  # bytes into one multiprocessor
MEMORY_PER_CYCLE = 2_500  # bytes, the whole chip, at 1.7 GHz
LATENCY_CYCLES = 1_500  # from asking memory to having the bytes
_OVERLAP_LOSS = 0.15  # of what is done beside the slower of computing and fetching
START_CYCLES = 2_600  # launch, barriers, first bytes
STORE_PER_CYCLE = 22  # results leaving one multiprocessor, bytes
EXCHANGE_CYCLES = 1_200  # sums between the blocks of a cluster
MEMORY_SUM_CYCLES = 2_500  # sums through memory: fence, count, read again

_WIDTHS = (256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 24, 16, 8)
_MOST_STAGES = 16
_PEERS = (1, 2, 4, 8)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Problem:
    """A product C[m, n] = A[m, k] · B[n, k]ᵀ of `element_bytes` wide elements, `batch` times."""

    m: int
    n: int
    k: int
    element_bytes: int = 2
    result_bytes: int = 2
    batch: int = 1
    by_tma: bool = True  # whether results may leave by TMA

    @property
    def swapped(self) -> Problem:
        """The transposed product, Cᵀ = B · Aᵀ."""
        return replace(self, m=self.n, n=self.m)


def rank(problem: Problem, multiprocessors: int) -> list[tuple[float, bool, Sm90Config]]:
    """(predicted cycles, operands swapped, configuration), the fastest first."""
    found = []
    for swap in (False, True) if problem.batch == 1 else (False,):
        side = problem.swapped if swap else problem
        for config in configurations(side, multiprocessors):
            found.append((cycles(side, config, multiprocessors), swap, config))
    return sorted(found, key=lambda item: (item[0], item[1], repr(item[2])))


def configurations(problem: Problem, multiprocessors: int) -> Iterator[Sm90Config]:
    """Every configuration that fits the chip and makes some sense for the sizes."""
    for config in _tiles(problem, multiprocessors):
        tiles_k = -(-problem.k // config.tile[2])
        for peers, splits in itertools.product(_PEERS, _SPLITS):
            parts = peers * splits
            if parts > 1 and (config.pingpong or tiles_k < 4 * parts or config.cluster != (1, 1)):
                continue
            for blocks in (1, 2) if config.consumers == 1 else (1,):
                fitted = fit(replace(config, peers=peers, splits=splits), problem, blocks)
                if fitted is not None:
                    yield fitted


_SHAPES = (  # rows of a tile, warp groups, schedule
    (64, 1, "cooperative"),
    (128, 2, "cooperative"),
    (256, 2, "cooperative"),
    (64, 2, "pingpong"),
    (128, 2, "pingpong"),
)


def _tiles(problem: Problem, multiprocessors: int) -> Iterator[Sm90Config]:
    """Tiles, schedules and multicasts, without stages."""
    depth = 128 // problem.element_bytes
    for tile_m, consumers, schedule in _SHAPES:
        if tile_m >= 2 * max(problem.m, 64):
            continue
        for width in _widths(problem, tile_m, multiprocessors):
            groups = 1 if schedule == "pingpong" else consumers
            accumulators = tile_m // (64 * groups) * width // 2
            if accumulators > 128:
                continue
            for tile_k in (depth, 2 * depth) if width <= 64 else (depth,):
                yield Sm90Config((tile_m, width, tile_k), 2, schedule, consumers)
            if tile_m * width >= 32768 and schedule == "cooperative":
                pair = (2, 1) if width > tile_m else (1, 2)
                yield Sm90Config((tile_m, width, depth), 2, schedule, consumers, cluster=pair)


def _widths(problem: Problem, tile_m: int, multiprocessors: int) -> set[int]:
    """Columns of a tile worth trying: round ones, and those that fill whole waves exactly."""
    found = {width for width in _WIDTHS if width < 2 * problem.n}
    found.add(min(-(-problem.n // 8) * 8, 256))
    rows = -(-problem.m // tile_m) * problem.batch
    for waves in range(1, 5):
        columns = waves * multiprocessors // rows
        if columns:
            found.add(-(-problem.n // (8 * columns)) * 8)
    return {width for width in found if width <= 256}


def fit(config: Sm90Config, problem: Problem, blocks: int) -> Sm90Config | None:
    """The configuration with as many stages as fit when `blocks` share a multiprocessor.

    None when that is fewer than three.
    """
    tile_m, tile_n, tile_k = config.tile
    stage = (tile_m + tile_n) * tile_k * problem.element_bytes
    room = min(SHARED_BYTES, SM_SHARED_BYTES // blocks - 1024)
    stages = min((room - BARRIER_BYTES - output_bytes(config, problem)) // stage, _MOST_STAGES)
    return replace(config, stages=stages) if stages >= 3 else None


def output_bytes(config: Sm90Config, problem: Problem) -> int:
    """Shared memory for results on their way out."""
    width = config.tile[1]
    chunk = next(c for c in (64, 32, 16, 8) if width % c == 0)
    if config.peers == config.splits == 1 and problem.by_tma and problem.result_bytes == 2:
        buffers = next((n for n in (2, 3) if width // chunk % n == 0), 1)
        return config.consumers * buffers * 64 * chunk * 2
    return config.consumers * 64 * (chunk + 8) * 4


def blocks_per_multiprocessor(config: Sm90Config, problem: Problem) -> int:
    """How many blocks run side by side."""
    stage = sum(config.tile[:2]) * config.tile[2] * problem.element_bytes
    shared = stage * config.stages + output_bytes(config, problem) + BARRIER_BYTES + 1024
    accumulators = config.tile[0] // (64 * config.readers) * config.tile[1] // 2
    registers = (GROUP * config.consumers + WARP) * (accumulators + 60)
    return max(min(SM_SHARED_BYTES // shared, REGISTERS // registers, 4), 1)


def cycles(problem: Problem, config: Sm90Config, multiprocessors: int) -> float:
    """Predicted cycles of one launch."""
    tile_m, tile_n, _ = config.tile
    parts = config.peers * config.splits
    tiles = -(-problem.m // tile_m) * -(-problem.n // tile_n) * problem.batch * parts
    side_by_side = min(blocks_per_multiprocessor(config, problem), -(-tiles // multiprocessors))
    slots = multiprocessors * side_by_side
    if config.peers > 1:  # clusters lie within groups of 16 or 18 multiprocessors
        slots = slots // config.peers * config.peers * 15 // 16
    main, tail = _tile_cycles(problem, config, side_by_side)
    waves = -(-tiles // slots)
    if config.pingpong:
        per_wave = max(main, (main + tail) / 2)
    else:
        per_wave = (main * side_by_side) + tail
    busy, memory = waves * per_wave, _memory_cycles(problem, config)
    return START_CYCLES + max(busy, memory) + _OVERLAP_LOSS * min(busy, memory)


def _tile_cycles(problem: Problem, config: Sm90Config, side_by_side: int) -> tuple[float, float]:
    """Cycles of the main loop of one tile, and of what follows it."""
    tile_m, tile_n, tile_k = config.tile
    width = problem.element_bytes
    steps = -(-problem.k // tile_k) / (config.peers * config.splits)
    math = max(2 * tile_m * tile_n * tile_k * width / (2 * FLOPS_PER_CYCLE), 80)
    shared = (2 * tile_m + tile_n + tile_m // 64 * tile_n) * tile_k * width / SHARED_PER_CYCLE
    rows = min(tile_m, problem.m) + min(tile_n, problem.n)
    in_flight = (config.stages - 1) * rows * tile_k * width * side_by_side
    fetch = rows * tile_k * width * side_by_side / min(L2_PER_CYCLE, in_flight / LATENCY_CYCLES)
    fetch /= side_by_side
    main = steps * max(math * 1.1, shared, fetch)
    tail = tile_m * tile_n * problem.result_bytes / STORE_PER_CYCLE
    if config.peers > 1:
        tail = tail * 2 / config.peers + EXCHANGE_CYCLES
    if config.splits > 1:
        tail = tail * (1 + 2 * config.splits / 3) + MEMORY_SUM_CYCLES
    return main, tail


def _memory_cycles(problem: Problem, config: Sm90Config) -> float:
    operands = (problem.m + problem.n) * problem.k * problem.element_bytes
    results = problem.m * problem.n * problem.result_bytes
    sums = 0 if config.splits == 1 else 8 * problem.m * problem.n * config.splits
    return problem.batch * (operands + results + sums) / MEMORY_PER_CYCLE


def accumulator(dtype: DType) -> DType:
    """The type that products of a type are summed in."""
    return kd.i32 if dtype.is_int else kd.f32
