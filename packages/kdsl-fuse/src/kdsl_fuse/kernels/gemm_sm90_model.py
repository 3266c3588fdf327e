"""How long a Hopper GEMM will take, by arithmetic: the choice of a configuration without a GPU.

A step's time is that of its busiest resource (tensor cores, shared memory, the way from L2, the
latency of memory), a tile's that of its steps and of its way out, a launch's that of its waves of
tiles and of the bytes that memory must deliver. `Rates` holds what was fitted to measurements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.records import dataclass
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP, Sm90Config

SHARED_BYTES = 232_448  # of one block
SM_SHARED_BYTES = 233_472  # of a multiprocessor; a block costs 1 KiB beside its own
REGISTERS = 65_536
BARRIER_BYTES = 2_048  # barriers, flags and alignment
FLOPS_PER_CYCLE = 4_096  # dense, 16-bit, one multiprocessor
SHARED_PER_CYCLE = 128  # bytes, one multiprocessor
CYCLES_PER_US = 1_755  # of an H200 that is not short of power

_WIDTHS = (256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 24, 16, 8)
_MOST_STAGES = 16
_PEERS = (1, 2, 4)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Rates:
    """What the model knows of a chip: an H200's, fitted by benchmarks/fit_sm90_model.py.

    Units: cycles, and bytes a cycle; of one multiprocessor where nothing else is said.
    """

    math: float = 1.28  # times the tensor cores' least time
    l2: float = 58.0  # operands arriving from L2
    crossing: float = 1.64  # times that, where rows do not start at whole lines
    latency: float = 1920.0  # from asking for a stage to having it
    multicast: float = 1.04  # times a step, where blocks wait for each other's stages
    memory: float = 2260.0  # the whole chip
    launch: float = 285.0  # from the end of one launch to the first copies of the next
    prologue: float = 4680.0  # before that, unless the next blocks find room beside the last ones
    tail: float = 50.6  # from a tile's last product to its first result
    chunk: float = 249.0  # for each chunk of results that passes through shared memory
    store: float = 10.1  # results leaving by TMA
    slab: float = 21.7  # results and sums leaving by ordinary stores
    exchange: float = 2670.0  # for each chunk that two blocks of a cluster sum
    leave: float = 6.27  # sums of a part of K left in memory
    add_up: float = 6730.0  # the second launch, as fitted when the last block to come added up
    together: float = 0.947  # of the multiprocessors that clusters of 4 and more can fill


H200 = Rates()
_BUSIEST = 12.0  # exponent of the norm that takes the busiest of a step's resources
_OVERLAPPED = 3.0  # exponent of the norm that joins computing with memory


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
    def whole_lines(self) -> bool:
        """Whether operands' rows start at whole lines of 128 bytes, as those of copies do."""
        pitch = self.k * self.element_bytes
        return pitch % 16 != 0 or pitch % 128 == 0

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
        for peers, splits in _parts(problem, config, multiprocessors):
            for blocks in (1, 2) if config.consumers == 1 else (1,):
                fitted = fit(replace(config, peers=peers, splits=splits), problem, blocks)
                if fitted is not None:
                    yield fitted


