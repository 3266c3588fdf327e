"""Attention on Hopper (sm_90a): softmax(Q · Kᵀ · scale + bias) · V, without its scores in memory.

A persistent grid: in each block one thread copies a tile of Q, and tiles of K and V by turns, into
shared memory (TMA). Warp groups keep 64 queries each, multiply them with the keys of a tile
(`wgmma`), turn the scores into weights in registers, where the second product takes them from, and
correct what they have summed whenever the largest score grows (online softmax). The scores of the
next tile are computed while the values of the last one are added up.

Source: Dao et al., FlashAttention (2022), and Shah et al., FlashAttention-3 (2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.attention_sm90_config import LAYOUTS, ROWS
from kdsl_fuse.kernels.gemm_sm90 import Turns, identity
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP

LOG2_E = math.log2(math.e)


@kd.kernel(min_blocks_per_sm=1)
def attention_sm90(
    Q: kd.Tensor["f16|bf16"],
    K: kd.Tensor["=Q"],
    V: kd.Tensor["=Q"],
    Out: kd.Tensor["=Q"],
    scale: kd.f32,
    together: kd.i32,
    *bias: kd.Tensor,
    config: kd.Static,
):
    """Out = softmax(Q · Kᵀ · scale + bias) · V for each head and batch; `config.layout` says how.

    Several query heads may share one of K and V. Blocks take `together` heads at a time. A bias is
    (batch, heads, queries, keys), broadcast by strides of 0, and may be -infinity. What a mask
    leaves without any key is zero.
    """
    q, k, v, o = matrices(config, Q, K, V, Out)
    load_q = kd.collective.TmaOperand(q, (config.rows, config.dim), 1, name="q")
    load_k = kd.collective.TmaOperand(k, (config.columns, config.dim), config.stages[0], name="k")
    load_v = kd.collective.TmaOperand(v, (config.dim, config.columns), config.stages[1], name="v")
    rings = [
        kd.collective.TmaPipeline(stages, load.bytes, config.consumers)
        for load, stages in zip((load_q, load_k, load_v), (1, *config.stages), strict=True)
    ]
    thread = kd.thread_rank() % GROUP
    number = kd.warp_uniform(kd.warpgroup_idx())
    group = kd.collective.WarpGroup(number, thread, config.consumers, config.consumers)
    work = Work(config, q, k, together)
    out = kd.collective.TmaStoreStage(
        (o,), config.dim, kd.collective.FragmentEpilogue(identity, (), o.shape, thread),
        groups=config.consumers, group=number, thread=thread,
    )  # fmt: skip
    if kd.thread_rank() == 0:
        for load, ring in zip((load_q, load_k, load_v), rings, strict=True):
            load.prefetch()
            ring.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    kd.wait_for_dependencies()
    kd.launch_dependents()
    if number == config.consumers:
        produce(config, (load_q, load_k, load_v), rings, work)
    else:
        if config.registers:
            kd.set_max_registers(config.registers[1])
        consume(Consumer(config, (load_q, load_k, load_v), rings, group, scale, bias), work, out)


def matrices(config, Q, K, V, Out):
    """The operands as (sequence, dimension, head, batch), V with its first two modes swapped."""
    order = LAYOUTS[config.layout]
    seen = [x.with_layout(kd.select(x.layout, order)) for x in (Q, K, V, Out)]
    seen[2] = seen[2].with_layout(kd.select(seen[2].layout, (1, 0, 2, 3)))
    return seen


@dataclass(frozen=True)
class Tile:
    """`rows` of queries from `row` on, of one head; `blocks` of keys that they see.

    The first `whole` blocks are seen by all of the queries. `shift` more keys than its own number
    are seen by each query of a causal mask.
    """

    row: Any
    head: Any
    key_head: Any
    batch: Any
    blocks: Any
    whole: Any
    shift: Any
    keys: Any


class Work:
    """Which tiles a block takes: the longest first, and back and forth, so that all end together.

    Blocks that run at the same time take the same `together` heads, whose keys and values then stay
    in the L2 cache.
    """

    def __init__(self, config: Any, q: Any, k: Any, together: Any) -> None:
        self.config, self.together = config, together
        self.queries, _, self.heads, self.batches = q.shape
        self.keys = k.shape[0]
        self.sharers = self.heads // k.shape[2]
        self.tiles = kd.ceil_div(self.queries, config.rows)
        self.total = self.tiles * self.heads * self.batches
        self.blocks = kd.grid_dim()[0]
        self.turns = kd.ceil_div(self.total, self.blocks)

    def number(self, turn: Any) -> Any:
        """The number of the block's tile in a turn, perhaps behind the last one."""
        block = kd.block_idx()[0]
        return turn * self.blocks + kd.where(turn % 2 == 0, block, self.blocks - 1 - block)

    def at(self, number: Any) -> Tile:
        """The tile of a number below `total`."""
        columns, rows = self.config.columns, self.config.rows
        place, index = kd.collective.grouped_raster(
            number, self.heads * self.batches, self.tiles, self.together
        )
        head, row = place % self.heads, (self.tiles - 1 - index) * rows
        shift, seen, whole = 0, self.keys, self.keys
        if self.config.mask is not None:
            shift = self.keys - self.queries if self.config.mask == "bottom-right" else 0
            seen = kd.maximum(kd.minimum(seen, row + rows + shift), 1)
            whole = kd.maximum(kd.minimum(whole, row + shift + 1), 0)
        return Tile(
            row, head, head // self.sharers, place // self.heads,
            kd.ceil_div(seen, columns), whole // columns, shift, self.keys,
        )  # fmt: skip


