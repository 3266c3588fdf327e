"""Slices, tiles and partitions of layouts with the offset at which they start."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.coord import idx2crd, offset_of
from kdsl_core.layout.int_tuple import IntTuple, Leaf, add, ceil_div, mul, unwrap, wrap
from kdsl_core.layout.layout import Layout, as_coord, slice_tuple
from kdsl_core.layout.measure import AnyLayout, as_layout, get, inner_of, size
from kdsl_core.layout.structure import on_inner
from kdsl_core.layout.swizzle import ComposedLayout, Swizzle, fixed_offset, slice_tuple_of
from kdsl_core.layout.tile import Tiler, zipped_divide


def crd2idx(coord: Any, layout: Any, stride: IntTuple = None) -> Any:
    """The offset of a coordinate in a layout, or in a shape (with strides, or compact).

    >>> crd2idx((1, 2), Layout((4, 8), (8, 1))), crd2idx((1, 2), (4, 8))
    (10, 9)
    """
    if stride is not None:
        return Layout(layout, stride)(as_coord((coord,)))
    return as_layout(layout)(as_coord((coord,)))


def get_hier_coord(layout: AnyLayout, offset: Leaf) -> IntTuple:
    """The coordinate of an offset: each leaf is ``offset // stride % extent``.

    >>> get_hier_coord(Layout((4, (2, 3)), (6, (3, 1))), 11)
    (1, (1, 2))
    """
    return idx2crd(offset, layout.shape, inner_of(layout).stride)


def get_flat_coord(layout: AnyLayout, offset: Leaf) -> IntTuple:
    """The coordinate of an offset with one index per top-level mode.

    >>> get_flat_coord(Layout((4, (2, 3)), (6, (3, 1))), 11)
    (1, 5)
    """
    crd = get_hier_coord(layout, offset)
    pairs = zip(wrap(crd), wrap(layout.shape), strict=True)
    return unwrap(tuple([crd2idx(c, s) for c, s in pairs]))


def get_1d_coord(layout: AnyLayout, offset: Leaf) -> Leaf:
    """The index, first mode fastest, of the coordinate at an offset."""
    return crd2idx(get_hier_coord(layout, offset), layout.shape)


def slice_(coord: Any, layout: Any) -> Any:
    """The modes of a layout (or tuple) at which the coordinate is None.

    >>> print(slice_((None, 3), Layout((4, 8), (8, 1))))
    (4):(8)
    """
    coord = as_coord((coord,))
    if isinstance(layout, tuple):
        return slice_tuple(coord, layout)
    if isinstance(layout, ComposedLayout):
        return slice_and_offset(coord, layout)[0]
    return slice_tuple_of(coord, inner_of(layout))


def slice_and_offset(coord: Any, layout: Any) -> tuple[Any, Leaf]:
    """The kept modes, and the offset of the fixed ones.

    Under a swizzle the offset stays inside the layout, where the swizzle sees it, and the
    second result is 0.

    >>> rows, offset = slice_and_offset((2, None), Layout((4, 8), (8, 1)))
    >>> print(rows, offset)
    (8):(1) 16
    """
    coord = as_coord((coord,))
    if isinstance(layout, ComposedLayout):
        inner, offset = slice_and_offset(coord, layout.inner)
        return layout.with_inner(inner, offset), 0
    plain = inner_of(layout)
    return slice_tuple_of(coord, plain), fixed_offset(coord, plain)


def dice(coord: Any, layout: Any) -> Any:
    """The modes of a layout (or tuple) at which the coordinate is given: slice_'s complement.

    >>> print(dice((None, 3), Layout((4, 8), (8, 1))))
    (8):(1)
    """
    coord = as_coord((coord,))
    if isinstance(layout, tuple):
        return _dice_tuple(coord, layout)
    return on_inner(
        lambda x: Layout.of(_dice_tuple(coord, x.shape), _dice_tuple(coord, x.stride)), layout
    )


def _dice_tuple(coord: Any, tree: Any) -> Any:
    if not isinstance(coord, tuple):
        return () if coord is None else tree
    if not isinstance(tree, tuple) or len(tree) != len(coord):
        raise LayoutError(
            f"expected one entry of the coordinate for each mode of {tree}, got {coord}",
            code="K110",
            fix="write None for a mode to drop",
        )
    out: tuple[Any, ...] = ()
    for c, mode in zip(coord, tree, strict=True):
        if isinstance(c, tuple):
            out += _dice_tuple(c, mode)
        elif c is not None:
            out += (mode,)
    return out


def domain_offset(coord: Any, layout: Any) -> tuple[Any, Leaf]:
    """The same layout seen from `coord` as its origin, and the offset of that origin.

    Under a swizzle the offset moves inside and the second result is 0.
    """
    coord, plain = as_coord((coord,)), inner_of(layout)
    if isinstance(layout, ComposedLayout):
        return layout.with_inner(layout.inner, layout.inner(coord)), 0
    return layout, plain(coord)


def local_tile(layout: Any, tiler: Tiler, coord: Any, proj: Any = None) -> tuple[Any, Leaf]:
    """The tile at `coord` of a layout cut into tiles, and the offset at which it starts.

    None in `coord` keeps the tiles of that mode as a mode of the result. `proj` (1 or None per
    entry) drops entries of tiler and coord, so that one (M, N, K) tiler serves A, B and C.

    >>> tile, offset = local_tile(Layout((64, 32), (32, 1)), (16, 8), (1, None))
    >>> print(tile, offset)
    (16,8,4):(32,1,8) 512
    """
    if proj is not None:
        tiler, coord = project(tiler, proj), project(coord, proj)
    coord = as_coord((coord,))
    leafwise = _tile_of_leaves(inner_of(layout), tiler, coord)
    if leafwise is not None:
        return _placed(layout, *leafwise)
    zipped = zipped_divide(layout, tiler)
    modes = len(wrap(inner_of(zipped).shape[0]))
    kept = (None,) * modes if isinstance(inner_of(zipped).shape[0], tuple) else None
    return slice_and_offset((kept, _pad_coord(coord, zipped)), zipped)


def _tile_of_leaves(layout: Layout, tiler: Tiler, coord: Any) -> tuple[Layout, Leaf] | None:
    """`local_tile` of unnested modes by integers, without counting tiles that nobody asks for."""
    extents, strides = wrap(layout.shape), wrap(layout.stride)
    if not isinstance(tiler, tuple) or not isinstance(coord, tuple) or len(coord) != len(tiler):
        return None
    if len(tiler) > len(extents) or not all(type(t) is int for t in tiler):
        return None
    tiles, counts, offset = [], [], 0
    for s, d, t, c in zip(extents, strides, tiler, coord, strict=False):
        if isinstance(s, tuple) or isinstance(c, tuple):
            return None
        tiles.append((t, 0 if t == 1 else d))
        step = mul(d, t)
        if type(s) is int and s <= t:
            step = 0
        if c is None:
            counts.append((ceil_div(s, t), step))
        else:
            offset = add(offset, mul(c, step))
    rest = list(zip(extents[len(tiler) :], strides[len(tiler) :], strict=True))
    modes = tiles + counts + rest
    return Layout.of(tuple([m[0] for m in modes]), tuple([m[1] for m in modes])), offset


def _placed(layout: Any, inner: Layout, offset: Leaf) -> tuple[Any, Leaf]:
    """A part of a layout at an offset: kept inside where the layout is swizzled."""
    if isinstance(layout, ComposedLayout):
        return layout.with_inner(inner, offset), 0
    return inner, offset


def _pad_coord(coord: Any, zipped: AnyLayout) -> Any:
    """Modes that the tiler does not reach are kept whole."""
    rest = inner_of(zipped).shape[1]
    if not isinstance(coord, tuple) or not isinstance(rest, tuple):
        return coord
    if len(coord) > len(rest):
        raise LayoutError(
            f"expected at most {len(rest)} tile coordinates, got {coord}",
            code="K110",
            fix="give one entry for each tiled mode, None to keep its tiles",
        )
    return coord + (None,) * (len(rest) - len(coord))


def project(items: Any, proj: Any) -> Any:
    """The entries of a tuple whose projection entry is not None."""
    return tuple([item for item, p in zip(items, proj, strict=True) if p is not None])


def local_partition(layout: Any, threads: Any, thread: Leaf, proj: Any = None) -> tuple[Any, Leaf]:
    """The elements of one thread when `threads` tile the layout, and their offset.

    `threads` is a layout (or shape) that numbers the threads; each thread takes one element of
    every tile.

    >>> part, offset = local_partition(Layout((8, 8), (8, 1)), Layout((2, 4), (4, 1)), 5)
    >>> print(part, offset)
    (4,2):(16,4) 9
    """
    numbering = threads if isinstance(threads, Layout) else Layout(threads)
    coord: Any = thread_coord(numbering, thread)
    tiler: Any = tuple([size(get(numbering, i)) for i in range(len(numbering))])
    if proj is not None:
        tiler, coord = project(tiler, proj), project(coord, proj)
    zipped = zipped_divide(layout, tiler)
    rest = inner_of(zipped).shape[1]
    return slice_and_offset((coord, (None,) * len(rest)), zipped)


def thread_coord(numbering: Layout, thread: Leaf) -> IntTuple:
    """The coordinate whose number is `thread`: each mode's index, by its own strides."""
    out = []
    for mode in numbering:
        if not isinstance(mode.shape, tuple):
            out.append(idx2crd(thread, mode.shape, mode.stride) if mode.stride != 0 else 0)
            continue
        crd = idx2crd(thread, mode.shape, _nonzero(mode.stride))
        out.append(offset_of(_masked(crd, mode.stride), mode.shape, Layout(mode.shape).stride))
    return tuple(out)


def _nonzero(stride: IntTuple) -> IntTuple:
    if isinstance(stride, tuple):
        return tuple([_nonzero(d) for d in stride])
    return 1 if type(stride) is int and stride == 0 else stride


def _masked(crd: IntTuple, stride: IntTuple) -> IntTuple:
    """Coordinates of modes with stride 0 are 0: a thread number does not reach them."""
    if isinstance(stride, tuple):
        return tuple([_masked(c, d) for c, d in zip(crd, stride, strict=True)])
    return 0 if type(stride) is int and stride == 0 else crd


def swizzle_of(layout: AnyLayout) -> Swizzle:
    """The swizzle of a layout; the trivial one where there is none."""
    if isinstance(layout, ComposedLayout) and isinstance(layout.outer, Swizzle):
        return layout.outer
    return Swizzle(0, 0, 0)
