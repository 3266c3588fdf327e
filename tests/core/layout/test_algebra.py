"""Each operation of the algebra against its definition, evaluated at every coordinate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.layout.strategies import is_layout_of, layouts, values
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    blocked_product,
    coalesce,
    complement,
    composition,
    cosize,
    crd2idx,
    domain_offset,
    filter_layout,
    flat_divide,
    flatten,
    get,
    group_modes,
    idx2crd,
    left_inverse,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    max_common_vector,
    nullspace,
    product_each,
    raked_product,
    recast_layout,
    right_inverse,
    same_function,
    size,
    slice_,
    slice_and_offset,
    tile_to_shape,
    tiled_divide,
    weakly_congruent,
    zipped_divide,
)

MANY = settings(max_examples=60, deadline=None)


@given(layouts())
@MANY
def test_coalesce_and_flatten_keep_the_function(layout: Layout) -> None:
    """Same values, and no mode left that continues another."""
    merged = coalesce(layout)
    assert values(merged) == values(layout) == values(flatten(layout))
    assert coalesce(merged) == merged


@given(layouts())
@MANY
def test_index_and_coordinate_agree(layout: Layout) -> None:
    """idx2crd inverts the index, and calling on either gives the same offset."""
    for i in range(size(layout)):
        crd = idx2crd(i, layout.shape)
        assert layout(crd) == layout(i) and crd2idx(crd, layout.shape) == i


@given(layouts(), layouts())
@settings(max_examples=300, deadline=None)
def test_composition_is_exact_and_complete(a: Layout, b: Layout) -> None:
    """R(c) = a(b(c)) everywhere; refused only where no layout of b's profile exists."""
    wanted = [crd2idx(v, a) for v in values(b)]
    try:
        result = composition(a, b)
    except LayoutError as error:
        assert error.code == "K142" and "coordinate" in error.message
        assert not _representable(wanted, b)
        return
    assert values(result) == wanted
    assert weakly_congruent(b.shape, result.shape)


def _representable(wanted: list[int], b: Layout) -> bool:
    """Whether each leaf of b alone gives a layout and the leaves add up."""
    flat = flatten(Layout(b.shape))
    shape = flat.shape if isinstance(flat.shape, tuple) else (flat.shape,)
    strides = Layout(shape if len(shape) > 1 else shape[0])
    tables, before = [], 1
    for extent in shape:
        tables.append([wanted[i * before] for i in range(extent)])
        before *= extent
    if not all(map(is_layout_of, tables)):
        return False
    for i in range(size(strides)):
        crd = idx2crd(i, shape)
        if wanted[i] != sum(t[c] for t, c in zip(tables, crd, strict=True)):
            return False
    return True


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (Layout((8, 2), (2, 1)), Layout(2, 12), Layout(2, 9)),
        (Layout((3, 4), (4, 1)), Layout(3, 4), Layout(3, 5)),
        (Layout((2, 1), (1, 4)), Layout((8, 8), (1, 8)), Layout(((2, 4), 8), ((1, 4), 16))),
    ],
)
def test_composition_finds_what_exists(a: Layout, b: Layout, wanted: Layout) -> None:
    """Answers that a divisibility rule alone would miss."""
    assert composition(a, b) == wanted


def test_composition_refuses_with_a_witness() -> None:
    """The coordinate and the values are in the message."""
    with pytest.raises(LayoutError, match=r"coordinate 3 has value 2") as caught:
        composition(Layout((3, 6), (6, 1)), Layout(8, 2))
    assert caught.value.code == "K142"


def test_huge_modes_neither_hang_nor_overflow() -> None:
    """What cannot be decided value by value is refused, what divides is instant."""
    big = Layout((2**40, 2**40), (2**40, 1))
    assert composition(big, Layout(2**20, 2**30)).shape == (2**10, 2**10)
    with pytest.raises(LayoutError, match="K143"):
        composition(big, Layout(2**20 + 1, 2**30))


@given(layouts(injective=True), st.integers(1, 600))
@MANY
def test_complement_is_disjoint_and_covers(layout: Layout, target: int) -> None:
    """Sums of both are distinct, and they reach the target."""
    try:
        rest = complement(layout, target)
    except LayoutError as error:
        assert error.code in ("K140", "K141")
        return
    assume(size(layout) * size(rest) < 20_000)
    sums = {x + y for x in values(filter_layout(layout)) for y in values(rest)}
    assert len(sums) == size(filter_layout(layout)) * size(rest) >= target


def test_complement_of_overlapping_modes_is_refused() -> None:
    """No zero extents, no nonsense."""
    assert complement(Layout((2, 4), (1, 6)), 24) == Layout(3, 2)
    with pytest.raises(LayoutError, match="K140"):
        complement(Layout((4, 4), (1, 2)), 16)


@given(layouts())
@MANY
def test_right_inverse(layout: Layout) -> None:
    """layout(R(i)) = i."""
    inverse = right_inverse(layout)
    assert [layout(inverse(i)) for i in range(size(inverse))] == list(range(size(inverse)))


