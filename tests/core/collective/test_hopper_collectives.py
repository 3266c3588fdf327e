"""Pipelines, schedulers and outputs of Hopper kernels, each in a kernel of its own."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.collective.outputs import TileOutput
from kdsl_core.collective.pipeline import RingPosition
from kdsl_core.collective.slab_store import SlabStore
from kdsl_core.collective.tma_store import TmaStoreStage

Array = np.ndarray[Any, Any]
WARP = 32
GUARD = 77.0  # what lies around results


# -- the ring --------------------------------------------------------------------------------------
@kd.kernel
def walks(y: kd.Tensor["i32", "n 2"], start: kd.Static, steps: kd.Static, stages: kd.Static):
    """Row 0: where `skip(steps)` goes; row 1: where so many calls of `advance` go."""
    places = [RingPosition(stages, 0, 1) for _ in range(2)]
    for place in places:
        for _ in range(start):
            place.advance()
    places[0].skip(steps + 0 * kd.thread_rank())
    for _ in range(steps):
        places[1].advance()
    if kd.thread_rank() == 0:
        for row, place in enumerate(places):
            y[row, 0] = place.index
            y[row, 1] = place.parity.to(kd.i32)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_skipping_is_advancing(stages: int) -> None:
    """Stage and parity are those of as many single steps, over several wraps."""
    for start, steps in itertools.product((0, stages - 1), (0, 1, stages, 2 * stages + 1)):
        y = np.full((2, 2), -1, np.int32)
        walks[1, WARP](y, start=start, steps=steps, stages=stages)
        turns, index = divmod(start + steps, stages)
        np.testing.assert_array_equal(y, [[index, 1 - turns % 2]] * 2)


@kd.func
def fill(load, stages, writer, count):
    """One thread loads all tiles, in order."""
    if kd.elect_one():
        for tile in kd.range(count):
            stage, full = writer.acquire()
            load(stages[..., stage], (8 * tile, 0), full)
            writer.advance()
        writer.drain()


@kd.func
def drain(reader, stages, y, number, count, late):
    """A warp writes down its tiles; it releases each stage `late` tiles after having read it."""
    lane = kd.lane_idx()
    for tile in kd.range(count):
        stage = reader.wait()
        for row in range(8):
            y[number, tile, row, lane] = stages[row, lane, stage]
        kd.sync_warp()
        if tile >= late:
            reader.release(lane)
    for _ in range(late):
        reader.release(lane)


@kd.kernel
def pipes(
    x: kd.Tensor["f32", "m 32"],
    y: kd.Tensor["f32", "r t 8 32"],
    stages: kd.Static,
    readers: kd.Static,
    late: kd.Static,
):
    """Each of some warps reads every tile that another one loads."""
    tiles = kd.smem(kd.f32, kd.Layout((8, WARP, stages), (WARP, 1, 8 * WARP)))
    load = kd.tma_load(x, tiles[..., 0], (8, WARP))
    ring = kd.collective.TmaPipeline(stages, load.bytes, readers)
    count, warp = x.shape[0] // 8, kd.warp_uniform(kd.warp_idx())
    if kd.thread_rank() == 0:
        ring.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    if warp == readers:
        fill(load, tiles, ring.writer(), count)
    else:
        drain(ring.reader(), tiles, y, warp, count, late)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(
    ("stages", "readers", "late"), [(1, 1, 0), (2, 3, 0), (3, 1, 1), (4, 2, 2)]
)
def test_rings(stages: int, readers: int, late: int, seed: int | None) -> None:
    """More tiles than stages reach every reader, whoever runs first; nobody overwrites."""
    for count in (1, stages, 3 * stages + 1):
        if count <= late:
            continue
        x = np.arange(count * 8 * WARP, dtype=np.float32).reshape(-1, WARP)
        y = np.zeros((readers, count, 8, WARP), np.float32)
        kd.simulate(
            pipes,
            grid=1,
            block=WARP * (readers + 1),
            args=[x, y],
            kwargs={"stages": stages, "readers": readers, "late": late},
            order="linear" if seed is None else "shuffle",
            seed=seed or 0,
        )
        np.testing.assert_array_equal(y, np.stack([x.reshape(-1, 8, WARP)] * readers))


@kd.func
def take_turns(reader, stages, y, number, items, depth):
    """Reads the stages of every second item, and leaves out those of the others."""
    lane = kd.lane_idx()
    mine, other = kd.named_barrier(1 + number, 64), kd.named_barrier(2 - number, 64)
    if number == 1:
        other.arrive()
    reader.skip(number * depth)
    for item in kd.range(number, items, 2):
        mine.sync()
        for k in kd.range(depth):
            stage = reader.wait()
            y[item, k, lane] = stages[0, lane, stage]
            kd.sync_warp()
            reader.release(lane)
        reader.skip(depth)
        other.arrive()


@kd.kernel
def alternates(x: kd.Tensor["f32", "m 32"], y: kd.Tensor["f32", "i d 32"], stages: kd.Static):
    """Two warps take items of several tiles by turns."""
    tiles = kd.smem(kd.f32, kd.Layout((8, WARP, stages), (WARP, 1, 8 * WARP)))
    load = kd.tma_load(x, tiles[..., 0], (8, WARP))
    ring = kd.collective.TmaPipeline(stages, load.bytes, 1)
    warp = kd.warp_uniform(kd.warp_idx())
    if kd.thread_rank() == 0:
        ring.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    if warp == 2:
        fill(load, tiles, ring.writer(), x.shape[0] // 8)
    else:
        take_turns(ring.reader(), tiles, y, warp, y.shape[0], y.shape[1])


@pytest.mark.parametrize(("stages", "items", "depth"), [(2, 5, 1), (3, 4, 2), (3, 5, 7), (4, 1, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_readers_by_turns(stages: int, items: int, depth: int, seed: int) -> None:
    """Each of two readers finds its own tiles, the other's left out."""
    x = np.arange(items * depth * 8 * WARP, dtype=np.float32).reshape(-1, WARP)
    y = np.zeros((items, depth, WARP), np.float32)
    options = {"grid": 1, "block": 3 * WARP, "order": "shuffle", "seed": seed}
    kd.simulate(alternates, args=[x, y], kwargs={"stages": stages}, **options)
    np.testing.assert_array_equal(y, x[::8].reshape(items, depth, WARP))


