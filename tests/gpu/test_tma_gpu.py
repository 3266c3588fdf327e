"""TMA and bulk copies: every byte is where NumPy says, in the simulator and on a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from execution import Executor
from kdsl_core.layout import Layout, wrap

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = "u8|f16|bf16|f32|i32|u32"
THREADS = 64
EMPTY = 77  # what results hold before


@kd.func
def begin(bar, size):
    """The first thread makes the barrier and expects bytes."""
    if kd.thread_rank() == 0:
        bar.init()
        kd.fence_mbarrier_init()
        bar.arrive_expect(size)


@kd.func
def pour(source, target, count):
    """All threads copy `count` elements, one after another."""
    for turn in kd.range(-(-count // THREADS)):
        i = turn * THREADS + kd.thread_rank()
        if i < count:
            target[i] = source[i]


@kd.kernel
def loads(
    x: kd.Tensor[TYPES, "n"],
    at: kd.Tensor["i32", "b r"],
    y: kd.Tensor["=x", "b t"],
    view: kd.Static,
    shared: kd.Static,
    tile: kd.Static,
    ahead: kd.Static = False,
):
    """Each block loads the tile of `view` of x that starts where its row of `at` says."""
    stage, bar = kd.smem(x.dtype, shared), kd.mbarrier()
    load = kd.tma_load(x.with_layout(view), stage, tile)
    begin(bar, load.bytes)
    if kd.thread_rank() == 0:
        block = kd.block_idx()[0]
        start = tuple(at[block, mode] for mode in range(len(tile)))
        if ahead:
            load.prefetch()
            load.prefetch_tile(start)
        load(stage, start, bar)
    kd.sync_threads()
    bar.wait(0)
    pour(stage, y[kd.block_idx()[0], None], kd.size(stage))


@kd.kernel
def stores(
    x: kd.Tensor[TYPES, "b t"],
    at: kd.Tensor["i32", "b r"],
    y: kd.Tensor["=x", "n"],
    view: kd.Static,
    shared: kd.Static,
    tile: kd.Static,
    reduce: kd.Static,
):
    """Each block stores its row of x as a tile of `view` of y, or combines it with that."""
    stage, block = kd.smem(x.dtype, shared), kd.block_idx()[0]
    store = kd.tma_store(y.with_layout(view), stage, tile)
    pour(x[block, None], stage, kd.size(stage))
    kd.fence_proxy_async()
    kd.sync_threads()
    if kd.thread_rank() == 0:
        store(stage, tuple(at[block, mode] for mode in range(len(tile))), reduce)
        kd.tma_store_commit()
        kd.tma_store_wait(0)


def places(view: Layout, tile: tuple[int, ...], start: Array) -> tuple[Array, Array]:
    """Offsets in memory of a tile's elements, first mode fastest, and which lie in the tensor."""
    index = np.indices(tile).reshape(len(tile), -1, order="F")
    coordinate = index + start[:, None]
    inside = ((coordinate >= 0) & (coordinate < np.array(view.shape)[:, None])).all(axis=0)
    return (coordinate * np.array(view.stride)[:, None]).sum(axis=0), inside


def gathered(x: Array, view: Layout, tile: tuple[int, ...], starts: Array) -> Array:
    """The tiles that start there, zero outside of the tensor."""
    rows = []
    for start in starts:
        offset, inside = places(view, tile, start)
        rows.append(np.where(inside, x[np.where(inside, offset, 0)], np.zeros(1, x.dtype)))
    return np.array(rows, x.dtype)


