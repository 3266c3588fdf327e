"""Thread-value layouts and vector widths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layout.strategies import values
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    holders,
    invert_tv,
    make_tv_layout,
    same_function,
    vector_width,
)


@given(*[st.sampled_from([1, 2, 4, 8])] * 4, st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_element_has_one_holder(tm: int, tn: int, vm: int, vn: int, row: bool) -> None:
    """Thread (i, j) holds the vm × vn block at (i·vm, j·vn)."""
    threads = Layout((tm, tn), (tn, 1)) if row else Layout((tm, tn))
    vals = Layout((vm, vn))
    tile, tv = make_tv_layout(threads, vals)
    assert tile == (tm * vm, tn * vn)
    for i in range(tm):
        for j in range(tn):
            for p in range(vm):
                for q in range(vn):
                    index = (i * vm + p) + tile[0] * (j * vn + q)
                    assert tv(threads(i, j), vals(p, q)) == index
    assert [tv(invert_tv(tv)(i)) for i in range(tile[0] * tile[1])] == values(
        Layout(tile[0] * tile[1])
    )
    assert all(len(owners) == 1 for owners in holders(tv).values())


def test_numberings_that_repeat_are_refused() -> None:
    """Two threads with one number, or a gap, are an error."""
    with pytest.raises(LayoutError, match="K170"):
        make_tv_layout(Layout((4, 8), (0, 1)), Layout((1, 2)))
    with pytest.raises(LayoutError, match="K171"):
        invert_tv(Layout((4, 2), (2, 4)))


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16]))
@settings(max_examples=60, deadline=None)
def test_vectors_are_contiguous_and_aligned(run: int, pitch: int, align: int) -> None:
    """Every vector of the width found starts aligned and runs on."""
    layout = Layout((run, 3), (1, pitch))
    width = vector_width(layout, align)
    offsets = values(layout)
    for start in range(0, len(offsets), width):
        first = offsets[start]
        assert first % width == 0 and align % width == 0
        assert offsets[start : start + width] == list(range(first, first + width))


def test_swizzles_bound_the_vector() -> None:
    """Neighbours stay together for 2**base elements."""
    tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 8), (1, 64)))
    assert vector_width(tile, 64) == 8
    assert vector_width(tile.with_inner(tile.inner, 4), 64) == 4


def test_equality_as_functions() -> None:
    """Form does not matter, values do."""
    assert same_function(Layout((2, (1, 4))), Layout(8))
    assert not same_function(Layout((2, 4), (4, 1)), Layout(8))
    swizzled = ComposedLayout(Swizzle(1, 0, 3), 0, Layout(8))
    assert same_function(swizzled, Layout(8))
