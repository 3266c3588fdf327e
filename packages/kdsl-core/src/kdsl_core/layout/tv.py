"""Thread-value layouts: which thread holds which elements of a tile, and how wide it may read."""

from __future__ import annotations

from math import gcd

from kdsl_core.errors import LayoutError
from kdsl_core.layout.algebra import composition
from kdsl_core.layout.construct import is_compact
from kdsl_core.layout.exact import CHECKED_ELEMENTS
from kdsl_core.layout.facts import known_divisor
from kdsl_core.layout.int_tuple import Leaf, is_one, is_static, product_each
from kdsl_core.layout.inverse import right_inverse
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, inner_of, size
from kdsl_core.layout.structure import coalesce
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle
from kdsl_core.layout.tile import raked_product


def make_tv_layout(thr_layout: Layout, val_layout: Layout) -> tuple[tuple[int, ...], Layout]:
    """The tile that threads and their values cover, and (thread, value) ↦ index in the tile.

    `thr_layout` numbers the threads over the tile, `val_layout` the values that each thread
    holds next to one another.

    Shapes: the tile has mode i of size thr_i · val_i; its index counts mode 0 fastest.

    >>> tile, tv = make_tv_layout(Layout((2, 4), (4, 1)), Layout((1, 2)))
    >>> print(tile, tv)
    (2, 8) ((4,2),2):((4,1),2)

    Raises: LayoutError when either layout does not number 0 .. size − 1, each once.
    """
    for what, layout in (("thr_layout", thr_layout), ("val_layout", val_layout)):
        if not is_static(layout) or not is_compact(layout):
            raise LayoutError(
                f"{what} must number 0 to {size(layout)} - 1, each once, got {layout}",
                code="K170",
                fix="give a permutation, like Layout((32, 8), (8, 1))",
            )
    tile_to_tv = raked_product(thr_layout, val_layout)
    inverse = right_inverse(tile_to_tv)
    tv = composition(inverse, Layout((size(thr_layout), size(val_layout))))
    return product_each(tile_to_tv.shape), tv


def invert_tv(tv: Layout) -> Layout:
    """Index in the tile ↦ (thread, value) counted thread first: the inverse of a tv layout.

    Raises: LayoutError when an element has two holders or none.
    """
    if not is_compact(coalesce(tv)):
        raise LayoutError(
            f"{tv} gives some element of the tile no holder or several",
            code="K171",
            fix="use left_inverse for layouts that repeat or leave gaps",
        )
    inverse: Layout = right_inverse(tv)
    return inverse


def same_function(a: AnyLayout, b: AnyLayout) -> bool:
    """Whether two layouts of one size give the same offset at every index.

    >>> same_function(Layout((2, 4)), Layout(8))
    True
    """
    plain = (inner_of(a), inner_of(b)) == (a, b)
    if plain and coalesce(a) == coalesce(b):
        return True
    if not (is_static(a) and is_static(b)):
        raise LayoutError(
            f"cannot compare {a} and {b} as functions: some leaves are not known",
            code="K102",
        )
    if size(a) != size(b):
        return False
    if not plain and size(a) > CHECKED_ELEMENTS:
        raise LayoutError(
            f"cannot compare {a} and {b} as functions: {size(a)} values are too many", code="K143"
        )
    return not plain and all(a(i) == b(i) for i in range(size(a)))


def vector_width(layout: AnyLayout, alignment_elems: int, limit: int | None = None) -> int:
    """The widest power-of-two vector whose elements are contiguous and aligned everywhere.

    Index i, i + 1, ... of the layout must be neighbours in memory, and each vector must start at
    a multiple of its width when the base address is a multiple of `alignment_elems`.

    Units: elements.

    >>> vector_width(Layout((8, 4), (1, 12)), 16), vector_width(Layout((8, 4), (4, 1)), 16)
    (4, 1)
    """
    flat = coalesce(inner_of(layout))
    run, others = _contiguous_run(flat)
    bound = gcd(run, alignment_elems, *[known_divisor(d) for d in others])
    if isinstance(layout, ComposedLayout):
        if not isinstance(layout.outer, Swizzle):
            return 1
        bound = gcd(bound, known_divisor(layout.offset))
        bound = gcd(bound, 1 << layout.outer.base) if layout.outer.bits else bound
    width = bound & -bound
    while limit is not None and width > limit:
        width //= 2
    return width


def _contiguous_run(flat: Layout) -> tuple[int, list[Leaf]]:
    """What divides the first mode's extent if its stride is 1, and the strides of the others."""
    shapes = flat.shape if isinstance(flat.shape, tuple) else (flat.shape,)
    strides = flat.stride if isinstance(flat.stride, tuple) else (flat.stride,)
    if not is_one(strides[0]):
        return 1, []
    return known_divisor(shapes[0]), list(strides[1:])


def holders(tv: Layout) -> dict[int, list[tuple[int, int]]]:
    """For each index in the tile, the (thread, value) pairs that hold it, in order.

    >>> holders(Layout((2, 2), (2, 1)))
    {0: [(0, 0)], 1: [(0, 1)], 2: [(1, 0)], 3: [(1, 1)]}
    """
    if len(tv) != 2:
        raise LayoutError(f"expected a (thread, value) layout of rank 2, got {tv}", code="K172")
    threads, values = product_each(tv.shape)
    out: dict[int, list[tuple[int, int]]] = {}
    for t in range(threads):
        for v in range(values):
            out.setdefault(tv((t, v)), []).append((t, v))
    return dict(sorted(out.items()))


def thread_values(tv: Layout) -> tuple[int, int]:
    """How many threads a tv layout has, and how many values each."""
    threads, values = product_each(tv.shape)
    return threads, values
