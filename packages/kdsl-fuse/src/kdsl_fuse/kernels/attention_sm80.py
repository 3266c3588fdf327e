"""Attention for sm_80 and everything newer, without its scores in memory.

A block has a tile of queries of one head, a strip or two of 16 for each warp. Blocks of keys and of
values come by turns through a ring in shared memory that `cp.async` fills ahead. Warps multiply
their queries with a block of keys (`mma.sync`), turn the scores into weights in registers, where
the second product takes them from, and correct what they have summed whenever the largest score
grows (online softmax).

Source: Dao et al., FlashAttention (2022), and Dao, FlashAttention-2 (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_fuse.kernels.attention_problem import LAYOUTS, MOST_DIM, check_names
from kdsl_fuse.kernels.attention_scores import Scores, scale_rows
from kdsl_fuse.kernels.attention_work import Tile, Work
from kdsl_fuse.kernels.head_tiles import HeadTiles, head_rows, store_rows
from kdsl_fuse.kernels.turned import turned

WARP = 32
ROWS = 16  # of queries that a warp multiplies at a time
STEP = 16  # elements that one instruction multiplies
HELD = 128  # elements of a warp's rows up to which queries stay in registers


@dataclass(frozen=True)
class Sm80AttentionConfig:
    """How a block computes its tile.

    `dim` elements of each head are multiplied, zeros behind those that there are. `warps` take
    `strips` of 16 queries each; `columns` keys come at a time, and their values, through `stages`
    of shared memory that both share by turns. `mask` is one of `MASKS`, `layout` of
    `LAYOUTS`.
    """

    dim: int
    columns: int
    warps: int = 4
    strips: int = 1
    stages: int = 2
    mask: str | None = None
    layout: str = "bshd"

    def __post_init__(self) -> None:
        shape = self.dim % STEP == 0 and STEP <= self.dim <= MOST_DIM
        shape = shape and self.columns % STEP == 0 and self.columns >= STEP
        if not shape or self.warps not in (1, 2, 4, 8) or self.strips < 1 or self.stages < 2:
            raise kd.ArgumentError(
                f"heads have a multiple of {STEP} elements up to {MOST_DIM}, keys come by a "
                f"multiple of {STEP} in 2 stages or more, for 1, 2, 4 or 8 warps of 1 strip or "
                f"more, got {self}",
                code="K950",
                fix="take what `choose` gives as an example",
            )
        check_names(self.mask, self.layout)

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return ROWS * self.warps * self.strips

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    def tiled_mma(self, dtype: DType) -> kd.TiledMma:
        """The instruction over the block's warps, one behind the other along the queries."""
        name = "BF16BF16" if dtype is kd.bf16 else "F16F16"
        atom = getattr(kd.atoms, f"SM80_16x8x16_F32{name}F32_TN")
        return kd.tiled_mma(atom, (self.warps, 1), permutation=(ROWS * self.warps, STEP))


@kd.kernel(min_blocks_per_sm=1)
def attention_sm80(
    Q: kd.Tensor["f16|bf16"],
    K: kd.Tensor["=Q"],
    V: kd.Tensor["=Q"],
    Out: kd.Tensor["=Q"],
    *bias: kd.Tensor,
    scale: kd.f32,
    together: kd.i32,
    config: kd.Static,
):
    """Out = softmax(Q · Kᵀ · scale + bias) · V for each head and batch; `config.layout` says how.

    A block computes one tile; operands are those of `attention_sm90`.
    """
    order = LAYOUTS[config.layout]
    q, k, v, out = (x.with_layout(kd.select(x.layout, order)) for x in (Q, K, V, Out))
    tile = Work(config, q, k, together).at(kd.block_idx()[0])
    own, common = (tile.head, tile.batch), (tile.key_head, tile.batch)
    shared = head_rows(q.dtype, config.rows, config.dim, 1, "queries")
    ring = Ring(config, (k[None, None, *common], v[None, None, *common]), tile.blocks)
    warps = Warps(config, shared, ring.shared, scale, bias)
    number = tile.row // config.rows
    HeadTiles(q[None, None, *own], shared, config.threads).load(number, 0)
    attend(warps, ring, tile)
    warps.deposit()
    kd.sync_threads()
    store_rows(shared[..., 0], out[None, None, *own], number, config.threads)


@kd.func
def attend(warps, ring, tile):
    """The sums of a tile, one block of keys and its values after the other."""
    ring.begin()  # the first copies bring the queries, too
    warps.begin()
    for block in kd.range(tile.blocks):
        warps.multiply_keys(ring.turn(block, 0))
        warps.add_bias(tile, block)
        if block >= tile.whole:
            warps.hide_unseen(tile, block)
        warps.weigh()
        warps.add_values(ring.turn(block, 1))


