"""Layouts with run-time integers: right values, no decisions, no useless code."""

from __future__ import annotations

from typing import Any

import pytest

from core.layout.dynamic import Dyn, known
from core.layout.golden import encode
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    append,
    ceil_div,
    composition,
    cosize,
    domain_offset,
    flatten,
    get,
    group_modes,
    idx2crd,
    is_static,
    local_partition,
    local_tile,
    logical_divide,
    make_identity_layout,
    right_inverse,
    select,
    size,
    slice_and_offset,
    vector_width,
    zipped_divide,
)


@pytest.fixture(autouse=True)
def _fresh_trace() -> None:
    Dyn.trace.clear()


def matrix(m: int, n: int) -> tuple[Layout, Dyn, Dyn]:
    """A row-major matrix of run-time size."""
    rows, columns = Dyn(m), Dyn(n)
    return Layout((rows, columns), (columns, 1)), rows, columns


def test_construction_decides_and_computes_nothing() -> None:
    """A dynamic layout is a value at once; its hash and equality go by identity."""
    layout, rows, columns = matrix(30, 20)
    assert not is_static(layout) and Dyn.trace == []
    assert layout == Layout((rows, columns), (columns, 1))
    assert layout != Layout((Dyn(30), Dyn(20)), (columns, 1))
    assert hash(layout) == hash(Layout((rows, columns), (columns, 1)))


def test_calls_emit_only_what_is_needed() -> None:
    """Static 0 and 1 fold away."""
    layout, _, _ = matrix(30, 20)
    assert layout(0, 0) == 0 and Dyn.trace == []
    assert known(layout(Dyn(3), Dyn(4))) == 64 and Dyn.trace == ["*", "+"]
    Dyn.trace.clear()
    assert known(layout(1, Dyn(5))) == 25 and Dyn.trace == ["+"]


def test_index_and_coordinate_of_dynamic_shapes() -> None:
    """The last mode does not wrap, so one division and one remainder do."""
    layout, _, _ = matrix(30, 20)
    assert encode(idx2crd(Dyn(95), layout.shape)) == (5, 3)
    assert Dyn.trace == ["%", "//"]
    assert known(layout(Dyn(95))) == 5 * 20 + 3
    assert encode(idx2crd(Dyn(95), (8, (4, 4)))) == (7, (3, 2))
    assert encode(idx2crd(9, (Dyn(4), 2))) == (1, 2)


def test_structure_works_on_dynamic_leaves() -> None:
    """Measures and regrouping take no decision."""
    layout, rows, columns = matrix(30, 20)
    assert known(size(layout)) == 600 and known(cosize(layout)) == 600
    assert get(layout, 0).shape is rows and select(layout, 1, 0).shape == (columns, rows)
    assert flatten(group_modes(layout, 0, 2)).shape == layout.shape
    assert append(layout).stride[2] == 0


def test_slices_and_domain_offsets() -> None:
    """Offsets of run-time coordinates are run-time values."""
    layout, _, columns = matrix(30, 20)
    row, offset = slice_and_offset((Dyn(3), None), layout)
    assert row.shape == (columns,) and row.stride == (1,) and known(offset) == 60
    same, offset = domain_offset((Dyn(2), 5), layout)
    assert same is layout and known(offset) == 45


def test_a_static_tile_of_a_dynamic_mode() -> None:
    """s:d by t is (t, ceil_div(s, t)):(d, d·t)."""
    s, d = Dyn(30), Dyn(7)
    divided = logical_divide(Layout(s, d), 8)
    assert encode(divided) == ("layout", (8, 4), (7, 56))
    assert known(ceil_div(s, 8)) == 4 and ceil_div(s, 1) is s
    assert encode(composition(Layout(s, d), Layout((4, 2), (2, 1)))) == (
        "layout",
        (4, 2),
        (14, 7),
    )


def test_tiles_of_a_dynamic_matrix() -> None:
    """By-mode divides, and the tile at a run-time coordinate."""
    layout, _, _ = matrix(30, 20)
    zipped = zipped_divide(layout, (8, 16))
    assert encode(zipped) == ("layout", ((8, 16), (4, 2)), ((20, 1), (160, 16)))
    tile, offset = local_tile(layout, (8, 16), (Dyn(2), None))
    assert encode(tile) == ("layout", (8, 16, 2), (20, 1, 16)) and known(offset) == 320
    Dyn.trace.clear()
    tile, offset = local_tile(layout, (8, 16), (Dyn(2), Dyn(1)))
    assert known(offset) == 336 and Dyn.trace == ["*", "*", "*", "+"]  # no tiles are counted
    part, offset = local_partition(Layout((16, 32), (32, 1)), Layout((4, 8), (8, 1)), Dyn(13))
    assert part == Layout((4, 4), (128, 8)) and known(offset) == 37


def test_coordinate_tensors_of_dynamic_shapes() -> None:
    """Identity layouts tile like the tensors they mirror."""
    rows, columns = Dyn(30), Dyn(20)
    tile, offset = local_tile(make_identity_layout((rows, columns)), (8, 16), (Dyn(2), 1))
    assert encode(offset) == (16, 16)
    assert tile(3, 4) == (3, 4)
    assert encode(tile(3, 4) + offset) == (19, 20)


def test_static_prefixes_are_split_without_a_decision() -> None:
    """A batch of run-time many static tiles composes with what fits a tile."""
    layout = Layout((64, Dyn(5)), (1, Dyn(100)))
    assert composition(layout, Layout(8, 8)) == Layout(8, 8)
    assert encode(composition(layout, Layout(4, 64))) == ("layout", 4, 100)
    assert encode(right_inverse(Layout((16, Dyn(3)), (1, 16)))) == ("layout", (16, 3), (1, 16))


def test_swizzled_offsets_stay_inside() -> None:
    """A run-time slice of a swizzled tile evaluates to the swizzled address."""
    tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64, 3), (64, 1, 512)))
    stage, outside = slice_and_offset((None, None, Dyn(2)), tile)
    assert outside == 0 and not is_static(stage)
    assert known(stage(3, 8)) == tile(3, 8, 2)
    assert known(stage(Dyn(5), Dyn(9))) == tile(5, 9, 2)


def test_vector_width_uses_proven_facts_only() -> None:
    """A run-time stride proves nothing; a static inner run does."""
    assert vector_width(Layout((8, Dyn(4)), (1, 64)), 16) == 8
    assert vector_width(Layout((8, 4), (1, Dyn(64))), 16) == 1


@pytest.mark.parametrize(
    "decide",
    [
        lambda n: composition(Layout((n, 4), (1, 100)), Layout(8)),
        lambda n: logical_divide(Layout((n, n), (1, 100)), 4),
        lambda n: logical_divide(Layout(n), 4, exact=True),
        lambda n: composition(Layout((4, 8), (8, 1)), Layout(2, n)),
    ],
)
def test_decisions_are_refused_with_the_missing_fact(decide: Any) -> None:
    """Whatever hangs on a run-time value says what it needs."""
    with pytest.raises(LayoutError, match=r"K102.*need"):
        decide(Dyn(32))