def _parts(problem: Problem, config: Sm90Config, multiprocessors: int) -> Iterator[tuple[int, int]]:
    """(peers, splits) worth trying: several parts where tiles are few and K is long."""
    (tile_m, tile_n, tile_k), batch = config.tile, problem.batch
    tiles = -(-problem.m // tile_m) * -(-problem.n // tile_n) * batch
    whole = config.pingpong or config.cluster != (1, 1) or tiles > 2 * multiprocessors
    for peers, splits in itertools.product(_PEERS, _SPLITS if batch == 1 else (1,)):
        parts = peers * splits
        if parts == 1 or not (whole or -(-problem.k // tile_k) < 4 * parts):
            yield peers, splits


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


def leaves_by_tma(config: Sm90Config, problem: Problem) -> bool:
    """Whether results go out by TMA; sums of several blocks, and others, by ordinary stores."""
    return config.peers == config.splits == 1 and problem.by_tma and problem.result_bytes == 2


def _chunk(columns: int) -> int:
    """Columns of results that pass through shared memory at a time."""
    return math.gcd(columns, 64)


def output_bytes(config: Sm90Config, problem: Problem) -> int:
    """Shared memory for results on their way out."""
    width = config.tile[1]
    chunk = _chunk(width)
    if leaves_by_tma(config, problem):
        buffers = next((n for n in (2, 3) if width // chunk % n == 0), 1)
        return config.consumers * buffers * 64 * chunk * 2
    return config.consumers * 64 * (chunk + 8) * 4


def shared_bytes(config: Sm90Config, problem: Problem) -> int:
    """Shared memory of a block."""
    stage = sum(config.tile[:2]) * config.tile[2] * problem.element_bytes
    return stage * config.stages + output_bytes(config, problem) + BARRIER_BYTES


def blocks_per_multiprocessor(config: Sm90Config, problem: Problem) -> int:
    """How many blocks run side by side."""
    shared = shared_bytes(config, problem) + 1024
    registers = (GROUP * config.consumers + WARP) * (config.accumulators + 60)
    return max(min(SM_SHARED_BYTES // shared, REGISTERS // registers, 4), 1)


@dataclass(frozen=True)
class Shares:
    """How the tiles of a launch fall to the chip: `waves` one behind the other in each block.

    `side` blocks share a multiprocessor, `free` is the part of the launch's room that it leaves,
    `late` says that some clusters find no place beside the others and run when those have ended.
    """

    waves: int
    side: int
    free: float
    late: bool


def shares(problem: Problem, config: Sm90Config, multiprocessors: int, rates: Rates) -> Shares:
    """How the tiles of a launch fall to the chip."""
    (tile_m, tile_n, _), (cm, cn) = config.tile, config.cluster
    rows, columns = -(-problem.m // (tile_m * cm)) * cm, -(-problem.n // (tile_n * cn)) * cn
    items = rows * columns * problem.batch * config.peers * config.splits
    room = multiprocessors * blocks_per_multiprocessor(config, problem)
    together = config.blocks_together
    grid = min(items, room // together * together)
    side = -(-grid // multiprocessors)
    late = together > 2 and grid > rates.together * room
    return Shares(-(-items // grid), side, min((room - grid) / grid, 1.0), late)


def cycles(
    problem: Problem, config: Sm90Config, multiprocessors: int, rates: Rates = H200
) -> float:
    """Predicted cycles of one launch."""
    fall = shares(problem, config, multiprocessors, rates)
    k_tiles = -(-problem.k // config.tile[2])
    steps = -(-k_tiles // (config.peers * config.splits))
    main = steps * step_cycles(problem, config, fall.side, rates)
    tail = tail_cycles(problem, config, rates)
    if config.pingpong and fall.waves > 1:  # one group writes its tile while the other multiplies
        busy = max(fall.waves * main + tail, fall.waves / 2 * (main + tail) + main / 2)
    else:
        busy = fall.waves * (main + tail)
    memory = _memory_bytes(problem, config) / rates.memory
    total = rates.launch + rates.prologue * (1 - fall.free) + _norm(_OVERLAPPED, busy, memory)
    if fall.late:
        total += fall.waves * (steps * step_cycles(problem, config, 1, rates) + tail)
    return total


def step_cycles(problem: Problem, config: Sm90Config, side: int, rates: Rates) -> float:
    """Cycles of one stage's products in each of `side` blocks of a multiprocessor."""
    (tile_m, tile_n, tile_k), (cm, cn) = config.tile, config.cluster
    line = tile_k * problem.element_bytes
    products = tile_m * tile_n * line / FLOPS_PER_CYCLE * rates.math
    # A is written and read once, B written once and read for each 64 rows.
    shared = (2 * tile_m + tile_n + tile_m // 64 * tile_n) * line / SHARED_PER_CYCLE
    fetch = (tile_m / cn + tile_n / cm) * line / rates.l2
    if not problem.whole_lines:
        fetch *= rates.crossing
    waiting = rates.latency / (config.stages - 1)
    longest = _norm(_BUSIEST, side * products, side * shared, side * fetch, waiting)
    return longest * (rates.multicast if config.cluster != (1, 1) else 1)


def tail_cycles(problem: Problem, config: Sm90Config, rates: Rates) -> float:
    """Cycles from a tile's last product to its last result."""
    tile_m, tile_n, _ = config.tile
    chunks = tile_m // (64 * config.readers) * (tile_n // _chunk(tile_n))
    elements = tile_m * tile_n
    tail = rates.tail + chunks * rates.chunk
    if leaves_by_tma(config, problem):
        return tail + elements * problem.result_bytes / rates.store
    tail += elements * 4 / rates.slab / config.peers
    if config.peers > 1:
        tail += chunks * rates.exchange * math.log2(config.peers)
    if config.splits > 1:
        tail += rates.add_up + elements * 4 / rates.leave / config.peers
    return tail


def _norm(exponent: float, *values: float) -> float:
    """A little more than the largest value: what is nearly as large is in its way."""
    return math.pow(sum(math.pow(value, exponent) for value in values), 1 / exponent)


def _memory_bytes(problem: Problem, config: Sm90Config) -> int:
    operands = (problem.m + problem.n) * problem.k * problem.element_bytes
    sums = 0 if config.splits == 1 else 4 * config.splits
    results = problem.m * problem.n * (problem.result_bytes + sums)
    return problem.batch * (operands + results)


def accumulator(dtype: DType) -> DType:
    """The type that products of a type are summed in."""
    return kd.i32 if dtype.is_int else kd.f32
