"""The definitions of the operations, evaluated element by element."""

from __future__ import annotations

from itertools import product as every
from math import prod

from core.layout.random_layouts import flat, values
from kdsl_core.layout import Layout, coalesce, complement, size, weakly_congruent


def offset(layout: Layout, index: int) -> int:
    """The value at an index by its digits, first mode fastest and the last one unbounded."""
    total, extents, strides = 0, flat(layout.shape), flat(layout.stride)
    for s, d in zip(extents[:-1], strides[:-1], strict=True):
        total += index % s * d
        index //= s
    return total + index * strides[-1] if strides else 0


def table(layout: Layout) -> list[int]:
    """Every value of a layout, without calling it."""
    return [offset(layout, i) for i in range(prod(flat(layout.shape)))]


def is_composition(a: Layout, b: Layout, result: Layout) -> bool:
    """R(c) = A(B(c)) everywhere, of B's shape or a refinement."""
    wanted = [offset(a, v) for v in table(b)]
    return table(result) == wanted and weakly_congruent(b.shape, result.shape)


def some_composition(a: Layout, b: Layout) -> bool:
    """Whether any layout that refines B's shape has the values of A ∘ B: tries them all."""
    extents = flat(b.shape)
    wanted = [offset(a, v) for v in table(b)]
    tables, before = [], 1
    for extent in extents:
        tables.append([wanted[i * before] for i in range(extent)])
        before *= extent
    crds = every(*[range(s) for s in reversed(extents)])
    sums = [sum(t[c] for t, c in zip(tables, reversed(crd), strict=True)) for crd in crds]
    return sums == wanted and all(map(some_layout, tables))


def some_layout(wanted: list[int]) -> bool:
    """Whether some factorisation of one mode into a layout has these values: tries them all."""
    n = len(wanted)
    if n == 1:
        return wanted[0] == 0
    for first in range(2, n + 1):
        if n % first:
            continue
        starts = (wanted[i - i % first] + i % first * wanted[1] for i in range(n))
        if all(map(int.__eq__, wanted, starts)) and some_layout(wanted[::first]):
            return True
    return False


def is_complement(layout: Layout, target: int, result: Layout) -> bool:
    """Sums of both are distinct and reach the target; C ascends."""
    moving = set(table(layout))
    others = table(result)
    sums = {x + y for x in moving for y in others}
    return (
        others == sorted(others) and len(sums) == len(moving) * len(others) and len(sums) >= target
    )


def is_divide(layout: Layout, tile: Layout, result: Layout) -> bool:
    """R(e, t) = A(T(e) + C(t)), with C the complement of T in A's domain."""
    rest = complement(tile, coalesce(layout).shape)
    count = size(tile)
    for t in range(size(rest)):
        for e in range(count):
            if result((e, t)) != offset(layout, tile(e) + rest(t)):
                return False
    return size(result) == count * size(rest) >= size(layout)


def is_product(block: Layout, tiler: Layout, result: Layout) -> bool:
    """The first mode is the block, and every copy is apart from the others."""
    inner, copies = result[0], result[1]
    apart = {x + y for x in values(inner) for y in values(copies)}
    return (
        inner == block
        and weakly_congruent(tiler.shape, copies.shape)
        and len(apart) == len(set(values(inner))) * len(set(values(copies)))
    )


def is_wider(layout: Layout, count: int, result: Layout) -> bool:
    """The groups of `count` elements that the layout touches are the values of the result."""
    return {v // count for v in table(layout)} <= set(table(result))


def is_narrower(layout: Layout, count: int, result: Layout) -> bool:
    """The parts of the elements of the layout are the values of the result."""
    parts = {v * count + j for v in table(layout) for j in range(count)}
    return parts == set(table(result))


def is_left_inverse(layout: Layout, result: Layout) -> bool:
    """A(L(A(i))) = A(i), and L(A(i)) = i where A's values differ."""
    image = table(layout)
    unique = len(set(image)) == len(image)
    return all(
        offset(layout, result(v)) == v and (not unique or result(v) == i)
        for i, v in enumerate(image)
    )


def is_right_inverse(layout: Layout, result: Layout) -> bool:
    """A(R(i)) = i."""
    return [offset(layout, v) for v in table(result)] == list(range(size(result)))


def still_indices(layout: Layout) -> int:
    """How many indices a layout's stride-0 modes span."""
    return prod(s for s, d in zip(flat(layout.shape), flat(layout.stride), strict=True) if d == 0)
