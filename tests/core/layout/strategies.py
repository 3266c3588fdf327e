"""Random layouts for property tests, and brute-force definitions to hold results against."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdsl_core.layout import Layout, congruent, flatten_tuple, product, unflatten_tuple

EXTENTS = st.sampled_from([1, 2, 2, 3, 4, 4, 5, 6, 8])


def trees(leaf: st.SearchStrategy[Any], max_rank: int = 3) -> st.SearchStrategy[Any]:
    """Nested tuples to depth 3."""
    one = st.lists(leaf, min_size=1, max_size=max_rank).map(tuple)
    two = st.lists(leaf | one, min_size=1, max_size=max_rank).map(tuple)
    return leaf | one | two


SHAPES = trees(EXTENTS).filter(lambda s: product(s) <= 256)


@st.composite
def layouts(draw: Any, *, injective: bool = False) -> Layout:
    """Compact in any order of modes, padded, with stride 0 or with any strides."""
    shape = draw(SHAPES)
    flat = flatten_tuple(shape) if isinstance(shape, tuple) else (shape,)
    kind = draw(st.sampled_from(["left", "permuted", "padded", "any", "zero"]))
    if kind == "any" and not injective:
        stride = draw(st.lists(st.integers(0, 40), min_size=len(flat), max_size=len(flat)))
    else:
        order = list(range(len(flat)))
        if kind != "left":
            order = draw(st.permutations(order))
        stride, current = [0] * len(flat), 1
        for i in order:
            stride[i] = current
            current *= flat[i] * (draw(st.integers(1, 3)) if kind == "padded" else 1)
        if kind == "zero" and not injective:
            stride[draw(st.integers(0, len(flat) - 1))] = 0
    strides = unflatten_tuple(stride, shape)
    assert congruent(shape, strides)
    return Layout(shape, strides)


def values(layout: Any) -> list[Any]:
    """The value at every index."""
    return [layout(i) for i in range(product(layout.shape))]


def is_layout_of(
    table: list[int],
) -> bool:
    """Whether some layout of one (refined) mode has these values: tries every factorisation."""
    n = len(table)
    if n == 1:
        return table[0] == 0
    for first in range(2, n + 1):
        if n % first:
            continue
        slope = table[1]
        if all(
            table[i] == table[i - i % first] + (i % first) * slope for i in range(n)
        ) and is_layout_of(table[::first]):
            return True
    return False