def numbers(count: int, dtype: Any, seed: int = 0) -> Array:
    """Random bytes that are finite numbers of the type, and none of them `EMPTY`."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 60, count).astype(dtype)


def operand(dtype: str, swizzle: int, major: str) -> tuple[Any, tuple[int, int], Layout]:
    """A shared layout of two panels, its tile, and a matrix with ragged lines."""
    item = kd.dtypes.dtype_of(dtype).bytes
    line, lines = 2 * max(swizzle, 16) // item, 16
    pitch, ragged = line * 2, line + line // 2 - 3
    tile, shape, stride = (lines, line), (21, ragged), (pitch, 1)
    if major == "MN":
        tile, shape, stride = tile[::-1], shape[::-1], stride[::-1]
    layout = kd.atoms.shared_operand(dtype, tile, major=major, swizzle=swizzle)
    return layout, tile, Layout(shape, stride)


def starts_of(tile: tuple[int, ...], view: Layout, item: int) -> Array:
    """Starts inside, before and beyond each edge; whole 16 bytes along the contiguous mode."""
    inner, unit = list(view.stride).index(1), 16 // item
    columns = [
        (0, -unit, unit, view.shape[mode] // unit * unit) if mode == inner else (0, -3, 7, extent)
        for mode, extent in enumerate(tile)
    ]
    every = list(itertools.product(*columns))
    return np.array(every[:: len(every) // 12 | 1], np.int32)


SWIZZLES = (0, 32, 64, 128)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32"])
def test_swizzled_tiles(execute: Executor, dtype: str, major: str, swizzle: int) -> None:
    """Loads inside and over all edges; the same tiles stored to another matrix are clipped."""
    layout, tile, view = operand(dtype, swizzle, major)
    kind = kd.dtypes.dtype_of(dtype)
    x = numbers(int(kd.cosize(view)) + 64, kind.numpy)
    at = starts_of(tile, view, kind.bytes)
    empty = np.full((len(at), tile[0] * tile[1]), EMPTY, kind.numpy)
    shared = one_stage(layout)
    got = execute(loads, len(at), THREADS, x, at, empty, view=view, shared=shared, tile=tile)[2]
    np.testing.assert_array_equal(got, gathered(x, view, tile, at))
    check_stores(execute, got, at, view, shared, tile)


def one_stage(layout: Any) -> Any:
    """A shared layout (rows, depth, 1) without its last mode."""
    inner = kd.make_layout(layout.inner[0], layout.inner[1])
    return kd.ComposedLayout(layout.outer, 0, inner)


def whole_lines(view: Layout, item: int) -> Layout:
    """The view with lines of a multiple of 16 bytes, as stores want them."""
    unit = 16 // item
    shape = tuple(
        extent // unit * unit if step == 1 else extent
        for extent, step in zip(wrap(view.shape), wrap(view.stride), strict=True)
    )
    return Layout(shape, wrap(view.stride))


@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32"])
def test_maps_and_tiles_brought_near(execute: Executor, dtype: str) -> None:
    """Prefetches of the map and of tiles, also beyond the edges, change nothing."""
    layout, tile, view = operand(dtype, 128, "K")
    kind = kd.dtypes.dtype_of(dtype)
    x, at = numbers(int(kd.cosize(view)) + 64, kind.numpy), starts_of(tile, view, kind.bytes)
    empty = np.full((len(at), tile[0] * tile[1]), EMPTY, kind.numpy)
    statics = {"view": view, "shared": one_stage(layout), "tile": tile, "ahead": True}
    got = execute(loads, len(at), THREADS, x, at, empty, **statics)[2]
    np.testing.assert_array_equal(got, gathered(x, view, tile, at))


def check_stores(
    execute: Executor, x: Array, at: Array, view: Layout, shared: Any, tile: tuple[int, ...]
) -> None:
    """Tiles in the tensor, over its ends and beyond them; none may start before it."""
    corners = np.unique(np.maximum(at, 0), axis=0)
    for start in corners[:: len(corners) // 3 + 1]:
        check_store(execute, x, start, view, shared, tile)


def check_store(
    execute: Executor, x: Array, start: Array, view: Layout, shared: Any, tile: tuple[int, ...]
) -> None:
    """One block writes the elements of its tile that the tensor has, and nothing else."""
    view = whole_lines(view, x.dtype.itemsize)
    y = np.full(int(kd.cosize(view)) + 64, EMPTY, x.dtype)
    statics = {"view": view, "shared": shared, "tile": tile, "reduce": None}
    got = execute(stores, 1, THREADS, x[:1], start[None], y, **statics)[2]
    offset, inside = places(view, tile, start)
    y[offset[inside]] = x[0][inside]
    np.testing.assert_array_equal(got, y)


TILES = ((64,), (16, 3), (16, 2, 3), (8, 2, 3, 2), (4, 2, 2, 2, 3))


@pytest.mark.parametrize("dtype", ["u8", "bf16", "i32"])
@pytest.mark.parametrize("rank", range(1, 6))
def test_ranks(execute: Executor, rank: int, dtype: str) -> None:
    """Tiles of one to five modes over every edge of dense and of padded tensors."""
    kind, tile = kd.dtypes.dtype_of(dtype), TILES[rank - 1]
    tile = (16 // kind.bytes * 2, *tile[1:])
    shape = (tile[0] + tile[0] // 2 + 1, *(extent + 2 for extent in tile[1:]))
    stride = [1]
    for extent in (tile[0] * 4, *shape[1:-1]):
        stride.append(stride[-1] * extent)
    view = Layout(shape, tuple(stride[:rank])) if rank > 1 else Layout(shape, (1,))
    x = numbers(int(kd.cosize(view)) + 64, kind.numpy)
    at = starts_of(tile, view, kind.bytes)
    empty = np.full((len(at), int(np.prod(tile))), EMPTY, kind.numpy)
    shared = Layout(tile)
    got = execute(loads, len(at), THREADS, x, at, empty, view=view, shared=shared, tile=tile)[2]
    np.testing.assert_array_equal(got, gathered(x, view, tile, at))
    check_stores(execute, got, at, view, shared, tile)


REDUCTIONS = [
    ("f32", "add"),
    *[(dtype, how) for dtype in ("bf16", "f16", "i32", "u32") for how in ("add", "min", "max")],
    *[("u32", how) for how in ("inc", "dec", "and", "or", "xor")],
]


def combined(how: str, old: Array, new: Array) -> Array:
    """One reduction of arrays."""
    if how in ("inc", "dec"):
        one = old.dtype.type(1)
        wraps = old >= new if how == "inc" else (old == 0) | (old > new)
        first, other = (0, old + one) if how == "inc" else (new, old - one)
        return np.where(wraps, first, other).astype(old.dtype)
    names = {"min": "minimum", "max": "maximum"} | {n: f"bitwise_{n}" for n in ("and", "or", "xor")}
    result = getattr(np, names.get(how, how))(old, new)
    return result.astype(old.dtype)


@pytest.mark.parametrize(("dtype", "how"), REDUCTIONS)
def test_reducing_stores(execute: Executor, dtype: str, how: str) -> None:
    """Three blocks combine overlapping tiles, clipped at the edge, in any order."""
    kind = kd.dtypes.dtype_of(dtype)
    layout, tile, view = operand(dtype, 64, "K")
    view, unit = whole_lines(view, kind.bytes), 16 // kind.bytes
    at = np.array([(0, 0), (5, unit), (9, view.shape[1] - unit)], np.int32)
    count = int(kd.cosize(view)) + 64
    x, y = numbers(3 * tile[0] * tile[1], kind.numpy).reshape(3, -1), numbers(count, kind.numpy, 1)
    if how in ("inc", "dec"):
        x[:] = 40
    if dtype != "u32":
        x, y = ((values.astype(np.float32) - 30).astype(kind.numpy) for values in (x, y))
    statics = {"view": view, "shared": one_stage(layout), "tile": tile, "reduce": how}
    got = execute(stores, 3, THREADS, x, at, y, **statics)[2]
    for row, start in zip(x, at, strict=True):
        offset, inside = places(view, tile, start)
        y[offset[inside]] = combined(how, y[offset[inside]], row[inside])
    np.testing.assert_array_equal(got, y)


# -- im2col ----------------------------------------------------------------------------------------
@kd.kernel
def windows(
    x: kd.Tensor["bf16"],
    at: kd.Tensor["i32", "b r"],
    y: kd.Tensor["bf16", "b t"],
    corners: kd.Static,
    strides: kd.Static,
    pixels: kd.Static,
):
    """Each block loads 64 channels of some pixels; its row of `at` is pixel and filter element."""
    rank, block = len(x.layout), kd.block_idx()[0]
    stage = kd.smem(kd.bf16, one_stage(kd.atoms.shared_operand("bf16", (pixels, 64))))
    bar = kd.mbarrier()
    load = kd.tma_im2col(x, stage, lower=corners[0], upper=corners[1], strides=strides)
    begin(bar, load.bytes)
    if kd.thread_rank() == 0:
        pixel = tuple(at[block, mode] for mode in range(rank))
        load(stage, pixel, tuple(at[block, rank + mode] for mode in range(rank - 2)), bar)
    kd.sync_threads()
    bar.wait(0)
    pour(stage, y[block, None], kd.size(stage))


# image (n, spatial …, c), filter, padding, stride, dilation of each spatial mode
CONVOLUTIONS = {
    "1-D": ((2, 19, 64), (3,), (1,), (1,), (1,)),
    "2-D": ((2, 9, 11, 72), (3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": ((3, 12, 9, 64), (3, 2), (1, 0), (2, 3), (1, 1)),
    "dilated": ((2, 10, 10, 64), (3, 3), (2, 2), (1, 1), (2, 2)),
    "strided and dilated": ((1, 14, 13, 64), (2, 3), (3, 1), (2, 2), (3, 2)),
    "no padding": ((2, 8, 8, 64), (3, 3), (0, 0), (1, 1), (1, 1)),
    "3-D": ((2, 5, 6, 7, 64), (2, 3, 2), (1, 1, 0), (1, 2, 1), (1, 1, 2)),
}


def pixels_of(x: Array, image: Array, spot: Array, channel: int) -> Array:
    """64 channels of pixels (spatial, n) of some images (n,), zero outside."""
    inside = ((spot >= 0) & (spot < np.array(x.shape[1:-1])[:, None])).all(axis=0)
    channels = slice(channel, channel + 64)
    wide = np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, 64)])
    found = wide[(image, *np.where(inside, spot, 0), channels)]
    return np.where(inside[:, None], found, np.zeros(1, x.dtype))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_im2col(execute: Executor, name: str) -> None:
    """All windows of a convolution, tile by tile, the last one hanging over the last image."""
    shape, filters, padding, steps, dilation = CONVOLUTIONS[name]
    pixels, channel = 48, 16 if shape[-1] > 64 else 0  # channels behind the last one are zero
    lower = tuple(-p for p in padding)
    rows = zip(padding, filters, dilation, strict=True)
    upper = tuple(p - (f - 1) * d for p, f, d in rows)
    out = (np.array(shape[1:-1]) + upper - lower - 1) // steps + 1
    image, *index = np.indices((shape[0], *out)).reshape(1 + len(out), -1)
    corner = np.array(index) * np.array(steps)[:, None] + np.array(lower)[:, None]
    x = numbers(int(np.prod(shape)), BF16).reshape(shape)
    tiles, places = range(0, len(image), pixels), list(itertools.product(*map(range, filters)))
    at = [
        (image[tile], *corner[:, tile], channel, *np.multiply(place, dilation))
        for tile, place in itertools.product(tiles, places)
    ]
    y = np.full((len(at), pixels * 64), EMPTY, BF16)
    statics = {"corners": (lower, upper), "strides": steps, "pixels": pixels}
    got = execute(windows, len(at), THREADS, x, np.array(at, np.int32), y, **statics)[2]
    for row, (tile, place) in zip(got, itertools.product(tiles, places), strict=True):
        spot = corner + np.multiply(place, dilation)[:, None]
        want = np.zeros((pixels, 64), BF16)
        chosen = pixels_of(x, image, spot, channel)[tile : tile + pixels]
        want[: len(chosen)] = chosen
        np.testing.assert_array_equal(row.reshape(64, pixels).T, want)


# -- clusters, runs of bytes -----------------------------------------------------------------------
@kd.kernel
def multicasts(x: kd.Tensor["f16", "m k"], y: kd.Tensor["f16", "b t"], sharers: kd.Static):
    """The blocks of a cluster that share a tile load a part of it each, for all of them.

    Blocks whose ranks are equal modulo (blocks of the cluster / sharers) share.
    """
    apart = kd.cluster_dim()[0] // sharers
    rank, part = kd.cluster_rank(), 32 // sharers
    stage, bar = kd.smem(kd.f16, one_stage(kd.atoms.shared_operand("f16", (32, 64)))), kd.mbarrier()
    share, group = rank // apart, rank % apart
    target = stage.tile((part, 64), (share, 0))
    load = kd.tma_load(x, target, (part, 64))
    begin(bar, 32 * 64 * 2)
    kd.cluster_sync()
    if kd.thread_rank() == 0:
        mask = sum(1 << apart * other for other in range(sharers))
        row = (kd.cluster_idx()[0] * apart + group) * 32 + share * part
        load(target, (row, 0), bar, multicast=(group * 0 + mask) << group, cache="evict_last")
    bar.wait(0)
    pour(stage, y[kd.block_idx()[0], None], kd.size(stage))
    kd.cluster_sync()


@pytest.mark.parametrize(("blocks", "sharers"), [(2, 2), (4, 4), (4, 2)])
def test_multicast(execute: Executor, blocks: int, sharers: int) -> None:
    """Every block of two clusters has the whole tile that it shares."""
    apart = blocks // sharers
    x = numbers(2 * apart * 32 * 64, np.float16).reshape(-1, 64)
    y = np.full((2 * blocks, 32 * 64), EMPTY, np.float16)
    got = execute(multicasts, 2 * blocks, THREADS, x, y, cluster=blocks, sharers=sharers)[1]
    tiles = x.reshape(2, apart, 32, 64)
    for block in range(2 * blocks):
        want = tiles[block // blocks, block % apart].ravel(order="F")
        np.testing.assert_array_equal(got[block], want)


@kd.kernel
def runs(x: kd.Tensor[TYPES, "n"], y: kd.Tensor["=x", "n"], count: kd.Static, how: kd.Static):
    """Each block moves a run of `count` elements through shared memory, rotated by one."""
    stage, bar = kd.smem(x.dtype, count), kd.mbarrier()
    turned = kd.smem(x.dtype, count)
    begin(bar, count * x.dtype.bytes)
    block = kd.block_idx()[0]
    if kd.thread_rank() == 0:
        kd.bulk_load(x.tile((count,), (block,)), stage, count, bar, cache="evict_first")
    kd.sync_threads()
    bar.wait(0)
    for turn in kd.range(-(-count // THREADS)):
        i = turn * THREADS + kd.thread_rank()
        if i < count:
            turned[(i + 1) % count] = stage[i]
    kd.fence_proxy_async()
    kd.sync_threads()
    if kd.thread_rank() == 0:
        kd.bulk_store(turned, y.tile((count,), (block,)), count, reduce=how)
        kd.tma_store_commit()
        kd.tma_store_wait(0, read=False)


@pytest.mark.parametrize(
    ("dtype", "how"),
    [("u8", None), *itertools.product(("bf16", "i32"), (None, "add", "min")), ("f32", "add")],
)
def test_runs(execute: Executor, dtype: str, how: str | None) -> None:
    """Runs of 16-byte units, of which only whole blocks are touched."""
    kind = kd.dtypes.dtype_of(dtype)
    count = 16 // kind.bytes * 5
    x, y = (numbers(count * 4, kind.numpy, seed) for seed in (0, 1))
    got = execute(runs, 3, THREADS, x, y, count=count, how=how)[1]
    turned = np.roll(x.reshape(4, count), 1, axis=1).ravel()
    whole = turned if how is None else combined(how, y, turned)
    np.testing.assert_array_equal(got, np.concatenate([whole[: 3 * count], y[3 * count :]]))


def test_coordinates_within_16_bytes(execute: Executor) -> None:
    """The innermost coordinate is a multiple of 16 bytes: the H200 traps where it is none."""
    layout, tile, view = operand("bf16", 128, "K")
    x, at = numbers(int(kd.cosize(view)) + 64, BF16), np.array([(0, 8), (3, 4)], np.int32)
    y = np.full((2, tile[0] * tile[1]), EMPTY, BF16)
    statics = {"view": view, "shared": one_stage(layout), "tile": tile}
    with pytest.raises(kd.HazardError, match=r"misaligned.*element 4 of a line.*8 elements"):
        loads[2, THREADS](x, at, y, **statics)
    execute(loads, 1, THREADS, x, at, y, **statics)


@pytest.mark.parametrize("start", [(-3, 0), (0, -8), (2, -16)])
@pytest.mark.parametrize("reduce", [None, "add"])
def test_stores_start_in_the_tensor(start: tuple[int, int], reduce: str | None) -> None:
    """A store that starts before the tensor is a hazard: the H200 ends the kernel there."""
    layout, tile, view = operand("bf16", 128, "K")
    view = whole_lines(view, 2)
    x, at = numbers(tile[0] * tile[1], BF16)[None], np.array([start], np.int32)
    y = np.full(int(kd.cosize(view)), EMPTY, BF16)
    statics = {"view": view, "shared": one_stage(layout), "tile": tile, "reduce": reduce}
    with pytest.raises(kd.HazardError, match=r"oob.*only loads may start before the tensor"):
        stores[1, THREADS](x, at, y, **statics)