@kd.func
def produce(config, loads, rings, work):
    """The producing warps: one thread of the first one fills the rings."""
    if config.registers:
        kd.set_max_registers(config.registers[0])
    if kd.warp_uniform(kd.warp_idx()) == config.consumers * (GROUP // WARP):
        fill_rings(loads, [ring.writer() for ring in rings], work)


@kd.func
def fill_rings(loads, rings, work):
    """Copy the queries of each tile, then keys and values of its blocks, the last block first."""
    (load_q, load_k, load_v), (queries, keys, values) = loads, rings
    if kd.elect_one():
        for turn in kd.range(work.turns):
            number = work.number(turn)
            if number < work.total:
                tile = work.at(number)
                shared = tile.key_head, tile.batch
                stage, full = queries.acquire()
                load_q.load(stage, tile.row // work.config.rows, 0, (tile.head, tile.batch), full)
                queries.advance()
                for i in kd.range(tile.blocks):
                    block = tile.blocks - 1 - i
                    stage, full = keys.acquire()
                    load_k.load(stage, block, 0, shared, full)
                    keys.advance()
                    stage, full = values.acquire()
                    load_v.load(stage, 0, block, shared, full)
                    values.advance()
        for ring in rings:
            ring.drain()


class Consumer:
    """A warp group with its 64 queries: operands, scores, weights, and the sums of values."""

    def __init__(
        self, config: Any, loads: Any, rings: Any, group: Any, scale: Any, bias: Any
    ) -> None:
        load_q, load_k, load_v = loads
        self.config, self.group, self.scale = config, group, scale
        self.queries, self.keys, self.values = (ring.reader() for ring in rings)
        dtype, warps = load_q.shared.dtype, (config.consumers, 1)
        thread = kd.thread_rank()
        self.first = kd.tiled_mma(kd.atoms.wgmma(config.columns, dtype), warps=warps)
        view = self.first.get_slice(thread)
        self.q, self.k = view.partition_A(load_q.shared), view.partition_B(load_k.shared)
        self.scores = self.first.make_fragment_C((config.rows, config.columns))
        atom = kd.atoms.wgmma(config.dim, dtype, a_from="registers", b_major="MN")
        self.second = kd.tiled_mma(atom, warps=warps)
        self.v = self.second.get_slice(thread).partition_B(load_v.shared)
        self.weights = self.second.make_fragment_A((config.rows, config.columns))
        self.sums = self.second.make_fragment_C((config.rows, config.dim))
        self.bias = bias[0].with_layout(kd.select(bias[0].layout, (2, 3, 1, 0))) if bias else None
        factor = LOG2_E if bias else scale * LOG2_E
        self.softmax = Softmax(factor, guarded=bool(bias) or config.mask is not None)
        self.turns = Turns(group) if config.turns else None

    def start_scores(self) -> None:
        """Start the product of the queries and the next keys."""
        stage = self.keys.wait()
        kd.wgmma_fence()
        kd.gemm(self.first, self.q[..., 0], self.k[..., stage], self.scores, accumulate=False)
        kd.wgmma_commit()

    def start_sums(self) -> None:
        """Start to add the next values by their weights."""
        stage = self.values.wait()
        kd.wgmma_fence()
        kd.gemm(self.second, self.weights, self.v[..., stage], self.sums)
        kd.wgmma_commit()

    def weigh(self, tile: Tile, block: Any, masked: bool) -> list[Any]:
        """Turn scores of a block of keys into weights; gives the factors of earlier sums."""
        scores, thread = self.scores[None, 0, 0], self.group.thread
        row = tile.row + ROWS * self.group.number
        first = block * self.config.columns
        if self.bias is not None:
            self._add_bias(scores, (row, first), tile)
        if masked:
            own = row + 16 * (thread // 32) + thread % 32 // 4
            for pair in range(2):
                last: Any = tile.keys - 1
                if self.config.mask is not None:
                    last = kd.minimum(last, own + 8 * pair + tile.shift)
                hide(scores, pair, last - first - 2 * (thread % 4))
        return self.softmax.update(scores)

    def _add_bias(self, scores: Any, origin: tuple[Any, Any], tile: Tile) -> None:
        """scores = scores · scale + bias, the bias of some columns fetched ahead of the others."""
        bias = self.bias[None, None, tile.head, tile.batch]
        epilogue = kd.collective.FragmentEpilogue(
            lambda score, bias: kd.fma(score, self.scale, bias.to(kd.f32)),
            (bias,), bias.shape, self.group.thread,
        )  # fmt: skip
        width, ahead = self.config.columns, 16 if self.config.dim > 128 else 32
        chunks = [range(x, min(x + ahead, width)) for x in range(0, width, ahead)]
        parts = epilogue.fetch(origin, 0, chunks[0])
        for columns, following in zip(chunks, [*chunks[1:], None], strict=True):
            upcoming = epilogue.fetch(origin, 0, following) if following else []
            (found,) = epilogue.results(scores, parts, columns)
            for i, score in enumerate(found):
                scores[columns[0] // 2 + i] = score
            parts = upcoming

    def scale_sums(self, factors: list[Any]) -> None:
        """Multiply each row's sums by its factor."""
        sums = self.sums[None, 0, 0]
        for pair, factor in enumerate(factors):
            for i in of_pair(sums, pair):
                sums[i] = sums[i] * factor


@kd.func
def consume(consumer, work, out):
    """Compute and store the block's tiles."""
    if consumer.turns is not None:
        consumer.turns.begin()
    for turn in kd.range(work.turns):
        number = work.number(turn)
        if number < work.total:
            tile = work.at(number)
            attend(consumer, tile)
            consumer.scale_sums(consumer.softmax.reciprocals())
            row = tile.row + ROWS * consumer.group.number
            out.store(consumer.sums[None, 0, 0], (row, 0), (tile.head, tile.batch))
    out.finish()


@kd.func
def attend(consumer, tile):
    """The sums of a tile: the last block of keys, others that a mask cuts, then whole ones."""
    thread, last = consumer.group.thread, tile.blocks - 1
    consumer.softmax.begin()
    consumer.sums.fill(0.0)
    consumer.queries.wait()
    consumer.start_scores()
    kd.wgmma_wait(0)
    consumer.keys.release(thread)
    consumer.weigh(tile, last, masked=True)
    kd.convert_fragment(consumer.scores[None, 0, 0], consumer.weights)
    whole = kd.minimum(tile.whole, last)
    if consumer.config.mask is not None:
        for i in kd.range(last - whole):
            overlap(consumer, tile, last - 1 - i, True)
    for i in kd.range(whole):
        overlap(consumer, tile, whole - 1 - i, False)
    consumer.queries.release(thread)
    consumer.start_sums()
    kd.wgmma_wait(0)
    consumer.values.release(thread)


def overlap(consumer, tile, block, masked):
    """Scores and weights of a block, while the values of the one before are added."""
    thread, turns = consumer.group.thread, consumer.turns
    if turns is not None:
        turns.wait()
    consumer.start_scores()
    consumer.start_sums()
    if turns is not None:
        turns.pass_on()
    kd.wgmma_wait(1)
    factors = consumer.weigh(tile, block, masked)
    consumer.keys.release(consumer.softmax.behind(thread))
    kd.wgmma_wait(0)
    consumer.values.release(thread)
    consumer.scale_sums(factors)
    kd.convert_fragment(consumer.scores[None, 0, 0], consumer.weights)


class Softmax:
    """The largest score and the sum of weights so far, of the two rows that a thread shares.

    Weights are 2 ** (factor · (score − largest)): exponentials, with `factor` log2(e) times what
    scores are scaled by. `guarded` rows may have seen no key yet.
    """

    def __init__(self, factor: Any, guarded: bool) -> None:
        self.factor, self.guarded = factor, guarded
        self.largest, self.total = kd.rmem(kd.f32, 2), kd.rmem(kd.f32, 2)

    def begin(self) -> None:
        """Forget all scores."""
        self.largest.fill(-math.inf)
        self.total.fill(0.0)

    def update(self, scores: Any) -> list[Any]:
        """Turn scores into weights in place; gives the factors that older weights must take."""
        return [self._update_row(scores, pair) for pair in range(2)]

    def _update_row(self, scores: Any, pair: int) -> Any:
        places, old = of_pair(scores, pair), self.largest[pair]
        found = folded([scores[i] for i in places], kd.maximum)
        largest = kd.maximum(old, over_quad(found, kd.maximum))
        base = largest * self.factor
        if self.guarded:
            base = kd.where(largest == -math.inf, 0.0, base)
        self.largest[pair] = largest
        for i in places:
            scores[i] = kd.exp2(kd.fma(scores[i], self.factor, -base), approx=True, ftz=True)
        correction = kd.exp2(kd.fma(old, self.factor, -base), approx=True, ftz=True)
        sums = folded([scores[i] for i in places], lambda x, y: x + y)
        self.total[pair] = kd.fma(self.total[pair], correction, sums)
        return correction

    def behind(self, thread: Any) -> Any:
        """The thread's number, which the assembler cannot know before all weights are computed.

        Whoever waits for the number waits for them. Without that, ptxas moves exponentials behind
        the end of the product that they are to run beside (docs/facts.md).
        """
        never = (self.total[0] < 0.0) | (self.total[1] < 0.0)
        return kd.where(never, -1, thread)

    def reciprocals(self) -> list[Any]:
        """1 / total for each row; 0 where no key was seen."""
        totals = [over_quad(self.total[pair], lambda x, y: x + y) for pair in range(2)]
        return [kd.where(total == 0.0, 0.0, 1.0 / total) for total in totals]


def hide(scores, pair, last):
    """Hide the scores of a row behind column `last`, counted from the thread's first one."""
    for i in of_pair(scores, pair):
        column = 8 * (i // 4) + i % 2
        scores[i] = kd.where(column <= last, scores[i], -math.inf)


def of_pair(fragment: Any, pair: int) -> list[int]:
    """The places in a fragment of accumulators that lie in the first or in the second row."""
    return [i for i in range(kd.size(fragment.layout)) if i // 2 % 2 == pair]


def folded(values: list[Any], combine: Any) -> Any:
    """All values combined, in four chains that run side by side."""
    chains = values[:4]
    for i, value in enumerate(values[4:]):
        chains[i % 4] = combine(chains[i % 4], value)
    return reduce(combine, chains)


def over_quad(value: Any, combine: Any) -> Any:
    """The values of the four neighbouring lanes that share a row, combined."""
    value = combine(value, kd.shfl_xor(value, 1))
    return combine(value, kd.shfl_xor(value, 2))
