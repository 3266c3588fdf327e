"""TMA words: which boxes fill a shared tile, what a launch makes of tensor maps, and refusals."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from core.isa.bench import assembler
from kdsl_core.errors import ArgumentError, KdslError, LayoutError, StagingError, TypeMismatch
from kdsl_core.ir import TensorMap
from kdsl_core.lang.arguments import bind
from kdsl_core.lang.tma_boxes import Boxes, boxes_of
from kdsl_core.layout import ComposedLayout, Layout, Swizzle

operand = kd.atoms.shared_operand
# (dtype, shared layout of a tile, tile, contiguous mode)
TILES = [
    (kd.bf16, operand("bf16", (128, 64)), (128, 64), 1),
    (kd.bf16, operand("bf16", (128, 128)), (128, 128), 1),
    (kd.bf16, operand("bf16", (128, 64), major="MN"), (128, 64), 0),
    (kd.f16, operand("f16", (64, 32), swizzle=64), (64, 32), 1),
    (kd.f16, operand("f16", (16, 48), swizzle=32), (16, 48), 1),
    (kd.e4m3, operand("e4m3", (64, 256)), (64, 256), 1),
    (kd.f32, operand("f32", (64, 64)), (64, 64), 1),
    (kd.bf16, operand("bf16", (128, 32), swizzle=0), (128, 32), 1),
    (kd.f32, Layout((8, 512), (512, 1)), (8, 512), 1),
    (kd.f32, Layout((512, 8)), (512, 8), 0),
    (kd.bf16, Layout((16, 8, 4, 2)), (16, 8, 4, 2), 0),
    (kd.bf16, Layout((64, 3), (1, 128)), (64, 3), 0),
    (kd.f32, Layout((4, 8, 8), (64, 8, 1)), (4, 1, 8, 8), 3),
]


def parts(layout: Any) -> tuple[Layout, Swizzle | None]:
    """A shared layout's plain layout and swizzle; stages dropped."""
    if not isinstance(layout, ComposedLayout):
        return layout, None
    return kd.make_layout(*(layout.inner[i] for i in range(2))), layout.outer


