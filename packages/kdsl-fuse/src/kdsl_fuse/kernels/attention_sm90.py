"""Attention on Hopper (sm_90a): softmax(Q · Kᵀ · scale + bias) · V, without its scores in memory.

A persistent grid: in each block one thread copies a tile of Q, and tiles of K and V by turns, into
shared memory (TMA). Warp groups keep 64 queries each, multiply them with the keys of a tile
(`wgmma`), turn the scores into weights in registers, where the second product takes them from, and
correct what they have summed whenever the largest score grows (online softmax). The scores of the
next tile are computed while the values of the last one are added up.

Source: Dao et al., FlashAttention (2022), and Shah et al., FlashAttention-3 (2024).
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels.attention_problem import LAYOUTS
from kdsl_fuse.kernels.attention_scores import Scores, scale_rows
from kdsl_fuse.kernels.attention_sm90_config import ROWS
from kdsl_fuse.kernels.attention_work import Tile, Work
from kdsl_fuse.kernels.gemm_sm90 import Turns, identity
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP
from kdsl_fuse.kernels.turned import turned


@kd.kernel(min_blocks_per_sm=1)
def attention_sm90(
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

    Several query heads may share one of K and V. Blocks take `together` heads at a time. A bias is
    (batch, heads, queries, keys), broadcast by strides of 0, and may be -infinity; one of truth
    values says which keys are seen. What a mask leaves without any key is zero.
    """
    q, k, v, o = matrices(config, Q, K, V, Out)
    load_q = kd.collective.TmaOperand(q, (config.rows, config.dim), 1, name="q")
    load_k = kd.collective.TmaOperand(k, (config.columns, config.dim), config.stages[0], name="k")
    load_v = kd.collective.TmaOperand(v, (config.dim, config.columns), config.stages[1], name="v")
    rings = [
        kd.collective.TmaPipeline(stages, load.bytes, config.consumers)
        for load, stages in zip((load_q, load_k, load_v), (1, *config.stages), strict=True)
    ]
    group = kd.collective.WarpGroup.of_thread(config.consumers)
    work = Work(config, q, k, together)
    out = kd.collective.TmaStoreStage(
        (o,), config.dim, kd.collective.FragmentEpilogue(identity, (), o.shape, group.thread),
        groups=config.consumers, group=group.number, thread=group.thread,
    )  # fmt: skip
    if kd.thread_rank() == 0:
        for load, ring in zip((load_q, load_k, load_v), rings, strict=True):
            load.prefetch()
            ring.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    kd.wait_for_dependencies()
    kd.launch_dependents()
    if group.number == config.consumers:
        produce(config, (load_q, load_k, load_v), rings, work)
    else:
        if config.registers:
            kd.set_max_registers(config.registers[1])
        consume(Consumer(config, (load_q, load_k, load_v), rings, group, scale, bias), work, out)


def matrices(config, Q, K, V, Out):
    """The operands as (sequence, dimension, head, batch), V with its first two modes swapped."""
    order = LAYOUTS[config.layout]
    seen = [x.with_layout(kd.select(x.layout, order)) for x in (Q, K, V, Out)]
    seen[2] = turned(seen[2])
    return seen


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
        self.config, self.group = config, group
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
        self.weighing = Scores(config, self.scores[None, 0, 0], group.thread, scale, bias)
        self.softmax = self.weighing.softmax
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
        origin = tile.row + ROWS * self.group.number, block * self.config.columns
        self.weighing.add_bias(origin, tile)
        if masked:
            self.weighing.hide_unseen(origin, tile)
        return self.softmax.update(self.scores[None, 0, 0])

    def scale_sums(self, factors: list[Any]) -> None:
        """Multiply each row's sums by its factor."""
        scale_rows(self.sums[None, 0, 0], factors)


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
