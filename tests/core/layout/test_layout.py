"""The Layout class: construction, calls, printing, identity, and errors for bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings

from core.layout.strategies import layouts
from kdsl_core.errors import LayoutError
from kdsl_core.layout import ComposedLayout, E, Layout, Swizzle, make_identity_layout, make_layout

SWIZZLED = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))


def test_prints_in_the_terms_of_the_field() -> None:
    """str shows shape:stride, a one-element tuple keeps its parentheses."""
    assert str(Layout((4, 8), (8, 1))) == "(4,8):(8,1)"
    assert str(Layout((4,))) == "(4):(1)"
    assert str(SWIZZLED) == "Sw<3,4,3>o0o(8,64):(64,1)"
    assert str(make_identity_layout((4, (2, 3)))) == "(4,(2,3)):(1@0,(1@0@1,1@1@1))"


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_repr_pickle_and_hash_round_trip(layout: Layout) -> None:
    """repr evaluates to an equal layout, and so does a pickle."""
    assert eval(repr(layout)) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert hash(Layout(layout.shape, layout.stride)) == hash(layout)


def test_swizzled_layouts_round_trip() -> None:
    """Composed layouts and basis strides are values too."""
    for value in (SWIZZLED, make_identity_layout((2, (3, 4))), Swizzle(2, 1, 3)):
        assert eval(repr(value), {**globals(), "ScaledBasis": type(E(0))}) == value
        assert pickle.loads(pickle.dumps(value)) == value


def test_layouts_are_immutable() -> None:
    """No attribute can be set or deleted."""
    layout = Layout((2, 3))
    with pytest.raises(AttributeError):
        layout.shape = (3, 2)
    with pytest.raises(AttributeError):
        del layout.stride
    with pytest.raises(AttributeError):
        SWIZZLED.offset = 1


def test_calls_take_coordinates_indices_and_slices() -> None:
    """An index counts the first mode fastest; None keeps a mode."""
    layout = Layout((4, (2, 3)), (6, (3, 1)))
    assert layout(1, (1, 2)) == layout(1, 5) == layout((1, 5)) == layout(21) == 11
    assert layout(None, (1, None)) == Layout((4, 3), (6, 1))
    assert layout(np.int64(21)) == 11 and type(layout(np.int64(21))) is int


def test_big_offsets_do_not_overflow() -> None:
    """Offsets are Python integers."""
    assert Layout(2**31, 4)(2**30) == 2**32


def test_static_extent_one_has_stride_zero() -> None:
    """As in CuTe, the compact stride of an extent 1 is 0."""
    assert Layout((1, 4, 1, 3)).stride == (0, 1, 0, 4)


def test_identity_layouts_return_their_coordinate() -> None:
    """Basis strides add up to coordinates, of indices too."""
    identity = make_identity_layout((4, (2, 3)))
    assert identity(3, (1, 2)) == (3, (1, 2)) and identity(0) == (0, (0, 0))
    assert identity(23) == (3, (1, 2))


def test_concatenates_layouts() -> None:
    """make_layout of layouts makes each a mode."""
    joined = make_layout(Layout(4), Layout((2, 3)))
    assert joined == Layout((4, (2, 3)), (1, (1, 2)))


@pytest.mark.parametrize(
    ("shape", "stride", "code"),
    [
        ((4, 8), (1,), "K111"),
        ((4, 8), 1, "K111"),
        ((4, 0), None, "K112"),
        ((4, -2), None, "K112"),
        ((4, 2.0), None, "K101"),
        ("ab", None, "K101"),
        ((4, None), None, "K101"),
    ],
)
def test_bad_input_is_refused_with_the_values(shape: object, stride: object, code: str) -> None:
    """Shapes and strides of the wrong make are refused at once."""
    with pytest.raises(LayoutError) as caught:
        Layout(shape, stride)
    assert caught.value.code == code


def test_coordinates_of_the_wrong_rank_are_refused() -> None:
    """A coordinate has one entry for each mode."""
    with pytest.raises(LayoutError, match="K110"):
        Layout((4, 8))(1, 2, 3)
    with pytest.raises(LayoutError, match="K110"):
        Layout((4, 8))(None, 2, 3)


def test_swizzles_that_overlap_are_refused() -> None:
    """Source and target bits must be apart."""
    with pytest.raises(LayoutError, match="K120"):
        Swizzle(3, 0, 2)


def test_swizzle_is_an_involution() -> None:
    """Applying a swizzle twice is the identity, for either sign of the shift."""
    for swizzle in (Swizzle(3, 4, 3), Swizzle(2, 1, -3), Swizzle(0, 4, 3)):
        assert [swizzle(swizzle(i)) for i in range(2048)] == list(range(2048))
        assert sorted(map(swizzle, range(2048))) == list(range(2048))
