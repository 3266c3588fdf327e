"""Cases from public bug reports of other layout algebras, and input that is odd or hostile."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from core.layout import definitions as defined
from core.layout.random_layouts import values
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    coalesce,
    complement,
    composition,
    cosize,
    depth,
    downcast,
    flatten,
    left_inverse,
    logical_divide,
    logical_product,
    make_identity_layout,
    max_common_vector,
    rank,
    recast_layout,
    right_inverse,
    size,
    slice_,
    sym,
    tile_to_shape,
    upcast,
    zipped_divide,
)


def test_right_inverse_of_three_modes() -> None:
    """Modes are taken in the order of their strides."""
    assert right_inverse(Layout((2, 4, 6), (4, 1, 8))) == Layout((4, 2, 6), (2, 1, 8))


def test_right_inverse_with_a_symbolic_size() -> None:
    """The symbolic mode continues the static one."""
    n = sym("n")
    inverse = right_inverse(Layout((16, n), (1, 16)))
    assert inverse == Layout(n * 16, 1)


def test_left_inverse_of_a_padded_layout() -> None:
    """R(A(i)) = i, across the gap."""
    layout = Layout((4, 2), (1, 16))
    inverse = left_inverse(layout)
    assert [inverse(layout(i)) for i in range(8)] == list(range(8))


def test_product_by_an_integer_repeats() -> None:
    """n copies, not a division by n."""
    assert logical_product(Layout((2, 5), (5, 1)), 4) == Layout(((2, 5), 4), ((5, 1), 10))


def test_complement_of_a_gap() -> None:
    """The gap of three elements is found."""
    assert complement(Layout((2, 4), (1, 6)), 24) == Layout(3, 2)


def test_recast_of_a_stride_that_splits_elements() -> None:
    """Three bytes hold no 32-bit element."""
    with pytest.raises(LayoutError, match="K161"):
        recast_layout(Layout((4, 3), (3, 1)), 8, 32)


def test_slice_of_a_swizzled_layout() -> None:
    """A row of a swizzled layout is that row of the whole."""
    tile = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((10, 2), (2, 1)))
    for i in range(10):
        assert values(slice_((i, None), tile)) == [tile(i, 0), tile(i, 1)]


def test_divide_by_tiles_that_interleave_with_the_modes() -> None:
    """The tile's modes interleave and leave no whole gap, so it is refused, with the stride."""
    with pytest.raises(LayoutError, match=r"K140.*stride 3 lies inside the span 6"):
        logical_divide(Layout((8, 4, 8), (32, 1, 4)), Layout((4, 3), (3, 2)))


def test_offsets_beyond_32_bits() -> None:
    """Coordinate 2^30 at stride 4."""
    assert Layout(2**31, 4)(2**30) == 2**32
    assert cosize(Layout((2**40, 2**40), (1, 2**40))) == 2**80


def test_accumulators_keep_their_rank() -> None:
    """A warpgroup's 64 × 8 accumulator has the modes of the 64 × 16 one, the last of extent 1."""

    def fragment(n: int) -> Any:
        lanes = Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))
        return composition(Layout((64, n)), lanes)

    narrow, wide = fragment(8), fragment(16)
    assert rank(narrow, 1) == rank(wide, 1) == 3 and depth(narrow) == depth(wide) == 2
    assert size(narrow) == 512 and len(set(values(wide))) == 1024


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (Layout((8, 2), (2, 1)), Layout(2, 12), Layout(2, 9)),
        (Layout((3, 4), (4, 1)), Layout(3, 4), Layout(3, 5)),
    ],
)
def test_compositions_that_exist_are_found(a: Layout, b: Layout, wanted: Layout) -> None:
    """A rule of divisibility alone would refuse them."""
    assert composition(a, b) == wanted and defined.is_composition(a, b, wanted)


def test_a_composition_that_does_not_exist_names_the_value() -> None:
    """Value 1 stands where 7 would be right, had the values a layout."""
    with pytest.raises(LayoutError, match="K142") as caught:
        composition(Layout((3, 6), (6, 1)), Layout(8, 2))
    assert "coordinate" in caught.value.message and "value" in caught.value.message
    assert not defined.some_composition(Layout((3, 6), (6, 1)), Layout(8, 2))


def test_an_overhanging_tile_is_rounded_up() -> None:
    """The one-element tuples stay; exact=True refuses."""
    assert zipped_divide(Layout(9), (5,)) == Layout(((5,), (2,)), ((1,), (5,)))
    with pytest.raises(LayoutError, match="K132"):
        zipped_divide(Layout(9), (5,), exact=True)


def test_recast_of_modes_that_overlap() -> None:
    """Two modes that carry into the next word together have no recast mode by mode."""
    with pytest.raises(LayoutError, match="K161"):
        upcast(Layout((2, 2), (2, 2)), 4)
    parts = downcast(Layout((2, 4), (1, 1)), 2)
    assert defined.is_narrower(Layout((2, 4), (1, 1)), 2, parts)


