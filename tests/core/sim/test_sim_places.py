"""Bytes of shared memory are named by the element that the tensor's layout puts there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.layout import AnyLayout, idx2crd, product_each, size
from kdsl_core.sim.places import coordinate_at, stages_of

LAYOUTS: list[AnyLayout] = [
    kd.Layout(7),
    kd.Layout((8, 32), (33, 1)),  # padded rows
    kd.Layout((3, 4), (5, 17)),
    kd.Layout((5, 6), (3, 2)),  # modes that interleave, and some places that two elements share
    kd.Layout(((2, 4), (3, 2)), ((1, 24), (2, 6))),
    kd.Layout((4, 8), (0, 1)),
    kd.ComposedLayout(kd.Swizzle(2, 1, 3), 0, kd.Layout((8, 8), (8, 1))),
    kd.ComposedLayout(kd.Swizzle(2, 1, 3), 64, kd.Layout((8, 8), (8, 1))),
    kd.atoms.shared_operand(kd.bf16, (64, 128), stages=2),
    kd.atoms.shared_operand(kd.bf16, (64, 32), major="MN", stages=3),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_coordinate_of_every_place(layout: Any) -> None:
    """By definition: the coordinate found has the place, and where none has, none is found."""
    extents = product_each(layout.shape)
    holds = {int(layout(idx2crd(i, extents))) for i in range(int(size(layout)))}
    for place in range(max(holds) + 3):
        found = coordinate_at(layout, place)
        assert (found is not None) == (place in holds), place
        if found is not None:
            assert all(0 <= c < n for c, n in zip(found, extents, strict=True))
            assert int(layout(found)) == place


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        (kd.atoms.shared_operand(kd.bf16, (128, 64), stages=3), 3),
        (kd.atoms.shared_operand(kd.bf16, (128, 64), stages=1), None),
        (kd.Layout((4, 8, 2)), 2),
        (kd.Layout((4, 8, 2), (16, 2, 1)), None),  # the last mode's elements are neighbours
        (kd.Layout((4, 8)), None),
    ],
)
def test_stages(layout: Any, stages: int | None) -> None:
    """A third mode whose indices have a piece of memory each counts stages."""
    assert stages_of(layout) == stages


@kd.kernel
def one_is_missing(x: kd.Tensor["f32", "n"], row: kd.Static, column: kd.Static, stage: kd.Static):
    """All elements of a swizzled ring but one are written, and all are read, four at a time."""
    tile = kd.smem(
        kd.f32,
        kd.ComposedLayout(kd.Swizzle(2, 2, 3), 0, kd.Layout((8, 32, 2), (32, 1, 256))),
        name="ring",
    )
    i = kd.thread_idx()[0]
    for r in range(8):
        for s in range(2):
            tile.store((r, i, s), 1.0, True if (r, s) != (row, stage) else i != column)
    kd.sync_threads()
    four = kd.rmem(kd.f32, 4)
    for s in range(2):
        for r in range(8):
            if i < 8:
                kd.copy(kd.local_tile(tile[r, None, s], (4,), (i,)), four)
                x[i] = four[0] + four[1] + four[2] + four[3]


@pytest.mark.parametrize("missing", [(0, 0, 0), (5, 30, 1), (7, 31, 0)])
def test_element_of_a_swizzled_ring(missing: tuple[int, int, int]) -> None:
    """Of a vector that is read, the very element is named, with its stage; the address follows."""
    result = kd.simulate(
        one_is_missing, grid=1, block=32, args=(np.zeros(32, np.float32), *missing),
        on_hazard="collect",
    )  # fmt: skip
    (hazard,) = result.hazards
    name = f"ring[{', '.join(map(str, missing))}]"
    assert hazard.code == "uninit" and f"reads {name}, which" in hazard.message
    place = hazard.place
    assert place is not None
    assert (place.tensor, place.coordinate, place.stage) == ("ring", missing, missing[2])
    text = str(hazard)
    assert f"{name} lies in stage {missing[2]} of 2" in text
    assert f"{hazard.address:#x}" in text and f"{hazard.address:#x}" not in hazard.message


@kd.kernel
def reads_before_tma_is_done(A: kd.Tensor["bf16", "m k"], x: kd.Tensor["f32", "n"]):
    """One element of a tile that TMA still fills is read."""
    tile = kd.smem(A.dtype, kd.atoms.shared_operand(A.dtype, (64, 64), stages=2), name="tile")
    load = kd.tma_load(A, tile[..., 0], (64, 64))
    full = kd.mbarrier(1, count=2, name="full")
    if kd.thread_rank() == 0:
        full.init()
        kd.fence_mbarrier_init()
    kd.sync_threads()
    if kd.thread_rank() == 0:
        full[1].arrive_expect(load.bytes)
        load(tile[..., 1], (0, 0), full[1])
        x[0] = tile[37, 21, 1].to(kd.f32)
        full[1].wait(0)


def test_element_that_tma_writes() -> None:
    """The swizzled tile's element is found, and the mbarrier that would have said that it came."""
    a, x = np.ones((64, 64), ml_dtypes.bfloat16), np.zeros(1, np.float32)
    result = kd.simulate(
        reads_before_tma_is_done, grid=1, block=32, args=(a, x), on_hazard="collect"
    )
    (hazard,) = result.hazards
    assert hazard.code == "inflight"
    assert "reads tile[37, 21, 1], which an asynchronous transfer (to mbarrier full[1])" in str(
        hazard
    )
    assert hazard.fix is not None and "wait for mbarrier full[1]" in hazard.fix


@kd.kernel
def beside_the_elements(x: kd.Tensor["f32", "n"]):
    """Rows of three elements in a pitch of four: the fourth column belongs to nobody."""
    rows = kd.smem(kd.f32, kd.Layout((3, 8), (1, 4)), name="rows")
    x[0] = kd.recast(rows, kd.f32, 31)[7]


def test_place_between_the_elements() -> None:
    """A byte of the allocation that is no element's is called by its number."""
    x = np.zeros(1, np.float32)
    result = kd.simulate(beside_the_elements, grid=1, block=1, args=(x,), on_hazard="collect")
    (hazard,) = result.hazards
    assert "byte 28 of shared rows, where none of its elements lies" in hazard.message


@kd.kernel
def one_step_too_far(x: kd.Tensor["f32", "m n"], row: kd.Static, column: kd.Static):
    """An element that the tensor does not have."""
    x[kd.thread_idx()[0] + row, column] = 1.0


@pytest.mark.parametrize(
    ("row", "column", "named"),
    [
        (4, 2, "x[4, 2], 8 bytes behind x(4, 8)"),
        (-1, 7, "x[-1, 7], 4 bytes before x(4, 8)"),
        (1 << 20, 0, "bytes behind x(4, 8)"),
    ],
)
def test_element_beyond_the_tensor(row: int, column: int, named: str) -> None:
    """A stray index is named as one; an address far away is no element of anything."""
    x = np.zeros((4, 8), np.float32)
    result = kd.simulate(
        one_step_too_far, grid=1, block=1, args=(x, row, column), on_hazard="collect"
    )
    (hazard,) = result.hazards
    assert hazard.code == "oob" and named in hazard.message
    assert ("global address" in hazard.message) == (row > 4)
    assert hazard.place is not None and hazard.place.coordinate is None
