"""A matrix product with any pointwise epilogue at full speed on Hopper (sm_90a).

A persistent grid: in each block one thread copies tiles of A and B into a ring of shared-memory
stages (TMA), warp groups multiply them from there (`wgmma`), and results leave through shared
memory (`stmatrix`, TMA) while the next tiles arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd

GROUP = 128  # threads of a warp group
WARP = 32
SCHEDULES = ("cooperative", "pingpong")
WIDEST = 256  # columns of a matrix instruction
MOST_BLOCKS = 8  # of a portable cluster
PEERS = (1, 2, 4, 8)  # blocks that divide a slab of sums evenly
LINES = 8  # rows after which the layout of a stage in shared memory repeats


@dataclass(frozen=True)
class Sm90Config:
    """How a block computes its tiles.

    `tile` is (M, N, K) of the tile that `consumers` warp groups share ("cooperative") or that each
    of two computes by turns ("pingpong"). A `cluster` of (m, n) blocks shares operands by
    multicast; one of `peers` blocks shares the K of a tile; `splits` parts of K are summed through
    memory.
    `group` rows of tiles are neighbours in the order of the grid. `registers` are those of a thread
    of the producing and of the consuming warp groups; None gives the producer one warp and leaves
    registers as they are. `caches` are the L2 policies of A and B.
    """

    tile: tuple[int, int, int]
    stages: int
    schedule: str = "cooperative"
    consumers: int = 2
    cluster: tuple[int, int] = (1, 1)
    peers: int = 1
    splits: int = 1
    group: int = 8
    registers: tuple[int, int] | None = None
    caches: tuple[str | None, str | None] = (None, None)

    def __post_init__(self) -> None:
        self._check_tile()
        self._check_schedule()
        self._check_cluster()

    def _check_tile(self) -> None:
        (tile_m, tile_n, tile_k), rows = self.tile, 64 * max(self.readers, 1)
        multiples = (tile_m % rows, tile_n % 8, tile_k % 16) == (0, 0, 0)
        if not multiples or min(self.tile) < 1 or tile_n > WIDEST:
            raise kd.ArgumentError(
                f"a tile's M is a multiple of 64 for each warp group that shares it ({rows}), "
                f"N one of 8 up to {WIDEST}, K one of 16, got {self.tile}",
                code="K935",
                fix="round the tile; K is best 128 bytes of the operands' type",
            )

    def _check_schedule(self) -> None:
        known = self.schedule in SCHEDULES and 1 <= self.consumers <= 4
        if not known or (self.pingpong and (self.consumers, self.splits) != (2, 1)):
            raise kd.ArgumentError(
                '"cooperative" has 1 to 4 consuming warp groups, "pingpong" 2 and no splits of K, '
                f"got {self.schedule!r} with {self.consumers} and {self.splits} splits",
                code="K936",
                fix='take "cooperative" where K is split',
            )
        if self.stages < 2 or min(self.splits, self.group) < 1:
            raise kd.ArgumentError(
                f"a ring has at least 2 stages, K 1 part, a group 1 row of tiles, got stages "
                f"{self.stages}, splits {self.splits}, group {self.group}",
                code="K937",
                fix="a stage is released only when the next one is being multiplied",
            )

    def _check_cluster(self) -> None:
        (cm, cn), peers = self.cluster, self.peers
        slices = [rows % (LINES * n) for rows, n in zip(self.tile, (cn, cm), strict=False) if n > 1]
        shares_one = cm * cn == 1 if peers > 1 else not any(slices)
        small = min(cm, cn) >= 1 and cm * cn <= MOST_BLOCKS and peers in PEERS
        if not (small and shares_one):
            raise kd.ArgumentError(
                f"a cluster shares either operands, up to {MOST_BLOCKS} blocks each with slices of "
                f"a multiple of {LINES} rows, or the K of a tile, 2, 4 or 8 blocks; got cluster "
                f"{self.cluster} and peers {peers} for the tile {self.tile}",
                code="K938",
                fix="leave `cluster` or `peers` out, or round the tile to slices",
            )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * self.consumers + (WARP if self.registers is None else GROUP)

    @property
    def pingpong(self) -> bool:
        """Whether warp groups take tiles by turns."""
        return self.schedule == "pingpong"

    @property
    def readers(self) -> int:
        """How many warp groups read each stage."""
        return 1 if self.pingpong else self.consumers

    @property
    def blocks_together(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.peers

    def tiled_mma(self, a: kd.Tensor, b: kd.Tensor, acc: kd.DType) -> kd.TiledMma:
        """The matrix instruction over the warp groups that share a tile."""
        a_major, b_major = ("K" if kd.collective.contiguous_mode(x) == 1 else "MN" for x in (a, b))
        atom = kd.atoms.wgmma(self.tile[1], a.dtype, b.dtype, acc, a_major=a_major, b_major=b_major)
        return kd.tiled_mma(atom, warps=(self.readers, 1))


@kd.kernel(min_blocks_per_sm=1)
def gemm_sm90(
    A: kd.Tensor["f16|bf16|e4m3|e5m2|i8|u8"],
    B: kd.Tensor["f16|bf16|e4m3|e5m2|i8|u8"],
    C: kd.Tensor,
    *extras: kd.Tensor,
    epilogue: kd.Static,
    config: kd.Static,
    outputs: kd.Static = 1,
):
    """C = epilogue(A · Bᵀ, extras…) for A (m, k), B (n, k), C (m, n), or a batch along mode 2.

    With several `outputs` the epilogue gives a tuple, and the extras begin with those after C. With
    `config.splits` two extras follow that are the workspace: partial sums and counters.
    """
    tile_m, tile_n, tile_k = config.tile
    load_a, load_b, sharers = kd.collective.shared_pair(
        A, B, config.tile, config.stages, config.cluster, config.caches
    )
    ring = kd.collective.TmaPipeline(
        config.stages, load_a.bytes + load_b.bytes, config.readers, sharers
    )
    work = kd.collective.TileScheduler(
        (kd.ceil_div(C.shape[0], tile_m), kd.ceil_div(C.shape[1], tile_n)),
        kd.ceil_div(A.shape[1], tile_k),
        batches=C.shape[2] if len(C.shape) == 3 else None,
        group=config.group,
        cluster=config.cluster,
        splits=config.splits,
        peers=config.peers,
    )
    mma = config.tiled_mma(A, B, kd.i32 if A.dtype.is_int else kd.f32)
    results, extras = (C, *extras[: outputs - 1]), extras[outputs - 1 :]
    split = None
    if config.splits > 1:
        split, extras = (*extras[:2], config.splits), extras[2:]
    group = kd.collective.WarpGroup(
        kd.warp_uniform(kd.warpgroup_idx()), kd.thread_rank() % GROUP, config.consumers,
        config.readers,
    )  # fmt: skip
    out = kd.collective.TileOutput(
        results, (tile_m, tile_n), group, epilogue, extras,
        accumulator=mma.atom.d, peers=config.peers, split=split,
    )  # fmt: skip

    if kd.thread_rank() == 0:
        load_a.prefetch()
        load_b.prefetch()
        ring.init()
        out.init()
        kd.fence_mbarrier_init()
    sync_blocks(config)
    kd.wait_for_dependencies()  # nothing was read or written so far
    kd.launch_dependents()
    if group.number == config.consumers:
        produce(config, load_a, load_b, ring, work)
    else:
        consume(config, mma, load_a.shared, load_b.shared, ring, work, group, out)
    if config.blocks_together > 1:  # nobody may still write to a block that has ended
        kd.cluster_sync()


def sync_blocks(config):
    """Wait for the block, or for the cluster."""
    if config.blocks_together > 1:
        kd.cluster_sync()
    else:
        kd.sync_threads()


@kd.func
def produce(config, load_a, load_b, ring, work):
    """The producing warps: one thread of the first one fills the ring."""
    if config.registers:
        kd.set_max_registers(config.registers[0])
    if kd.warp_uniform(kd.warp_idx()) == config.consumers * (GROUP // WARP):
        fill_ring(load_a, load_b, ring.writer(), work)


@kd.func
def fill_ring(load_a, load_b, ring, work):
    """Copy the tiles of all work items to the ring, in their order."""
    if kd.elect_one():
        for item in kd.range(work.first, work.total, work.step):
            tile = work.at(item)
            for k in kd.range(tile.k_begin, tile.k_end):
                stage, full = ring.acquire()
                load_a.load(stage, tile.m, k, tile.batch, full)
                load_b.load(stage, tile.n, k, tile.batch, full)
                ring.advance()
        ring.drain()


@kd.func
def consume(config, mma, a_stages, b_stages, ring, work, group, out):
    """Warp groups multiply the tiles as they arrive, and write the results."""
    if config.registers:
        kd.set_max_registers(config.registers[1])
    view = mma.get_slice(kd.thread_rank() % (GROUP * config.readers))
    a, b = view.partition_A(a_stages), view.partition_B(b_stages)
    acc = mma.make_fragment_C(config.tile[:2])
    read = ring.reader()

    def multiply(accumulate):
        stage = read.wait()
        kd.wgmma_fence()
        kd.gemm(mma, a[..., stage], b[..., stage], acc, accumulate=accumulate)
        kd.wgmma_commit()

    first, step = work.first, work.step
    if config.pingpong:
        turns = Turns(group)
        turns.begin()
        first, step = first + group.number * step, step * 2
        read.skip(group.number * work.k_tiles)
    for item in kd.range(first, work.total, step):
        tile = work.at(item)
        if config.pingpong:
            turns.wait()
        multiply(accumulate=False)
        for _ in kd.range(1, tile.k_tiles):
            multiply(accumulate=True)
            kd.wgmma_wait(1)
            read.release(group.thread)
        if config.pingpong:
            turns.pass_on()
        kd.wgmma_wait(0)
        read.release(group.thread)
        if config.pingpong:
            read.skip(work.k_tiles)
        out.write(acc, tile)
    out.finish()


class Turns:
    """Two warp groups that multiply by turns, so that one stores while the other multiplies."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.mine = kd.named_barrier(3 + group.number, 2 * GROUP)
        self.other = kd.named_barrier(4 - group.number, 2 * GROUP)

    def begin(self) -> None:
        """Let group 0 have the first turn."""
        give_first_turn(self)

    def wait(self) -> None:
        """Wait for this group's turn."""
        self.mine.sync()

    def pass_on(self) -> None:
        """Give the turn to the other group."""
        self.other.arrive()


@kd.func
def give_first_turn(turns):
    """Group 1 arrives where group 0 waits first."""
    if turns.group.number == 1:
        turns.other.arrive()


def identity(acc: Any) -> Any:
    """The epilogue that changes nothing."""
    return acc
