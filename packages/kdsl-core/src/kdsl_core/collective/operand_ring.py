"""Both operands of a warp group's matrix product in one ring of stages, perhaps of a cluster."""

from __future__ import annotations

from typing import Any

from kdsl_core.collective.operands import ALONE, TileShare, TmaOperand, TmaPair
from kdsl_core.collective.pipeline import PipelineReader, PipelineWriter, TmaPipeline
from kdsl_core.lang.clusters import cluster_rank
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tensor import Tensor


class OperandRing:
    """A ring of `stages`, each of which TMA fills with a tile of A and one of B.

    Each operand is given by a tensor, by two that share its tiles (`TmaPair`), or by a function
    (tile, stages, **options) that makes what loads it, with the options of `TmaOperand`. What loads
    them are `a` and `b`, `a.shared` and `b.shared` the stages, which `readers` warp groups release.

    In a cluster of (cm, cn) blocks, rank r computes tile (r mod cm, r div cm): the cn blocks of a
    row share A, the cm of a column B, and each loads a part of a shared tile for all.

    Shapes: `tile` is (M, N, K), of which A's tiles have (M, K) and B's (N, K).
    Memory: swizzled as `wgmma` reads it; `caches` are advice for L2 on A and on B.
    Units: `fetch` in bytes that L2 brings from memory at a time.
    Threads: `init` by one thread, then a barrier of all, the cluster's where there is one.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        tile: tuple[int, int, int],
        stages: int,
        readers: int,
        *,
        cluster: tuple[int, int] = (1, 1),
        caches: tuple[str | None, str | None] = (None, None),
        fetch: int = 256,
    ) -> None:
        (tile_m, tile_n, tile_k), place = tile, _Place(cluster)
        self.a = _loads(
            a, (tile_m, tile_k), stages,
            name="a_stages", cache=caches[0], fetch=fetch, share=place.in_row(),
        )  # fmt: skip
        self.b = _loads(
            b, (tile_n, tile_k), stages,
            name="b_stages", cache=caches[1], fetch=fetch, share=place.in_column(),
        )  # fmt: skip
        bytes = self.a.bytes + self.b.bytes
        self.pipeline = TmaPipeline(stages, bytes, readers, place.sharers())

    def init(self) -> None:
        """Bring tensor maps to the TMA unit's cache, and initialise the barriers."""
        self.a.prefetch()
        self.b.prefetch()
        self.pipeline.init()

    def writer(self) -> PipelineWriter:
        """The view of the thread that loads both operands, at the first stage."""
        return self.pipeline.writer()

    def reader(self) -> PipelineReader:
        """A warp group's view, at the first stage."""
        return self.pipeline.reader()


class _Place:
    """A block's place (i, j) in a cluster of (cm, cn), and the blocks that share tiles with it."""

    def __init__(self, cluster: tuple[int, int]) -> None:
        self.cm, self.cn = cluster
        self.alone = self.cm * self.cn == 1
        if not self.alone:
            self.i, self.j = cluster_rank() % self.cm, cluster_rank() // self.cm

    def in_row(self) -> TileShare:
        """Its share of tiles that the blocks (i, 0), (i, 1) … need."""
        if self.cn == 1:
            return ALONE
        blocks = sum(1 << self.cm * other for other in range(self.cn))
        return TileShare(self.cn, self.j, as_scalar(blocks) << self.i)

    def in_column(self) -> TileShare:
        """Its share of tiles that the blocks (0, j), (1, j) … need."""
        if self.cm == 1:
            return ALONE
        blocks = (1 << self.cm) - 1
        return TileShare(self.cm, self.i, as_scalar(blocks) << self.cm * self.j)

    def sharers(self) -> tuple[Any, ...]:
        """The ranks of all of them, this block's first; None for a block without a cluster."""
        if self.alone:
            return (None,)
        (i, j), (cm, cn) = (self.i, self.j), (self.cm, self.cn)
        ranks = [(i + m) % cm + cm * j for m in range(cm)]
        return *ranks, *(i + cm * ((j + n) % cn) for n in range(1, cn))


def _loads(source: Any, tile: tuple[int, int], stages: int, **options: Any) -> Any:
    """What loads an operand's tiles."""
    if isinstance(source, Tensor):
        return TmaOperand(source, tile, stages, **options)
    if isinstance(source, tuple):
        return TmaPair(source, tile, stages, **options)
    return source(tile, stages, **options)
