"""Which tiles of a batch of matrix products a block computes, and in which order."""

from __future__ import annotations

from typing import Any

from kdsl_core.collective.raster import grouped_raster
from kdsl_core.lang.clusters import cluster_rank
from kdsl_core.lang.words import block_idx, grid_dim
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class WorkTile:
    """One tile of one product, and the part of K that is summed for it: [k_begin, k_end) tiles."""

    m: Any
    n: Any
    batch: Any
    k_begin: Any
    k_end: Any

    @property
    def k_tiles(self) -> Any:
        """How many tiles of K."""
        return self.k_end - self.k_begin


class TileScheduler:
    """Deals tiles to the blocks of a persistent grid: block b takes b, b + blocks, and so on.

    Neighbouring blocks walk `group` rows of tiles column by column and so share operands in L2.
    A cluster of (cm, cn) blocks takes cm × cn neighbouring tiles together. With `splits`, each
    tile is dealt so many times, each time with another part of K, whose number is the tile's
    `batch`; with `peers`, the blocks of a cluster share the K of one tile.

    Shapes: `tiles` is (M, N) in tiles, `k_tiles` at least splits · peers; `batches` None for one
    product.
    """

    def __init__(
        self,
        tiles: tuple[Any, Any],
        k_tiles: Any,
        *,
        batches: Any = None,
        group: int = 8,
        cluster: tuple[int, int] = (1, 1),
        splits: int = 1,
        peers: int = 1,
    ) -> None:
        self.cluster = cluster
        self.splits, self.peers = splits, peers
        self.k_tiles = k_tiles
        self.group = group
        self.blocks_m = -(-tiles[0] // cluster[0]) if cluster[0] > 1 else tiles[0]
        self.blocks_n = -(-tiles[1] // cluster[1]) if cluster[1] > 1 else tiles[1]
        self.batches = batches
        together = cluster[0] * cluster[1] * peers
        self.rank: Any = cluster_rank() if together > 1 else 0
        self.first = block_idx()[0] // together
        self.step = grid_dim()[0] // together

    @property
    def total(self) -> Any:
        """How many work items there are."""
        tiles = self.blocks_m * self.blocks_n * self.splits
        return tiles if self.batches is None else tiles * self.batches

    def at(self, item: Any) -> WorkTile:
        """The work behind a number below `total`."""
        batch, place, part = 0, item, 0
        if self.splits > 1:
            batch, place = item % self.splits, item // self.splits
            part = batch
        elif self.batches is not None:
            per_batch = self.blocks_m * self.blocks_n
            batch, place = place // per_batch, place % per_batch
        m, n = grouped_raster(place, self.blocks_m, self.blocks_n, self.group)
        parts = self.splits * self.peers
        if self.peers > 1:
            part = part * self.peers + self.rank
        elif self.cluster != (1, 1):
            m = m * self.cluster[0] + self.rank % self.cluster[0]
            n = n * self.cluster[1] + self.rank // self.cluster[0]
        begin = self.k_tiles * part // parts
        end = self.k_tiles * (part + 1) // parts
        return WorkTile(m, n, batch, begin, end)