@pytest.mark.parametrize("odd", [None, 4, 2.5, "x", (4, 8), sym("n")], ids=repr)
@pytest.mark.parametrize(
    "operation",
    [
        coalesce,
        right_inverse,
        left_inverse,
        flatten,
        lambda x: complement(x, 8),
        lambda x: composition(x, 2),
        lambda x: logical_divide(x, 2),
        lambda x: logical_product(x, 2),
        lambda x: max_common_vector(x, x),
        lambda x: recast_layout(x, 8, 16),
    ],
)
def test_what_is_no_layout_is_refused(operation: Any, odd: Any) -> None:
    """A shape or a wrong type is not taken for a layout."""
    with pytest.raises(LayoutError, match=r"K115.*expected a layout"):
        operation(odd)


HUGE = 1 << 200
ODD_SHAPES = [0, -1, (4, 0), (4, (2, -3)), 2.0, "8", None, (4, None), {4}, [[]], b"4", object()]


@pytest.mark.parametrize("shape", ODD_SHAPES, ids=lambda shape: repr(shape).split(" at ")[0])
def test_odd_shapes_are_refused_or_fine(shape: Any) -> None:
    """A wrong type or an extent below 1 is an error; lists are taken as tuples."""
    if shape == [[]]:
        assert Layout(shape).shape == ((),)
        return
    with pytest.raises(LayoutError) as caught:
        Layout(shape)
    assert caught.value.code in ("K101", "K112")


@pytest.mark.parametrize(
    "operation",
    [
        lambda a: composition(a, 0),
        lambda a: composition(a, -4),
        lambda a: composition(a, (4, 4, 4, 4)),
        lambda a: logical_divide(a, 0),
        lambda a: logical_divide(a, -2),
        lambda a: logical_divide(a, "x"),
        lambda a: logical_product(a, 0),
        lambda a: logical_product(a, 1.5),
        lambda a: complement(a, 0),
        lambda a: complement(a, -8),
        lambda a: tile_to_shape(a, (0, 0)),
        lambda a: recast_layout(a, 0, 8),
        lambda a: recast_layout(a, 16, -8),
        lambda a: upcast(a, 0),
        lambda a: downcast(a, 0),
        lambda a: a((1, 2, 3)),
        lambda a: a("x"),
        lambda a: a(1.5),
        lambda a: slice_((None, None, None), a),
    ],
)
def test_odd_arguments_are_refused(operation: Any) -> None:
    """A LayoutError with a code, never a crash, a zero extent or a silent answer."""
    with pytest.raises(LayoutError):
        operation(Layout((4, 8), (8, 1)))


def test_huge_integers_neither_hang_nor_overflow() -> None:
    """What divides is instant, what would need a search is refused."""
    big = Layout((HUGE, HUGE), (HUGE, 1))
    assert size(big) == HUGE * HUGE and big(HUGE + 1) == HUGE + 1
    assert composition(big, Layout(1 << 150, 1 << 100)).shape == (1 << 100, 1 << 50)
    assert logical_divide(big, (1 << 64, 3)).shape[0] == (1 << 64, 1 << 136)
    assert complement(Layout(4, HUGE), HUGE * 4) == Layout(HUGE, 1)
    assert right_inverse(big) == Layout((HUGE, HUGE), (HUGE, 1))
    with pytest.raises(LayoutError, match="K143"):
        composition(big, Layout(2**20 + 1, 1 << 190))
    assert max_common_vector(Layout(HUGE), Layout(HUGE)) == HUGE
    assert recast_layout(Layout(HUGE), 8, 1 << 70).shape == HUGE >> 67


def test_wide_and_deep_nesting() -> None:
    """A thousand modes, and a hundred levels."""
    wide = Layout((2,) * 1000)
    assert coalesce(wide) == Layout(2**1000, 1) and right_inverse(wide) == coalesce(wide)
    deep: Any = 4
    for _ in range(100):
        deep = (deep, 2)
    assert coalesce(Layout(deep)) == Layout(4 * 2**100, 1)
    assert size(flatten(Layout(deep))) == 4 * 2**100


def test_bottomless_nesting_is_refused() -> None:
    """Nesting beyond Python's recursion limit is an error with a code, not a crash."""
    bottomless: Any = 2
    for _ in range(10 * sys.getrecursionlimit()):
        bottomless = (bottomless,)
    with pytest.raises(LayoutError, match="K114"):
        Layout(bottomless)


def test_layouts_are_shared_by_threads() -> None:
    """Many threads compute the same layouts and agree."""
    tiles = [Layout((128, 64), (64 + i, 1)) for i in range(40)]

    def work(_: int) -> list[Any]:
        return [(zipped_divide(t, (16, 8)), right_inverse(t), hash(t)) for t in tiles]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(16)))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(
    ("code", "operation"),
    [
        ("K113", lambda: Layout(sym("n", at_least=0))),
        ("K135", lambda: composition(Layout((4, 8)), (Swizzle(1, 0, 1), 4))),
        ("K136", lambda: logical_divide(Layout(8), ComposedLayout(Swizzle(1, 0, 1), 0, Layout(4)))),
        ("K164", lambda: upcast(make_identity_layout((4, 8)), 2)),
    ],
)
def test_what_has_no_integer_answer(code: str, operation: Any) -> None:
    """Swizzles and coordinates stand where only plain integers have a meaning."""
    with pytest.raises(LayoutError) as caught:
        operation()
    assert caught.value.code == code and caught.value.fix