class Ring:
    """Blocks of keys and of values by turns in the slots of a ring in shared memory.

    Number 2b are the keys of block b, number 2b + 1 its values.
    """

    def __init__(self, config: Any, heads: tuple[kd.Tensor, kd.Tensor], blocks: Any) -> None:
        self.stages, self.blocks = config.stages, blocks
        self.shared = head_rows(heads[0].dtype, config.columns, config.dim, config.stages, "ring")
        self.loads = [HeadTiles(head, self.shared, config.threads) for head in heads]

    def begin(self) -> None:
        """Start to fill all slots but one."""
        for number in range(self.stages - 1):
            self._fill(0, number)

    def turn(self, block: Any, which: int) -> Any:
        """The slot of a block's keys (0) or values (1), once they are there.

        Threads: the block, which reads the slot of the turn before no longer.
        """
        kd.cp_async_wait(self.stages - 2)
        kd.sync_threads()
        self._fill(block, which + self.stages - 1)
        return (2 * block + which) % self.stages

    def _fill(self, block: Any, ahead: int) -> None:
        """Start to copy what comes `ahead` turns behind the keys of a block."""
        load, slot = self.loads[ahead % 2], (2 * block + ahead) % self.stages
        load_existing(load, block + ahead // 2, self.blocks, slot)
        kd.cp_async_commit()


@kd.func
def load_existing(load, block, blocks, slot):
    """Start copying a block, where there are so many."""
    if block < blocks:
        load.load(block, slot)


class Warps:
    """The block's warps with their queries: operands, scores, weights, and sums of values."""

    def __init__(self, config: Any, queries: Any, ring: Any, scale: Any, bias: Any) -> None:
        self.config, self.queries = config, queries
        mma = self.mma = config.tiled_mma(queries.dtype)
        thread = self.thread = kd.thread_rank()
        self.read_q = kd.collective.FragmentLoader("A", mma, queries, 1, thread)
        self.read_k = kd.collective.FragmentLoader("B", mma, ring, 1, thread)
        self.read_v = kd.collective.FragmentLoader("B", mma, turned(ring), 0, thread)
        held = config.dim // STEP if config.dim * config.strips <= HELD else 1
        self.q = [mma.make_fragment_A((config.rows, STEP)) for _ in range(held)]
        self.k = mma.make_fragment_B((config.columns, STEP))
        self.v = mma.make_fragment_B((config.dim, STEP))
        self.products = mma.make_fragment_C((config.rows, config.columns))
        self.weights = mma.make_fragment_A((config.rows, config.columns))
        self.sums = mma.make_fragment_C((config.rows, config.dim))
        self.scores = [  # of each strip
            Scores(config, self.products[None, strip, None], thread, scale, bias)
            for strip in range(config.strips)
        ]

    def begin(self) -> None:
        """Nothing is summed; queries go to registers where these suffice."""
        self.sums.fill(0.0)
        for scores in self.scores:
            scores.softmax.begin()
        if len(self.q) > 1:
            kd.cp_async_wait(self.config.stages - 2)
            kd.sync_threads()
            for step, fragment in enumerate(self.q):
                self.read_q.load(fragment, step, 0)

    def multiply_keys(self, slot: Any) -> None:
        """scores = queries · keysᵀ."""
        self.products.fill(0.0)
        for step in range(self.config.dim // STEP):
            if len(self.q) == 1:
                self.read_q.load(self.q[0], step, 0)
            self.read_k.load(self.k, step, slot)
            kd.gemm(self.mma, self.q[step % len(self.q)], self.k, self.products)

    def add_bias(self, tile: Tile, block: Any) -> None:
        """scores = scores · scale + bias, where there is one, for a block of keys."""
        for strip, scores in enumerate(self.scores):
            scores.add_bias(self._origin(tile, block, strip), tile)

    def hide_unseen(self, tile: Tile, block: Any) -> None:
        """Hide the scores of keys of a block that do not exist or that the mask hides."""
        for strip, scores in enumerate(self.scores):
            scores.hide_unseen(self._origin(tile, block, strip), tile)

    def _origin(self, tile: Tile, block: Any, strip: int) -> tuple[Any, Any]:
        """The first query of all warps' strips of a number, and the first key of a block."""
        config = self.config
        return tile.row + strip * ROWS * config.warps, block * config.columns

    def weigh(self) -> None:
        """Turn scores into weights, and correct the sums so far."""
        for strip, scores in enumerate(self.scores):
            scale_rows(self.sums[None, strip, None], scores.softmax.update(scores.fragment))
            kd.convert_fragment(scores.fragment, self.weights[None, strip, None])

    def add_values(self, slot: Any) -> None:
        """sums += weights · values."""
        for step in range(self.config.columns // STEP):
            self.read_v.load(self.v, step, slot)
            kd.gemm(self.mma, self.weights[None, None, step], self.v[None, None, 0], self.sums)

    def deposit(self) -> None:
        """Write results where the warp's queries were."""
        for strip, scores in enumerate(self.scores):
            scale_rows(self.sums[None, strip, None], scores.softmax.reciprocals())
        results = kd.rmem(self.queries.dtype, kd.Layout(self.sums.shape))
        kd.convert_fragment(self.sums, results)
        part = self.mma.get_slice(self.thread).partition_C(self.queries[..., 0])
        kd.copy(results, part)