def written(boxes: Boxes, item: int) -> dict[int, tuple[int, ...]]:
    """What the TMA unit does: shared byte → the element of the tile that it starts."""
    found = {}
    for start, place in boxes.starts:
        extents = [range(boxes.box[mode]) for mode in boxes.order]
        # the first dimension is the fastest
        for number, at in enumerate(itertools.product(*reversed(extents))):
            byte = (place + number) * item
            if boxes.swizzle:
                byte ^= (byte >> 7 & (boxes.swizzle // 16 - 1)) << 4
            element = list(start)
            for mode, index in zip(boxes.order, reversed(at), strict=True):
                element[mode] += index
            assert byte not in found
            found[byte] = tuple(element)
    return found


@pytest.mark.parametrize(("dtype", "layout", "tile", "inner"), TILES)
def test_boxes_fill_the_tile(dtype: Any, layout: Any, tile: tuple[int, ...], inner: int) -> None:
    """Every element of the tile lands where the layout and its swizzle say."""
    plain, swizzle = parts(layout)
    boxes = boxes_of(plain, swizzle, dtype, tile, inner)
    found = written(boxes, dtype.bytes)
    expected = {}
    kept = [m for m, extent in enumerate(tile) if extent > 1 or len(plain) == len(tile)]
    for element in itertools.product(*map(range, tile)):
        offset = plain(tuple(element[m] for m in kept))
        expected[(swizzle(offset) if swizzle else offset) * dtype.bytes] = element
    assert found == expected
    assert boxes.order[0] == inner and all(extent <= 256 for extent in boxes.box)


def test_a_tile_of_one_panel_is_one_box() -> None:
    """128 × 64 bf16 is one copy, 128 × 128 two, one for each swizzled panel."""
    counts = [len(boxes_of(*parts(row[1]), row[0], row[2], row[3]).starts) for row in TILES[:3]]
    assert counts == [1, 2, 2]


@pytest.mark.parametrize(
    ("code", "layout", "tile", "inner", "why"),
    [
        ("K455", Layout((64, 64)), (64, 64), 1, "does not transpose"),
        ("K455", Layout((64, 64), (72, 1)), (64, 64), 1, "no multiple of 128"),
        ("K455", Layout((64, 12), (12, 1)), (64, 12), 1, "a multiple of 16"),
        ("K455", Layout((512, 8), (64, 1)), (512, 8), 1, "512 boxes"),
        ("K455", Layout((8, 8), (0, 1)), (8, 8), 1, "share a place"),
        ("K456", Layout((64, 64), (64, 1)), (64, 32), 1, "does not hold"),
        ("K456", Layout((64, 64), (64, 1)), (64, 64, 2), 1, "does not hold"),
    ],
)
def test_layouts_without_boxes(
    code: str, layout: Layout, tile: tuple[int, ...], inner: int, why: str
) -> None:
    """The refusal says why no boxes produce the layout."""
    with pytest.raises(LayoutError, match=why) as caught:
        boxes_of(layout, None, kd.bf16, tile, inner)
    assert caught.value.code == code


def test_swizzles_that_tma_lacks() -> None:
    """Units of 16 bytes, and lines as wide as the swizzle."""
    with pytest.raises(LayoutError, match="units of 32 bytes"):
        boxes_of(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3), kd.bf16, (8, 64), 1)
    with pytest.raises(LayoutError, match="the swizzle's 128"):
        boxes_of(Layout((8, 32), (32, 1)), Swizzle(3, 3, 3), kd.bf16, (8, 32), 1)


# -- kernels -------------------------------------------------------------------------------------
@kd.kernel
def moves(x: kd.Tensor["bf16", "m k b"], y: kd.Tensor["bf16", "k m"]) -> None:
    """Loads and stores through two maps, one of them asked for twice."""
    stages = kd.smem(kd.bf16, operand("bf16", (64, 128), stages=3))
    bars = kd.mbarrier(1, count=3)
    load = kd.tma_load(x, stages[..., 0], (64, 128, 1))
    again = kd.tma_load(x, stages[..., 0], (64, 128, 1))
    store = kd.tma_store(y, stages[..., 0], (64, 128))
    load.prefetch()
    if kd.thread_idx()[0] == 0:
        for i in kd.range(4):
            bars[i % 3].arrive_expect(load.bytes)
            load(stages[..., i % 3], (i * 64, 128, 1), bars[i % 3], cache="evict_first")
        again(stages[..., 1], (0, -64, 0), bars[1], multicast=3, pred=kd.lane_idx() == 0)
        store(stages[..., 2], (0, 64), reduce="add")
        kd.tma_store_commit()
        kd.tma_store_wait(0)


def specs() -> tuple[Any, Any]:
    """x (m, k, b) with rows along k, and y (k, m)."""
    return kd.spec("bf16", (96, 136, 2), strides=(136, 1, 96 * 136)), kd.spec("bf16", (136, 96))


def maps_of(kernel: Any, *args: Any) -> list[TensorMap]:
    """The tensor maps that a call's launch makes."""
    bound = bind(kernel.signature, args, {})
    traced = kernel.trace(bound, (32, 1, 1))
    return [v for v in traced.values(bound) if isinstance(v, TensorMap)]


def test_maps_hold_the_call_s_numbers() -> None:
    """Sizes, strides and boxes come innermost first; equal maps are one parameter."""
    x, y = specs()
    loads, stores = maps_of(moves, x, y)
    assert (loads.tensor, loads.sizes, loads.strides) == ("x", (136, 96, 2), (272, 26112))
    assert (loads.shape.box, loads.shape.swizzle) == ((64, 64, 1), 128)
    assert (stores.sizes, stores.strides, stores.shape.box) == ((96, 136), (192,), (64, 64))
    bigger = kd.spec("bf16", (200, 136, 2), strides=(136, 1, 200 * 136))
    assert maps_of(moves, bigger, kd.spec("bf16", (136, 200)))[0].sizes == (136, 200, 2)


def test_kernels_assemble(tmp_path: Path) -> None:
    """Maps are aligned parameters whose addresses are taken, and the module tells their type."""
    module = moves.module(*specs(), target="sm_90a", block=32, cluster=2)
    assert module.text.count(".param .align 64 .b8") == 2
    assert [dtype.name for _, dtype in module.params][-2:] == ["tensor_map"] * 2
    (tmp_path / "k.ptx").write_text(module.text)
    command = [assembler(), "-arch=sm_90a", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def views(build: Any) -> Any:
    """A kernel of one tensor x (f32, m × k) that runs `build` on it."""

    @kd.kernel
    def run(x: kd.Tensor["f32", "m k"]) -> None:
        build(x)

    return run


def test_maps_of_views() -> None:
    """A view's start and sizes are computed from parameters by the host."""
    tile = Layout((8, 32), (32, 1))

    def build(x: Any) -> None:
        half = x.with_layout(Layout((x.shape[0] // 2, 32), (x.stride[0] * 2, 1)), 8)
        kd.tma_load(half, tile, (8, 32)).prefetch()

    x = kd.spec("f32", (50, 64), align=256)
    (made,) = maps_of(views(build), x)
    assert (made.address, made.sizes, made.strides) == (256 + 32, (32, 25), (512,))


def in_branch(x: kd.Tensor["f32", "m k"]) -> None:
    """Makes its map inside a branch."""
    if kd.thread_idx()[0] == 0:
        kd.tma_load(x, Layout((8, 32), (32, 1)), (8, 32)).prefetch()


def test_equal_calls_make_their_maps_once() -> None:
    """A launch with parameters seen before computes nothing; control flow does not matter."""
    kernel, x = kd.kernel(in_branch), kd.spec("f32", (64, 64))
    (first,), (second,) = maps_of(kernel, x), maps_of(kernel, x)
    assert first is second and first.sizes == (64, 64)
    assert "prefetch.tensormap" in kernel.ptx(x, target="sm_90a", block=32)


def refused(build: Any, x: Any = None) -> KdslError:
    """The error that tracing a kernel which runs `build` raises."""
    with pytest.raises(KdslError) as caught:
        maps_of(views(build), kd.spec("f32", (64, 64)) if x is None else x)
    assert caught.value.loc is not None
    return caught.value


def test_what_no_map_can_hold() -> None:
    """Blocks decide coordinates, not maps; pitches are known multiples of 16 bytes."""
    tile = Layout((8, 32), (32, 1))

    def by_block(x: Any) -> None:
        kd.tma_load(x.tile((32, 32), (kd.block_idx()[0], 0)), tile, (8, 32))

    def plain(x: Any) -> None:
        kd.tma_load(x, tile, (8, 32))

    error = refused(by_block)
    assert error.code == "K453" and isinstance(error, StagingError)
    assert "coordinates" in str(error.fix)
    error = refused(plain, kd.spec("f32", (64, 63)))
    assert error.code == "K454" and "stride of mode 0 is a multiple of 4 bytes" in str(error)
    assert refused(plain, kd.spec("f32", (64, 64), strides=(256, 4))).code == "K454"
    assert refused(lambda x: kd.tma_load(x, tile, (8,))).code == "K454"


def test_tiles_and_coordinates_of_a_call() -> None:
    """A call takes a tile of the same layout, well aligned, and one coordinate a mode."""
    layout = operand("f32", (16, 32))

    def call(pick: Any, coord: Any) -> Any:
        def build(x: Any) -> None:
            shared = kd.smem(kd.f32, layout)
            load = kd.tma_load(x, shared[..., 0], (16, 32))
            load(pick(shared), coord, kd.mbarrier())

        return build

    error = refused(call(lambda s: s[None, None, 0].tile((8, 32), (0, 0)), (0, 0)))
    assert error.code == "K459" and isinstance(error, TypeMismatch)
    assert refused(call(lambda s: s[..., 0], (0,))).code == "K458"
    moved = refused(call(lambda s: s[..., 0].with_layout(s[..., 0].layout, 32), (0, 0)))
    assert moved.code == "K457" and "known is 128" in str(moved)


def test_boxes_start_at_whole_16_bytes() -> None:
    """A known coordinate along the contiguous mode is a multiple of 16 bytes; others are free."""
    layout = Layout((8, 32), (32, 1))

    def load(x: Any, coord: Any) -> None:
        kd.tma_load(x, layout, (8, 32))(kd.smem(kd.f32, layout), coord, kd.mbarrier())

    for coord in ((3, 2), (0, -1)):
        error = refused(lambda x, coord=coord: load(x, coord))
        assert error.code == "K460" and isinstance(error, LayoutError)
        assert (
            f"multiple of 4 elements (16 bytes) along the contiguous mode, got {coord[1]}"
            in str(error)
        )
    x = kd.spec("f32", (64, 64))
    assert "{-4, 3}" in views(lambda x: load(x, (3, -4))).ptx(x, target="sm_90a", block=32)
    store = refused(lambda x: kd.tma_store(x, layout, (8, 32))(kd.smem(kd.f32, layout), (0, 6)))
    assert store.code == "K460"


def test_stores_start_in_the_tensor() -> None:
    """A store may not start before the tensor, along whichever mode; a load may."""
    layout = Layout((8, 32), (32, 1))
    x = kd.spec("f32", (64, 64))

    def store(x: Any, coord: Any) -> None:
        kd.tma_store(x, layout, (8, 32))(kd.smem(kd.f32, layout), coord)

    for coord in ((-1, 0), (0, -4), (3, -4)):
        error = refused(lambda x, coord=coord: store(x, coord))
        assert error.code == "K462" and isinstance(error, LayoutError)
        assert f"coordinates of 0 or more, got {min(coord)}" in str(error)
    assert "{80, 90}" in views(lambda x: store(x, (90, 80))).ptx(x, target="sm_90a", block=32)


def test_stores_have_whole_rows() -> None:
    """Rows that end inside of 16 bytes are loaded and not stored: what follows would be lost."""
    layout = Layout((8, 32), (32, 1))

    def store(x: Any) -> None:
        kd.tma_store(x, layout, (8, 32))

    error = refused(lambda x: store(x.with_layout(Layout((64, 62), (64, 1)))))
    assert error.code == "K461" and isinstance(error, LayoutError)
    assert "62 elements along mode 1, a multiple of 248 bytes" in str(error)
    whole = views(lambda x: store(x.with_layout(Layout((64, 60), (64, 1)))))
    assert whole.ptx(kd.spec("f32", (64, 64)), target="sm_90a", block=32)


def test_simulated_arrays_obey_the_same_limits() -> None:
    """A NumPy array that the TMA unit could not describe is refused at the launch."""
    tile = Layout((8, 32), (32, 1))

    def build(x: Any) -> None:
        kd.tma_load(x, tile, (8, 32)).prefetch()

    wide = np.zeros((64, 68), np.float32)
    for x, code in (
        (wide[:, 2:], "K631"),  # starts 8 bytes into a line
        (kd.spec("f32", (64, 64), align=8), "K631"),
        (kd.spec("f32", (0, 64)), "K632"),
        (kd.spec("f32", (64, 64), strides=(1 << 38, 1)), "K633"),
        (kd.spec("f32", (64, 64), strides=(-64, 1)), "K633"),
    ):
        with pytest.raises(ArgumentError, match="x cannot be copied by TMA") as caught:
            maps_of(views(build), x)
        assert caught.value.code == code
    with pytest.raises(ArgumentError, match="K631"):
        kd.simulate(views(build), grid=1, block=32, args=[wide[:, 2:]])
    kd.simulate(views(build), grid=1, block=32, args=[wide[:, 4:]])


def test_grids_are_whole_clusters() -> None:
    """A grid that clusters do not divide is refused before anything runs."""
    kernel = views(lambda x: None)
    x = np.zeros((8, 8), np.float32)
    with pytest.raises(ArgumentError, match=r"\(3, 1, 1\) blocks, clusters of \(2, 1, 1\)"):
        kernel.configure(grid=3, block=32, cluster=2)(x)
    with pytest.raises(ArgumentError) as caught:
        kd.simulate(kernel, grid=3, block=32, cluster=2, args=[x])
    assert caught.value.code == "K636"


@kd.kernel
def every_third(x: kd.Tensor["f32"], y: kd.Tensor["f32"], steps: kd.Static):
    """One tile of every third column."""
    stage = kd.smem(x.dtype, Layout((3, 5, 4), (20, 4, 1)), name="stage")
    load, full = kd.tma_load(x, stage, (3, 5, 4), steps=steps), kd.mbarrier()
    if kd.thread_rank() == 0:
        full.init()
        kd.fence_mbarrier_init()
        full.arrive_expect(load.bytes)
        load(stage, (0, -2, 4), full)
    kd.sync_threads()
    full.wait(0)
    for i in kd.range(kd.lane_idx(), 60, 32):
        y[i] = kd.recast(stage, kd.f32, Layout(60))[i]


def test_loads_with_steps() -> None:
    """Every n-th element of a mode, those outside of the tensor as zeros."""
    x = np.arange(4 * 11 * 8, dtype=np.float32).reshape(4, 11, 8)
    y = np.full(60, np.nan, np.float32)
    kd.simulate(every_third, grid=1, block=32, args=(x, y), kwargs={"steps": (1, 3, 1)})
    padded = np.pad(x, ((0, 0), (2, 3), (0, 0)))
    np.testing.assert_array_equal(y.reshape(3, 5, 4), padded[:3, ::3, 4:][:, :5])
    for steps in ((1, 3), (1, 9, 1), (1, 0, 1), (1, 1, 2)):
        with pytest.raises(LayoutError) as refused:
            kd.simulate(every_third, grid=1, block=32, args=(x, y), kwargs={"steps": steps})
        assert refused.value.code == "K463"


def test_im2col_maps() -> None:
    """Corners, strides and boxes of a 3 × 3 convolution's pixels."""

    @kd.kernel
    def pixels(x: kd.Tensor["bf16", "n h w c"]) -> None:
        shared = kd.smem(kd.bf16, operand("bf16", (128, 128)))
        load = kd.tma_im2col(x, shared[..., 0], lower=(-1, -1), upper=(-1, -1), strides=(2, 1))
        load(shared[..., 0], (0, 4, 5, 64), (1, 2), kd.mbarrier())

    x = kd.spec("bf16", (2, 14, 14, 128))
    (made,) = maps_of(pixels, x)
    walk = made.shape.im2col
    assert walk is not None and (walk.channels, walk.pixels) == (64, 128)
    assert (made.sizes, made.shape.element_strides) == ((128, 14, 14, 2), (1, 1, 2, 1))
    text = pixels.ptx(x, target="sm_90a", block=32)
    assert "{64, 5, 4, 0}" in text and "{128, 5, 4, 0}" in text and "{2, 1}" in text


def test_bulk_words() -> None:
    """Runs of elements whose places and sizes are multiples of 16 bytes."""

    def build(x: Any) -> None:
        shared = kd.smem(kd.f32, 64)
        kd.bulk_load(x[0, None], shared, 64, kd.mbarrier(), cache="evict_last")
        kd.bulk_store(shared, x[1, None], 32, reduce="add")

    text = views(build).ptx(kd.spec("f32", (64, 64)), target="sm_90a", block=32)
    assert "cp.async.bulk.shared::cluster.global" in text
    assert "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32" in text
    error = refused(lambda x: kd.bulk_load(x, kd.smem(kd.f32, 64), 5, kd.mbarrier()))
    assert error.code == "K227" and "20 bytes" in str(error)