# -- both operands ---------------------------------------------------------------------------------
ROWS, COLUMNS, DEPTH = 32, 16, 64  # of a tile
STAGES = 3  # as many as tiles: nothing is loaded over what ordinary loads read


@kd.func
def bring(ring, m, n, steps):
    """One thread loads the tiles of a row of A and of a row of B."""
    write = ring.writer()
    if kd.elect_one():
        for k in kd.range(steps):
            stage, full = write.acquire()
            ring.a.load(stage, m, k, 0, full)
            ring.b.load(stage, n, k, 0, full)
            write.advance()


@kd.func
def note(ring, seen, steps):
    """A warp group writes down what it finds in the stages: A's rows, then B's."""
    read, thread = ring.reader(), kd.thread_rank()
    block = kd.block_idx()[0]
    for k in kd.range(steps):
        stage = read.wait()
        if thread < DEPTH:
            for row in range(ROWS):
                seen[row, thread + k * DEPTH, block] = ring.a.shared[row, thread, stage]
            for row in range(COLUMNS):
                seen[ROWS + row, thread + k * DEPTH, block] = ring.b.shared[row, thread, stage]


@kd.kernel
def pairs(
    a: kd.Tensor["f16", "m k"],
    b: kd.Tensor["f16", "n k"],
    seen: kd.Tensor["f16", "rows k blocks"],
    cluster: kd.Static,
    alone: kd.Static,
):
    """Each block notes the tiles that reach it; with `alone`, B's is one of a choice."""
    source = partial(kd.collective.TmaChoice, (b,)) if alone else b
    ring = kd.collective.OperandRing(a, source, (ROWS, COLUMNS, DEPTH), STAGES, 1, cluster=cluster)
    group = kd.collective.WarpGroup.of_thread(1)
    block, steps = kd.block_idx()[0], kd.ceil_div(a.shape[1], DEPTH)
    kd.collective.init_together(ring)
    if group.number == 0:
        note(ring, seen, steps)
    else:
        bring(ring, block % cluster[0], block // cluster[0], steps)
    kd.cluster_sync()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("cluster", "alone"), [((1, 1), False), ((1, 1), True), ((2, 1), False), ((2, 2), False)]
)
def test_operands_reach_every_block(cluster: tuple[int, int], alone: bool, seed: int) -> None:
    """Blocks of a row of the cluster get the same rows of A, those of a column the same of B."""
    (cm, cn), depth = cluster, STAGES * DEPTH
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((rows, depth)).astype(np.float16) for rows in (cm * ROWS, cn * COLUMNS)
    )
    seen = np.full((cm * cn, ROWS + COLUMNS, depth), GUARD, np.float16)
    kd.simulate(
        pairs, grid=cm * cn, block=128 + WARP, cluster=cm * cn,
        args=[a, b, seen.transpose(1, 2, 0)], kwargs={"cluster": cluster, "alone": alone},
        order="shuffle", seed=seed,
    )  # fmt: skip
    for block, found in enumerate(seen):
        i, j = block % cm, block // cm
        np.testing.assert_array_equal(found[:ROWS], a[i * ROWS : (i + 1) * ROWS])
        np.testing.assert_array_equal(found[ROWS:], b[j * COLUMNS : (j + 1) * COLUMNS])


