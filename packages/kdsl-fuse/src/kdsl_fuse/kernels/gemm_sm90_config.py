"""How blocks of the Hopper GEMM compute their tiles: what may be chosen, and what fits together."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.records import dataclass

GROUP = 128  # threads of a warp group
WARP = 32
SCHEDULES = ("cooperative", "pingpong")
ROOM = (40, 232)  # registers of a producing and of a consuming thread that took others'
WIDEST = 256  # columns of a matrix instruction
MOST_BLOCKS = 8  # of a portable cluster
PEERS = (1, 2, 4, 8)  # blocks that divide a slab of sums evenly
LINES = 8  # rows after which the layout of a stage in shared memory repeats


@dataclass(frozen=True)
class Sm90Config:
    """How a block computes its tiles.

    `tile` is (M, N, K) of the tile that `consumers` warp groups share ("cooperative") or that each
    of two computes by turns ("pingpong"). A `cluster` of (m, n) blocks shares operands by
    multicast; one of `peers` blocks shares the K of a tile; `splits` parts of K are left for
    `sum_parts` to add up.
    `group` rows of tiles are neighbours in the order of the grid. `registers` are those of a thread
    of the producing and of the consuming warp groups; None gives the producer one warp and leaves
    registers as they are. `caches` are the L2 policies of A and B, `fetch` the bytes that L2 brings
    from memory at a time: less than 256 pays where memory bounds the product.
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
    fetch: int = 256

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
    def accumulators(self) -> int:
        """Sums that each consuming thread holds of its tile, a register each."""
        return self.tile[0] // (64 * self.readers) * self.tile[1] // 2

    @property
    def blocks_together(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.peers

    def operand_ring(self, a: Any, b: Any) -> kd.collective.OperandRing:
        """The stages that tiles of both operands come through."""
        return kd.collective.OperandRing(
            a, b, self.tile, self.stages, self.readers,
            cluster=self.cluster, caches=self.caches, fetch=self.fetch,
        )  # fmt: skip

    def scheduler(
        self, tiles: tuple[Any, Any], k_tiles: Any, batches: Any = None
    ) -> kd.collective.TileScheduler:
        """The order in which blocks take tiles; arguments as of `TileScheduler`."""
        return kd.collective.TileScheduler(
            tiles, k_tiles, batches=batches,
            group=self.group, cluster=self.cluster, splits=self.splits, peers=self.peers,
        )  # fmt: skip

    def warp_group(self) -> kd.collective.WarpGroup:
        """The calling thread's warp group; the number of the producing one is `consumers`."""
        return kd.collective.WarpGroup.of_thread(self.consumers, self.readers)

    def tiled_mma(self, a: kd.Tensor, b: kd.Tensor, acc: kd.DType) -> kd.TiledMma:
        """The matrix instruction over the warp groups that share a tile."""
        a_major, b_major = ("K" if kd.collective.contiguous_mode(x) == 1 else "MN" for x in (a, b))
        atom = kd.atoms.wgmma(self.tile[1], a.dtype, b.dtype, acc, a_major=a_major, b_major=b_major)
        return kd.tiled_mma(atom, warps=(self.readers, 1))

    def check_ranks(self, a: kd.Tensor, c: kd.Tensor) -> None:
        """Refuse a batch of products whose K is split: parts are where batches would be."""
        if self.splits > 1 and (len(a.shape), len(c.shape)) != (2, 3):
            raise kd.ArgumentError(
                f"with {self.splits} splits of K, A is a matrix and C (m, n, splits), got A of "
                f"{len(a.shape)} modes and C of {len(c.shape)}",
                code="K939",
                fix="take a configuration without splits for a batch of products",
            )

    def check_alone(self) -> None:
        """Refuse what several products of one matrix cannot have: clusters, parts of K."""
        if self.blocks_together * self.splits > 1:
            raise kd.ArgumentError(
                f"several products in one launch have no clusters and whole sums of K, got cluster "
                f"{self.cluster}, {self.peers} peers and {self.splits} splits",
                code="K934",
                fix="leave `cluster`, `peers` and `splits` out",
            )

    def check_rows(self, columns: int) -> None:
        """Refuse what a tile that holds whole rows cannot have: fewer columns, parts of K."""
        holds = columns <= self.tile[1] and self.tile[1] % 16 == 0
        if not holds or self.peers * self.splits > 1:
            raise kd.ArgumentError(
                f"a tile that holds rows of {columns} has at least as many columns, a multiple of "
                f"16, and whole sums of K, got the tile {self.tile}, {self.splits} splits and "
                f"{self.peers} peers",
                code="K933",
                fix=f"rows of up to {WIDEST} fit; leave `splits` and `peers` out",
            )

    def check_pairs(self, along: int = 1) -> None:
        """Refuse what two products that lie along a mode of one tile cannot have.

        That is parts of K, along M warp groups with an odd number of blocks of 64 rows, and along N
        halves that the blocks of a cluster cannot load in eights.
        """
        mode, each, sharer, count = (
            ("M", 128, "warp group that shares it", self.readers),
            ("N", 16, "block that loads a part", self.cluster[0]),
        )[along]
        if self.tile[along] % (each * count) or self.peers * self.splits > 1:
            raise kd.ArgumentError(
                f"two products share a tile whose {mode} is a multiple of {each} for each {sharer} "
                f"({each * count}), with neither splits nor peers, got the tile {self.tile}, "
                f"{self.splits} splits and {self.peers} peers",
                code="K940",
                fix="round the tile, and leave K whole",
            )
