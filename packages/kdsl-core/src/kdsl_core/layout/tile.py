"""Dividing layouts into tiles, and repeating tiles into layouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from kdsl_core.errors import LayoutError
from kdsl_core.layout.algebra import compose, composition
from kdsl_core.layout.complements import complement
from kdsl_core.layout.facts import is_decidable
from kdsl_core.layout.int_tuple import (
    IntTuple,
    Leaf,
    as_int_tuple,
    ceil_div,
    is_one,
    mul,
    product_each,
    wrap,
)
from kdsl_core.layout.layout import Layout
from kdsl_core.layout.measure import AnyLayout, cosize, size
from kdsl_core.layout.relation import evenly_divides
from kdsl_core.layout.structure import append, coalesce, on_inner
from kdsl_core.layout.swizzle import ComposedLayout

Tiler = Any
"""A layout, an int n (n:1), None (leave the mode), or a tuple of tilers, one for each mode."""


def _tiler_layout(tiler: Tiler) -> Layout:
    if isinstance(tiler, ComposedLayout) or (isinstance(tiler, Layout) and tiler.has_basis):
        raise LayoutError(
            f"a tiler is a layout with integer strides, got {tiler}",
            code="K136",
            fix="tile with the plain layout and compose the swizzle afterwards",
        )
    return tiler if isinstance(tiler, Layout) else Layout(tiler)


def _by_mode(op: Callable[[Layout, Tiler], Layout], layout: Layout, tiler: Tiler) -> Layout:
    """`op` on each mode with its tiler; modes past the tiler stay as they are."""
    modes = list(layout)
    if len(tiler) > len(modes):
        raise LayoutError(
            f"a tiler of {len(tiler)} modes does not fit {layout}, which has {len(modes)}",
            code="K131",
            fix="give at most one entry for each mode",
        )
    modes[: len(tiler)] = [op(m, t) for m, t in zip(modes, tiler, strict=False)]
    return Layout.of(tuple([m.shape for m in modes]), tuple([m.stride for m in modes]))


# -- divides -------------------------------------------------------------------------------------


def logical_divide(layout: AnyLayout, tiler: Tiler, *, exact: bool = False) -> Any:
    """Each tiled mode as (elements inside the tile, tiles).

    A tile that does not divide a mode hangs over the end: the number of tiles is rounded up and
    predicates keep to the range. With `exact` that is refused.

    >>> print(logical_divide(Layout((8, 6), (6, 1)), (4, 3)))
    ((4,2),(3,2)):((6,24),(1,3))
    >>> print(logical_divide(Layout(9), 5))
    (5,2):(1,5)

    Raises: LayoutError when no layout has the tiles' offsets.
    """
    return on_inner(lambda x: _logical_divide(x, tiler, exact), layout)


Divide: TypeAlias = Callable[[Layout, Tiler, bool], Layout]


def _remembered(divide: Divide) -> Divide:
    """The same division, its results kept for layouts and tilers that are known now."""
    kept = lru_cache(maxsize=4096)(divide)

    def call(layout: Layout, tiler: Tiler, exact: bool) -> Layout:
        # Only exact ints: 4.0 and True are equal keys of a cache, and another tiler or none.
        plain = type(tiler) is tuple and all(type(t) is int or t is None for t in tiler)
        return (kept if plain and layout.static else divide)(layout, tiler, exact)

    return call


@_remembered
def _logical_divide(layout: Layout, tiler: Tiler, exact: bool) -> Layout:
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return _by_mode(lambda m, t: _logical_divide(m, t, exact), layout, tiler)
    tile = _tiler_layout(tiler)
    if exact:
        _refuse_overhang(layout, tile)
    if type(tiler) is int and not isinstance(layout.shape, tuple):
        return _split_mode(layout.shape, layout.stride, tiler)
    return _divide_cached(layout, tile) if layout.static and tile.static else _divide(layout, tile)


def _split_mode(extent: Leaf, stride: Leaf, tile: int) -> Layout:
    """s:d by t is (t, ⌈s/t⌉):(d, d·t), with stride 0 where a static extent is 1."""
    count = ceil_div(extent, tile)
    inner = 0 if tile == 1 else stride
    return Layout.of((tile, count), (inner, 0 if is_one(count) else mul(stride, tile)))


def _divide(layout: Layout, tile: Layout) -> Layout:
    rest = complement(tile, coalesce(layout).shape)
    return compose(layout, Layout.of((tile.shape, rest.shape), (tile.stride, rest.stride)))


_divide_cached = lru_cache(maxsize=4096)(_divide)


def _refuse_overhang(layout: Layout, tile: Layout) -> None:
    if not (is_decidable(layout.shape) and is_decidable((tile.shape, tile.stride))):
        raise LayoutError(
            f"exact tiling needs {size(layout)!r} % {size(tile)!r} == 0, known at run time only",
            code="K102",
        )
    if not evenly_divides(size(layout), size(tile)) or size(layout) < cosize(tile):
        raise LayoutError(
            f"tile {tile} of {size(tile)} elements does not divide {layout} of {size(layout)}",
            code="K132",
            fix="choose a tile that divides, or allow it to hang over (exact=False)",
        )


def zipped_divide(layout: AnyLayout, tiler: Tiler, *, exact: bool = False) -> Any:
    """((elements inside the tile), (tiles, modes that are not tiled)).

    >>> print(zipped_divide(Layout((8, 6), (6, 1)), (4, 3)))
    ((4,3),(2,2)):((6,1),(24,3))
    """
    return on_inner(lambda x: _zipped_divide(x, tiler, exact), layout)


@_remembered
def _zipped_divide(layout: Layout, tiler: Tiler, exact: bool) -> Layout:
    return _unzip(_logical_divide(layout, tiler, exact), tiler)


def tiled_divide(layout: AnyLayout, tiler: Tiler, *, exact: bool = False) -> Any:
    """((elements inside the tile), tiles of mode 0, tiles of mode 1, ...).

    >>> print(tiled_divide(Layout((8, 6), (6, 1)), (4, 3)))
    ((4,3),2,2):((6,1),24,3)
    """
    return on_inner(_spread_rest, zipped_divide(layout, tiler, exact=exact))


def flat_divide(layout: AnyLayout, tiler: Tiler, *, exact: bool = False) -> Any:
    """(tile mode 0, tile mode 1, ..., tiles of mode 0, tiles of mode 1, ...).

    >>> print(flat_divide(Layout((8, 6), (6, 1)), (4, 3)))
    (4,3,2,2):(6,1,24,3)
    """
    return on_inner(_spread_all, zipped_divide(layout, tiler, exact=exact))


def _unzip(layout: Layout, tiler: Tiler) -> Layout:
    """Gather the first halves of the modes that the tiler split, and the second halves."""
    return Layout.of(_unzip_tree(layout.shape, tiler), _unzip_tree(layout.stride, tiler))


def _unzip_tree(tree: IntTuple, tiler: Tiler) -> IntTuple:
    if isinstance(tiler, tuple):
        halves = [_unzip_tree(t, by) for t, by in zip(wrap(tree), tiler, strict=False)]
        firsts, seconds = tuple([h[0] for h in halves]), tuple([h[1] for h in halves])
        return firsts, seconds + wrap(tree)[len(tiler) :]
    if not isinstance(tree, tuple) or len(tree) != 2:
        raise LayoutError(
            f"an untiled mode must be a (tile, rest) pair already to be zipped, got {tree}",
            code="K133",
            fix="tile the mode by 1, or use logical_divide",
        )
    return tree


def _spread_rest(zipped: Layout) -> Layout:
    (tile, rest), (tile_stride, rest_stride) = zipped.shape, zipped.stride
    return Layout.of((tile, *_spread(rest)), (tile_stride, *_spread(rest_stride)))


def _spread_all(zipped: Layout) -> Layout:
    (tile, rest), (tile_stride, rest_stride) = zipped.shape, zipped.stride
    return Layout.of(_spread(tile) + _spread(rest), _spread(tile_stride) + _spread(rest_stride))


def _spread(tree: IntTuple) -> tuple[Any, ...]:
    """The modes of a tuple of several; a single one keeps its parentheses."""
    return tree if isinstance(tree, tuple) and len(tree) != 1 else (tree,)


# -- products ------------------------------------------------------------------------------------


def logical_product(block: AnyLayout, tiler: Tiler) -> Any:
    """(block, copies): the block repeated over the tiler, in the space the block leaves free.

    >>> print(logical_product(Layout((2, 5), (5, 1)), 4))
    ((2,5),4):((5,1),10)
    """
    return on_inner(_logical_product, block, tiler)


def _logical_product(block: Layout, tiler: Tiler) -> Layout:
    if tiler is None:
        return block
    if isinstance(tiler, tuple):
        return _by_mode(_logical_product, block, tiler)
    tile = _tiler_layout(tiler)
    free = complement(block, mul(size(block), cosize(tile)), covering=False)
    copies = composition(free, tile)
    return Layout.of((block.shape, copies.shape), (block.stride, copies.stride))


def zipped_product(block: AnyLayout, tiler: Tiler) -> Any:
    """((block modes), (copies)) of a product by mode."""
    return on_inner(lambda x: _unzip(_logical_product(x, tiler), tiler), block)


def tiled_product(block: AnyLayout, tiler: Tiler) -> Any:
    """((block modes), copies of mode 0, copies of mode 1, ...)."""
    return on_inner(_spread_rest, zipped_product(block, tiler))


def flat_product(block: AnyLayout, tiler: Tiler) -> Any:
    """(block modes ..., copies of each mode ...)."""
    return on_inner(_spread_all, zipped_product(block, tiler))


def blocked_product(block: AnyLayout, tiler: Tiler) -> Any:
    """The block repeated like bricks: mode i is (block mode i, copies along i).

    >>> print(blocked_product(Layout((2, 2)), Layout((3, 4))))
    ((2,3),(2,4)):((1,4),(2,12))
    """
    return on_inner(lambda x: _interleave(x, tiler, block_first=True), block)


def raked_product(block: AnyLayout, tiler: Tiler) -> Any:
    """The copies interleaved element by element: mode i is (copies along i, block mode i).

    >>> print(raked_product(Layout((2, 2)), Layout((3, 4))))
    ((3,2),(4,2)):((4,1),(12,2))
    """
    return on_inner(lambda x: _interleave(x, tiler, block_first=False), block)


def _interleave(block: Layout, tiler: Tiler, *, block_first: bool) -> Layout:
    tile = _tiler_layout(tiler)
    modes = max(len(block), len(tile))
    block, tile = append(block, up_to=modes), append(tile, up_to=modes)
    whole = _logical_product(block, tile)
    inner, copies = whole[0], whole[1]
    if isinstance(block.shape, tuple) and isinstance(tile.shape, tuple):
        pairs = list(zip(inner, copies, strict=True))
    else:  # one operand is a bare mode, and so the only one
        pairs = [(inner, copies)]
    pairs = pairs if block_first else [(c, i) for i, c in pairs]
    shape = tuple([(a.shape, b.shape) for a, b in pairs])
    return Layout.of(shape, tuple([(a.stride, b.stride) for a, b in pairs]))


def tile_to_shape(block: AnyLayout, shape: IntTuple, order: IntTuple = None) -> Any:
    """The block repeated to fill `shape`, copies along mode 0 first unless `order` says else.

    >>> print(tile_to_shape(Layout((8, 8), (8, 1)), (16, 24)))
    ((8,2),(8,3)):((8,64),(1,128))

    Raises: LayoutError when the block does not divide the shape.
    """
    whole = wrap(as_int_tuple(shape, "a shape"))
    return on_inner(lambda x: _tile_to_shape(x, whole, order), block)


def _tile_to_shape(block: Layout, shape: tuple[Any, ...], order: IntTuple) -> Layout:
    from kdsl_core.layout.construct import make_ordered_layout

    modes = max(len(block), len(shape))
    padded = append(block, up_to=modes)
    have = product_each(padded.shape)
    want = product_each(shape) + (1,) * (modes - len(shape))
    if not evenly_divides(want, have):
        raise LayoutError(
            f"blocks of shape {have} do not divide the shape {want}",
            code="K134",
            fix="round the shape up to whole blocks",
        )
    counts = tuple([w // h for w, h in zip(want, have, strict=True)])
    copies = Layout(counts) if order is None else make_ordered_layout(counts, order)
    return _interleave(padded, copies, block_first=True)