@kd.kernel
def mixes(a: kd.Tensor["f16", "m k"], b: kd.Tensor["f16", "n k"]):
    """Two operands that lie otherwise share B's stages."""
    kd.collective.OperandRing(a, (b, a), (ROWS, COLUMNS, DEPTH), STAGES, 1)


@pytest.mark.parametrize(
    ("strides", "code"), [((1, 64), "K476"), ((65, 1), "K454")], ids=["order", "pitch"]
)
def test_operands_are_refused_where_the_ring_is_made(strides: tuple[int, int], code: str) -> None:
    """The author's line is that of the ring, whatever it is made of."""
    a, b = kd.spec("f16", (64, 64)), kd.spec("f16", (64, 64), strides=strides)
    with pytest.raises(kd.KdslError, match=code) as caught:
        mixes.ptx(a, b, target="sm_90a", block=160)
    assert str(caught.value).startswith("test_hopper_collectives.py:")
    assert "kd.collective.OperandRing(a, (b, a)" in str(caught.value)


# -- the scheduler ---------------------------------------------------------------------------------
@kd.kernel
def deals(
    counts: kd.Tensor["i32", "l m n k"],
    batched: kd.Static,
    group: kd.Static,
    cluster: kd.Static,
    splits: kd.Static,
    peers: kd.Static,
):
    """Counts how often each tile of each part of K is dealt; a part's number is its batch."""
    batches, m, n, k_tiles = counts.shape
    work = kd.collective.TileScheduler(
        (m, n), k_tiles, batches=batches if batched else None, group=group, cluster=cluster,
        splits=splits, peers=peers,
    )  # fmt: skip
    if kd.thread_rank() == 0:
        for item in kd.range(work.first, work.total, work.step):
            tile = work.at(item)
            batch = tile.batch if batched else 0
            if (tile.m < m) & (tile.n < n):
                for k in kd.range(tile.k_begin, tile.k_end):
                    kd.atomic_add(counts, (batch, tile.m, tile.n, k), 1)


