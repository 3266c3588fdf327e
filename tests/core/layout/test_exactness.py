"""Every operation against its definition, on many random layouts: nothing wrong, no crash.

A refusal is a `LayoutError` with a stable code, and for composition a brute-force search confirms
that no layout exists. `random_layouts` says how many cases run and how to run a million at night.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.layout import definitions as defined
from core.layout import random_layouts as rand
from core.layout.random_layouts import CASES, PER_SEED
from kdsl_core.errors import LayoutError
from kdsl_core.layout import (
    Layout,
    blocked_product,
    coalesce,
    complement,
    composition,
    cosize,
    crd2idx,
    dice,
    downcast,
    filter_layout,
    flat_divide,
    flat_product,
    flatten,
    group_modes,
    idx2crd,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout_like,
    make_ordered_layout,
    max_common_layout,
    max_common_vector,
    nullspace,
    product_each,
    raked_product,
    right_inverse,
    select,
    size,
    slice_and_offset,
    tiled_divide,
    tiled_product,
    upcast,
    vector_width,
    zipped_divide,
    zipped_product,
)

Check = Callable[[Random], None]
CHECKS: list[Check] = []


def checked(check: Check) -> Check:
    """Make a check one of those that run on random layouts."""
    CHECKS.append(check)
    return check


@pytest.mark.parametrize("number", range(24))
def test_equals_its_definition(number: int) -> None:
    """No result differs from the definition at any coordinate."""
    check = CHECKS[number]

    @settings(max_examples=max(1, CASES // PER_SEED // len(CHECKS)), deadline=None)
    @given(st.integers(0, 2**64 - 1))
    def many(seed: int) -> None:
        rng = Random(seed)
        for _ in range(PER_SEED):
            check(rng)

    many()


def test_every_check_runs() -> None:
    """The parametrisation reaches all of them."""
    assert len(CHECKS) == 24


@checked
def composition_of_layouts(rng: Random) -> None:
    """Exact, and complete: refused only where a search finds no layout."""
    a, b = rand.layout(rng), rand.layout(rng)
    try:
        result = composition(a, b)
    except LayoutError as error:
        assert error.code == "K142" and "coordinate" in error.message
        assert not defined.some_composition(a, b), (a, b)
        return
    assert defined.is_composition(a, b, result), (a, b, result)


@checked
def composition_inside_a_permutation(rng: Random) -> None:
    """As above where most compositions exist: a is compact and b selects modes of it."""
    a = rand.layout(rng, injective=True)
    b = Layout(size(a)) if rng.random() < 0.2 else right_inverse(rand.layout(rng, injective=True))
    try:
        result = composition(a, b)
    except LayoutError as error:
        assert error.code == "K142" and not defined.some_composition(a, b), (a, b)
        return
    assert defined.is_composition(a, b, result), (a, b, result)


@checked
def composition_by_mode(rng: Random) -> None:
    """A tuple on the right composes each mode with its own tiler."""
    a = rand.layout(rng)
    tiler = tuple(rng.choice([None, rng.randint(1, 6), Layout(2, 3)]) for _ in range(len(a)))
    try:
        result = composition(a, tiler)
    except LayoutError as error:
        assert error.code == "K142"
        return
    for mode, by, part in zip(a, tiler, result, strict=True):
        expected = mode if by is None else composition(mode, by)
        assert part == expected


@checked
def coalesce_keeps_the_function(rng: Random) -> None:
    """Same values, idempotent, and no mode left that continues another."""
    a = rand.layout(rng)
    merged = coalesce(a)
    assert defined.table(merged) == defined.table(a) == defined.table(flatten(a))
    assert coalesce(merged) == merged
    kept = coalesce(a, (1,) * len(a))
    assert product_each(kept.shape) == product_each(a.shape)
    assert rand.values(kept) == rand.values(a)


@checked
def calls_and_coordinates(rng: Random) -> None:
    """Calls by index and by coordinate agree, and cosize is one past the largest offset."""
    a = rand.layout(rng)
    table = defined.table(a)
    assert rand.values(a) == table and cosize(a) == max(table) + 1
    i = rng.randrange(len(table))
    crd = idx2crd(i, a.shape)
    assert a(crd) == table[i] and crd2idx(crd, a.shape) == i == crd2idx(i, a.shape)


@checked
def complement_of_a_layout(rng: Random) -> None:
    """Disjoint, covering, ascending; refused for overlaps and gaps that are not whole."""
    a, target = rand.layout(rng, injective=rng.random() < 0.7), rng.randint(1, 300)
    try:
        rest = complement(a, target)
    except LayoutError as error:
        assert error.code in ("K140", "K141")
        return
    assert min(rand.flat(rest.shape)) >= 1
    if size(a) * size(rest) > 4096:
        return
    assert defined.is_complement(filter_layout(a), target, rest), (a, target, rest)


@checked
def inverse_from_the_right(rng: Random) -> None:
    """layout(R(i)) = i; of a permutation, R is the whole inverse."""
    a = rand.layout(rng)
    result = right_inverse(a)
    assert defined.is_right_inverse(a, result), (a, result)
    if sorted(defined.table(a)) == list(range(size(a))):
        assert size(result) == size(a)


@checked
def inverse_from_the_left(rng: Random) -> None:
    """layout(L(layout(i))) = layout(i), or refused."""
    a = rand.layout(rng)
    try:
        result = left_inverse(a)
    except LayoutError as error:
        assert error.code == "K151"
        return
    assert defined.is_left_inverse(a, result), (a, result)


@checked
def common_vectors(rng: Random) -> None:
    """At the first n coordinates of the common layout, both count 0, 1, 2, ..."""
    a, b = rand.layout(rng), rand.layout(rng)
    common = defined.table(max_common_layout(a, b))
    counted = list(range(max_common_vector(a, b)))
    assert [defined.offset(a, c) for c in common] == counted
    assert [defined.offset(b, c) for c in common] == counted


@checked
def still_coordinates(rng: Random) -> None:
    """All of the nullspace maps to 0, and it is as large as the modes that do not move."""
    a = rand.layout(rng)
    found = nullspace(a)
    assert {a(c) for c in rand.values(found)} == {0}
    assert size(found) == defined.still_indices(a)


@checked
def divide_by_an_integer(rng: Random) -> None:
    """Element e of tile t is element t·tile + e, also where the last tile hangs over."""
    a, tile = rand.layout(rng), rng.randint(1, 12)
    try:
        result = logical_divide(a, tile)
    except LayoutError as error:
        assert error.code == "K142"
        return
    assert defined.is_divide(a, Layout(tile, 1), result), (a, tile, result)
    assert all(result((i % tile, i // tile)) == defined.offset(a, i) for i in range(size(a)))


@checked
def divide_by_a_layout(rng: Random) -> None:
    """Element e of tile t is A(T(e) + C(t))."""
    a, tile = rand.layout(rng), rand.layout(rng, injective=True)
    try:
        result = logical_divide(a, tile)
    except LayoutError as error:
        assert error.code in ("K140", "K141", "K142")
        return
    if size(result) > 4096:
        return
    assert defined.is_divide(a, tile, result), (a, tile, result)


@checked
def divides_by_mode(rng: Random) -> None:
    """Zipped, tiled and flat divides hold what the logical one holds."""
    a = rand.layout(rng)
    tiler = tuple(rng.randint(1, 7) for _ in range(rng.randint(1, len(a))))
    try:
        logical = logical_divide(a, tiler)
    except LayoutError as error:
        assert error.code == "K142"
        return
    zipped, tiled = zipped_divide(a, tiler), tiled_divide(a, tiler)
    flat, n = flat_divide(a, tiler), len(tiler)
    inner = tuple(rng.randrange(t) for t in tiler)
    outer = tuple(rng.randrange(size(logical[i][1])) for i in range(n))
    rest = tuple(rng.randrange(size(logical[i])) for i in range(n, len(a)))
    wanted = logical((*zip(inner, outer, strict=True), *rest))
    assert zipped((inner, outer + rest)) == tiled((inner, *outer, *rest)) == wanted
    assert flat((*inner, *outer, *rest)) == wanted
    assert product_each(zipped[0].shape) == tiler


@checked
def exact_divides(rng: Random) -> None:
    """With exact=True a divide is a permutation of the elements, or refused."""
    a, tile = rand.layout(rng), rng.randint(1, 8)
    try:
        result = logical_divide(a, tile, exact=True)
    except LayoutError as error:
        assert error.code in ("K132", "K142") and (size(a) % tile or error.code == "K142")
        return
    assert sorted(rand.values(result)) == sorted(defined.table(a))


@checked
def products(rng: Random) -> None:
    """The block first, its copies apart; the other forms hold the same elements."""
    block, tiler = rand.layout(rng, injective=True), rand.layout(rng, injective=True)
    if size(block) * size(tiler) > 256:
        return
    try:
        result = logical_product(block, tiler)
    except LayoutError as error:
        assert error.code in ("K140", "K142")
        return
    assert defined.is_product(block, tiler, result), (block, tiler, result)
    for form in (zipped_product, tiled_product, flat_product):
        assert sorted(rand.values(form(block, tiler))) == sorted(rand.values(result))


@checked
def bricks_and_rakes(rng: Random) -> None:
    """Blocked and raked products hold the elements of the logical product."""
    block, tiler = rand.layout(rng, injective=True), rand.layout(rng, injective=True)
    if size(block) * size(tiler) > 256:
        return
    try:
        whole = sorted(rand.values(logical_product(block, tiler)))
    except LayoutError:
        return
    for form in (blocked_product, raked_product):
        assert sorted(rand.values(form(block, tiler))) == whole


@checked
def products_by_an_integer(rng: Random) -> None:
    """n copies, each apart."""
    block, copies = rand.layout(rng, injective=True), rng.randint(1, 6)
    try:
        result = logical_product(block, copies)
    except LayoutError as error:
        assert error.code in ("K140", "K142")
        return
    assert defined.is_product(block, Layout(copies, 1), result)


@checked
def wider_elements(rng: Random) -> None:
    """Every element lies in one of the groups that the result names."""
    a, count = rand.layout(rng), rng.choice((2, 3, 4, 8))
    try:
        result = upcast(a, count)
    except LayoutError as error:
        assert error.code == "K161"
        return
    assert defined.is_wider(a, count, result), (a, count, result)


@checked
def narrower_elements(rng: Random) -> None:
    """The parts of every element, and nothing else."""
    a, count = rand.layout(rng), rng.choice((2, 3, 4, 8))
    try:
        result = downcast(a, count)
    except LayoutError as error:
        assert error.code == "K162"
        return
    assert defined.is_narrower(a, count, result), (a, count, result)


@checked
def slices(rng: Random) -> None:
    """layout(c) = slice(kept) + offset(fixed), and dice gives the rest."""
    a = rand.layout(rng)
    if not isinstance(a.shape, tuple):
        return
    sizes = product_each(a.shape)
    coord = tuple(None if rng.random() < 0.5 else rng.randrange(s) for s in sizes)
    kept, offset = slice_and_offset(coord, a)
    crd = tuple(rng.randrange(s) for s in sizes)
    inner = tuple(c for c, given_ in zip(crd, coord, strict=True) if given_ is None)
    whole = tuple(c if given_ is None else given_ for c, given_ in zip(crd, coord, strict=True))
    assert a(whole) == (kept(inner) if inner else 0) + offset
    assert len(rand.flat(dice(coord, a).shape)) + len(rand.flat(kept.shape)) == len(
        rand.flat(a.shape)
    )


@checked
def regrouping(rng: Random) -> None:
    """Grouping keeps every value; selecting permutes the modes."""
    a = rand.layout(rng)
    if not isinstance(a.shape, tuple):
        return
    begin = rng.randint(0, len(a))
    end = rng.randint(begin, len(a))
    assert rand.values(group_modes(a, begin, end)) == defined.table(a)
    order = rng.sample(range(len(a)), len(a))
    assert sorted(rand.values(select(a, *order))) == sorted(defined.table(a))


@checked
def ordered_layouts(rng: Random) -> None:
    """Compact, with strides in the order asked for, or in that of another layout."""
    of = tuple(rng.choice(rand.EXTENTS) for _ in range(rng.randint(1, 4)))
    order = tuple(rng.sample(range(len(of)), len(of)))
    made = make_ordered_layout(of, order)
    assert sorted(defined.table(made)) == list(range(size(made)))
    moving = [i for i in range(len(of)) if of[i] > 1]
    assert sorted(moving, key=order.__getitem__) == sorted(moving, key=made.stride.__getitem__)
    like = make_layout_like(Layout(of, tuple(7 * d for d in made.stride)))
    assert sorted(defined.table(like)) == list(range(size(like)))


@checked
def vectors(rng: Random) -> None:
    """Every vector of the width found starts aligned and runs on."""
    a, align = rand.layout(rng), rng.choice((1, 2, 4, 8, 16))
    width = vector_width(a, align)
    offsets = defined.table(a)
    for start in range(0, len(offsets), width):
        first = offsets[start]
        assert first % width == 0 and align % width == 0
        assert offsets[start : start + width] == list(range(first, first + width))


@checked
def values_survive_text(rng: Random) -> None:
    """repr evaluates to an equal layout with an equal hash."""
    a = rand.layout(rng)
    again = eval(repr(a), {"Layout": Layout})
    assert again == a and hash(again) == hash(a)