@given(layouts())
@MANY
def test_left_inverse(layout: Layout) -> None:
    """layout(L(layout(i))) = layout(i), or a refusal."""
    try:
        inverse = left_inverse(layout)
    except LayoutError as error:
        assert error.code == "K151"
        return
    for v in values(layout):
        assert layout(inverse(v)) == v


@given(layouts())
@MANY
def test_nullspace(layout: Layout) -> None:
    """Everything in the nullspace maps to 0."""
    kernel = nullspace(layout)
    assert all(layout(kernel(i)) == 0 for i in range(size(kernel)))


@given(layouts(), layouts())
@MANY
def test_max_common_vector(a: Layout, b: Layout) -> None:
    """There are that many coordinates at which both layouts count 0, 1, 2, ..."""
    n = max_common_vector(a, b)
    inverse = right_inverse(b)
    assert [a(inverse(i)) for i in range(n)] == [b(inverse(i)) for i in range(n)] == list(range(n))


@given(layouts(), st.integers(1, 12))
@MANY
def test_divide_by_a_tile(layout: Layout, tile: int) -> None:
    """Tile t, element e of the divide is element t·tile + e, also where the tile hangs over."""
    try:
        divided = logical_divide(layout, tile)
    except LayoutError as error:
        assert error.code == "K142"
        return
    assert size(divided) >= size(layout)
    for i in range(size(layout)):
        assert divided((i % tile, i // tile)) == crd2idx(i, layout)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
@MANY
def test_divides_agree_with_one_another(m: int, n: int, bm: int, bn: int) -> None:
    """Logical, zipped, tiled and flat divides hold the same elements under other groupings."""
    layout = Layout((m, n), (n, 1))
    logical, zipped = logical_divide(layout, (bm, bn)), zipped_divide(layout, (bm, bn))
    tiled, flat = tiled_divide(layout, (bm, bn)), flat_divide(layout, (bm, bn))
    assert zipped.shape == ((bm, bn), (-(-m // bm), -(-n // bn)))
    for i in range(m):
        for j in range(n):
            inner, outer = (i % bm, j % bn), (i // bm, j // bn)
            offset = i * n + j
            assert logical(((inner[0], outer[0]), (inner[1], outer[1]))) == offset
            assert zipped((inner, outer)) == tiled((inner, *outer)) == offset
            assert flat((*inner, *outer)) == offset


def test_overhang_is_allowed_unless_exact_is_asked() -> None:
    """A tile that does not divide rounds up; exact=True refuses it."""
    assert zipped_divide(Layout((9,)), (5,)) == Layout(((5,), (2,)), ((1,), (5,)))
    assert logical_divide(Layout(9), 3, exact=True) == Layout((3, 3), (1, 3))
    with pytest.raises(LayoutError, match="K132"):
        zipped_divide(Layout((9,)), (5,), exact=True)
    with pytest.raises(LayoutError):
        logical_divide(Layout((8, 4, 8), (32, 1, 4)), Layout((4, 3), (3, 2)))


@given(layouts(injective=True), layouts(injective=True))
@MANY
def test_products_repeat_the_block(block: Layout, copies: Layout) -> None:
    """The first mode is the block; copies are disjoint from it and from one another."""
    assume(size(block) * size(copies) <= 4096)
    try:
        whole = logical_product(block, copies)
    except LayoutError as error:
        assert error.code in ("K140", "K142")
        return
    assert get(whole, 0) == block
    distinct = len(set(values(block))) * len(set(values(get(whole, 1))))
    assert len(set(values(whole))) == distinct == size(whole)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5))
@MANY
def test_blocked_and_raked_products(m: int, n: int, cm: int, cn: int) -> None:
    """Blocks stand side by side, rakes interleave: the same elements at other coordinates."""
    block, copies = Layout((m, n), (n, 1)), Layout((cm, cn))
    blocked, raked = blocked_product(block, copies), raked_product(block, copies)
    for i in range(m * cm):
        for j in range(n * cn):
            copy = i // m + cm * (j // n)
            assert blocked(i, j) == block(i % m, j % n) + copy * m * n
            copy = i % cm + cm * (j % cn)
            assert raked(i, j) == block(i // cm, j // cn) + copy * m * n


def test_product_by_an_integer_and_of_padded_blocks() -> None:
    """An int tiler repeats; padded blocks repeat beyond their padding."""
    assert logical_product(Layout((2, 5), (5, 1)), 4) == Layout(((2, 5), 4), ((5, 1), 10))
    assert logical_product(Layout((64, 8), (1, 72)), 2)(0, 1) == 576


def test_tile_to_shape() -> None:
    """A swizzled atom fills the tile; blocks that do not divide are refused."""
    atom = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    tile = tile_to_shape(atom, (128, 64))
    assert str(tile) == "Sw<3,3,3>o0o((8,16),(64,1)):((64,512),(1,0))"
    assert sorted(values(tile)) == list(range(128 * 64))
    with pytest.raises(LayoutError, match="K134"):
        tile_to_shape(atom, (100, 64))


@given(layouts(), st.data())
@MANY
def test_slices_fix_the_other_modes(layout: Layout, data: st.DataObject) -> None:
    """layout(c) = slice(kept) + offset(fixed)."""
    assume(isinstance(layout.shape, tuple))
    sizes = [size(layout, i) for i in range(len(layout))]
    fixed = [data.draw(st.none() | st.integers(0, s - 1)) for s in sizes]
    kept, offset = slice_and_offset(tuple(fixed), layout)
    assert kept == slice_(tuple(fixed), layout)
    for i in range(size(kept)):
        inner = iter(idx2crd(i, kept.shape))
        whole = tuple(next(inner) if f is None else f for f in fixed)
        assert layout(whole) == kept(i) + offset


def test_slices_of_swizzled_layouts_keep_the_offset_inside() -> None:
    """A slice of a swizzled layout is the same function with fewer coordinates."""
    for tile in (
        ComposedLayout(Swizzle(3, 4, 3), 0, Layout((10, 2), (2, 1))),
        ComposedLayout(Swizzle(3, 3, 3), 16, Layout((8, 64), (64, 1))),
    ):
        row, outside = slice_and_offset((2, None), tile)
        assert outside == 0
        assert values(row) == [tile(2, j) for j in range(size(tile, 1))]
        moved, outside = domain_offset((3, 1), tile)
        assert outside == 0 and moved(1, 0) == tile(4, 1)


@given(layouts(injective=True), st.data())
@MANY
def test_local_tile_agrees_with_the_divide(layout: Layout, data: st.DataObject) -> None:
    """The short way for unnested modes gives what slicing the zipped divide gives."""
    assume(isinstance(layout.shape, tuple))
    tiler = tuple(data.draw(st.integers(1, s + 1)) for s in product_each(layout.shape)[:2])
    try:
        zipped = zipped_divide(layout, tiler)
    except LayoutError:
        return
    counts = product_each(get(zipped, 1).shape)[: len(tiler)]
    coord = tuple(data.draw(st.none() | st.integers(0, c - 1)) for c in counts)
    kept = coord + (None,) * (len(layout) - len(tiler))
    wanted = slice_and_offset(((None,) * len(tiler), kept), zipped)
    assert local_tile(layout, tiler, coord) == wanted


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 8), st.integers(1, 8))
@MANY
def test_local_tile(m: int, n: int, bm: int, bn: int) -> None:
    """The tile at (i, j) starts at (i·bm, j·bn), and None keeps the tiles of a mode."""
    layout = Layout((m, n), (n, 1))
    for i in range(-(-m // bm)):
        tile, offset = local_tile(layout, (bm, bn), (i, None))
        assert tile.shape == (bm, bn, -(-n // bn)) and offset == i * bm * n
    assume(m > bm and n > 2 * bn)
    one, offset = local_tile(layout, (bm, bn, 5), (1, 2, None), proj=(1, 1, None))
    assert values(one) == values(Layout((bm, bn), (n, 1))) and offset == bm * n + 2 * bn


def test_local_partition_deals_every_element_once() -> None:
    """The parts of all threads are disjoint and cover the tile."""
    layout, threads = Layout((8, 16), (16, 1)), Layout((4, 8), (8, 1))
    seen: list[Any] = []
    for t in range(32):
        part, offset = local_partition(layout, threads, t)
        assert offset == layout(t // 8, t % 8)
        seen += [offset + v for v in values(part)]
    assert sorted(seen) == list(range(128))


@given(layouts(), st.sampled_from([2, 4]))
@MANY
def test_recast_keeps_the_bytes(layout: Layout, ratio: int) -> None:
    """Narrow again after widening covers the same narrow elements, where extents divide."""
    try:
        wide = recast_layout(layout, 8, 8 * ratio)
    except LayoutError as error:
        assert error.code == "K161"
        return
    assume(size(wide) * ratio == size(layout) and max(values(layout)) > 0)
    assert {v // ratio for v in values(layout)} == set(values(wide))


def test_recast_refuses_split_elements() -> None:
    """A stride of 3 bytes holds no 4-byte elements."""
    with pytest.raises(LayoutError, match="K161"):
        recast_layout(Layout((4, 3), (3, 1)), 8, 32)
    with pytest.raises(LayoutError, match="K162"):
        recast_layout(Layout(4, 2), 32, 8)
    swizzled = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))
    assert str(recast_layout(swizzled, 16, 32)) == "Sw<3,3,3>o0o(8,32):(32,1)"


@given(layouts())
@MANY
def test_cosize_and_grouping(layout: Layout) -> None:
    """cosize bounds every offset tightly; grouping keeps the function."""
    assert cosize(layout) == max(values(layout)) + 1
    if isinstance(layout.shape, tuple):
        assert same_function(group_modes(layout, 0, len(layout)), layout)