SHARES = [
    {},
    {"group": 1},
    {"group": 3, "splits": 3},
    {"cluster": (2, 1)},
    {"cluster": (1, 2), "group": 2},
    {"cluster": (2, 2), "group": 2},
    {"cluster": (4, 2)},
    {"peers": 2},
    {"peers": 4, "group": 5},
    {"peers": 2, "splits": 3},
]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("share", SHARES, ids=str)
def test_every_tile_is_dealt_once(share: dict[str, Any], batched: bool) -> None:
    """Each tile of each product gets each part of K once, for odd sizes and any size of grid."""
    rng = np.random.default_rng(len(str(share)))
    options = {"group": 8, "cluster": (1, 1), "splits": 1, "peers": 1} | share
    (cm, cn), peers, splits = options["cluster"], options["peers"], options["splits"]
    batched = batched and splits == 1
    together = cm * cn * peers
    for _ in range(3):
        m, n = (int(rng.integers(1, 14)) for _ in range(2))
        batches = int(rng.integers(1, 4)) if batched else 1
        k = splits * peers + int(rng.integers(0, 6))
        counts = np.zeros((batches, m, n, k), np.int32)
        kd.simulate(
            deals,
            grid=together * int(rng.integers(1, 6)),
            block=WARP,
            cluster=together if together > 1 else None,
            args=[counts],
            kwargs={"batched": batched, **options},
        )
        np.testing.assert_array_equal(counts, 1)


# -- the outputs -----------------------------------------------------------------------------------
def part_of(work):
    """The factor of a part: one more than its number."""
    return (work.k_begin + 1 + 0 * kd.thread_rank()).to(kd.f32)


@kd.kernel
def writes(
    x: kd.Tensor["f32", "m n l"],
    c: kd.Tensor["f16|f32"],
    *extras: kd.Tensor,
    tile: kd.Static,
    groups: kd.Static,
    way: kd.Static,
    peers: kd.Static = 1,
):
    """C = max(sum over parts of x · (part + 1), 0) + bias, tile by tile, `way` being the class."""
    work = kd.collective.TileScheduler(
        kd.ceil_div(c.shape[:2], tile), peers,
        batches=c.shape[2] if len(c.shape) == 3 else None, peers=peers,
    )  # fmt: skip
    mma = kd.tiled_mma(kd.atoms.wgmma(tile[1], kd.f16), warps=(groups, 1))
    group = kd.collective.WarpGroup.of_thread(groups)
    out = TileOutput(
        c, tile, group, lambda acc, bias: kd.maximum(acc, 0.0) + bias, extras[-1:],
        accumulator=kd.f32, peers=peers,
    )  # fmt: skip
    assert isinstance(out.stage, way)
    if kd.thread_rank() == 0:
        out.init()
        kd.fence_mbarrier_init()
    if peers > 1:
        kd.cluster_sync()
    else:
        kd.sync_threads()
    part = mma.get_slice(kd.thread_rank())
    acc = mma.make_fragment_C(tile)
    for item in kd.range(work.first, work.total, work.step):
        at = work.at(item)
        kd.copy(part.partition_C(x[None, None, at.batch].tile(tile, (at.m, at.n))), acc)
        for i in range(kd.size(acc)):
            acc[i] = acc[i] * part_of(at)
        out.write(acc, at)
    out.finish()
    if peers > 1:
        kd.cluster_sync()


def inside(shape: tuple[int, ...], dtype: Any, major: int, pitch: int) -> tuple[Array, Array]:
    """A matrix of a larger array, lines `pitch` elements apart, and the array, all `GUARD`."""
    lines, length = shape[:2] if major else (shape[1], shape[0])
    large = np.full((*shape[2:], lines + 3, pitch), GUARD, dtype)
    small = large[..., 1 : 1 + lines, 8 : 8 + length]
    small = small if major else small.swapaxes(-1, -2)
    return small if len(shape) == 2 else small.transpose(1, 2, 0), large


def check_output(
    way: type, shape: tuple[int, ...], tile: tuple[int, int], *, dtype: Any = np.float16,
    major: int = 1, pitch: int = 96, groups: int = 1, peers: int = 1,
    blocks: int = 2, **options: Any,
) -> bytes:  # fmt: skip
    """Run `writes` and compare the matrix and all that lies around it; gives the bytes."""
    rng = np.random.default_rng(0)
    c, large = inside(shape, dtype, major, pitch)
    counts = [-(-n // t) for n, t in zip(shape[:2], tile, strict=True)]
    batches = (*shape, 1)[2]
    x = rng.integers(-9, 9, (counts[0] * tile[0], counts[1] * tile[1], batches)).astype(np.float32)
    bias = rng.integers(-9, 9, shape[1]).astype(np.float32)
    wide = np.broadcast_to(bias[:, None] if len(shape) == 3 else bias, shape)
    kd.simulate(
        writes,
        grid=blocks * peers,
        block=128 * groups,
        cluster=peers if peers > 1 else None,
        args=[x, c, wide],
        kwargs={"tile": tile, "groups": groups, "way": way, "peers": peers},
        **options,
    )
    total = x[: shape[0], : shape[1]].reshape(*shape) * np.float32(peers * (peers + 1) // 2)
    np.testing.assert_array_equal(c, (np.maximum(total, 0) + wide).astype(dtype))
    written = c.tobytes()
    c[...] = GUARD
    assert (large == GUARD).all(), "only the matrix was written"
    return written


@pytest.mark.parametrize("major", [0, 1])
@pytest.mark.parametrize(
    ("shape", "tile", "groups"),
    [
        ((64, 64), (64, 64), 1),
        ((61, 40), (64, 16), 1),
        ((77, 72), (64, 64), 1),
        ((130, 72), (128, 128), 2),
        ((70, 64), (64, 192), 1),
        ((70, 48, 2), (64, 24), 1),
    ],
)
def test_stores_by_tma(
    shape: tuple[int, ...], tile: tuple[int, int], groups: int, major: int
) -> None:
    """Both major orders, one to three buffers, batches: the matrix and nothing else is written.

    Lines are whole 16 bytes long; their number is odd.
    """
    if major == 0:
        shape = (shape[1], shape[0], *shape[2:])
    check_output(TmaStoreStage, shape, tile, groups=groups, major=major, pitch=200)


@pytest.mark.parametrize("major", [0, 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("shape", "tile", "groups", "pitch"),
    [
        ((64, 64), (64, 64), 1, 83),
        ((61, 45), (64, 32), 1, 74),
        ((130, 67), (128, 128), 2, 149),
        ((68, 48), (64, 24), 1, 84),
        ((70, 41, 2), (64, 24), 1, 81),
    ],
)
def test_stores_by_slabs(
    shape: tuple[int, ...], tile: tuple[int, int], groups: int, pitch: int, dtype: Any, major: int
) -> None:
    """Pitches that TMA cannot take, element by element or in vectors: nothing else is written."""
    check_output(SlabStore, shape, tile, groups=groups, major=major, pitch=pitch, dtype=dtype)


@pytest.mark.parametrize("major", [0, 1])
@pytest.mark.parametrize("pitch", [96, 93])
@pytest.mark.parametrize("peers", [2, 4])
def test_sums_of_parts(peers: int, pitch: int, major: int) -> None:
    """Parts of K from blocks of a cluster give the same sums in any order of the blocks."""
    shares = {"peers": peers, "pitch": pitch, "major": major, "blocks": 3}
    first = check_output(SlabStore, (77, 45), (64, 32), **shares)
    other = check_output(SlabStore, (77, 45), (64, 32), **shares, order="shuffle", seed=peers)
    assert first == other
