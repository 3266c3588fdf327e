"""Which elements of memory the threads of a layout, tiled copy or tiled mma touch."""

from __future__ import annotations

from math import prod
from typing import TypeAlias

import numpy as np

from kdsl_core.atoms import Operand, ThrMma, TiledCopy, TiledMma
from kdsl_core.atoms.tiled_mma import MODES
from kdsl_core.errors import LayoutError
from kdsl_core.ir.protocols import Array
from kdsl_core.layout import (
    AnyLayout,
    ComposedLayout,
    Layout,
    flatten,
    inner_of,
    is_static,
    product_each,
)

Subject: TypeAlias = Layout | ComposedLayout | TiledCopy | TiledMma


def elements(subject: Subject, operand: Operand, load: bool, memory: AnyLayout | None) -> Array:
    """What each thread's values are, (threads, values): indices into the memory's layout.

    Loads see the source side of a tiled copy, and stores its destination side.
    Raises: LayoutError when the memory is no whole number of tiles.
    """
    if isinstance(subject, TiledCopy | TiledMma):
        if memory is None:
            raise LayoutError(
                f"which addresses {subject.atom} touches depends on the memory's layout",
                code="K188",
                fix="pass the layout as the second argument",
            )
        _require_tiles(subject, operand, memory)
        whole = Layout(memory.shape)
        if isinstance(subject, TiledMma):
            return _mma_elements(subject, operand, whole)
        return _table(subject.tidfrg_S(whole) if load else subject.tidfrg_D(whole))
    return _table(subject)


def _mma_elements(mma: TiledMma, operand: Operand, whole: Layout) -> Array:
    parts = [ThrMma(mma, t).partition(operand, whole) for t in range(mma.size)]
    return np.stack([values_of(layout) + offset for layout, offset in parts])


def _require_tiles(subject: TiledCopy | TiledMma, operand: Operand, memory: AnyLayout) -> None:
    tile = subject.tile_shape
    wanted = tile if isinstance(subject, TiledCopy) else tuple(tile[i] for i in MODES[operand])
    have = product_each(memory.shape)[: len(wanted)]
    if len(have) < len(wanted) or any(h % w for h, w in zip(have, wanted, strict=True)):
        raise LayoutError(
            f"{memory} is no whole number of tiles of {wanted}", code="K188",
            fix="give the layout of the memory that the tiles cover, or a smaller tiling",
        )  # fmt: skip


def offsets_in(memory: AnyLayout | None, index: Array) -> Array:
    """The offsets in memory of elements by their index; without memory, they are offsets."""
    if memory is None:
        return index
    table = values_of(memory)
    if index.max() >= table.size:
        raise LayoutError(
            f"the access names element {index.max()}, but {memory} has {table.size}",
            code="K188",
            fix="give the layout of the whole tile that the access covers",
        )
    return np.asarray(table[index])


def _table(layout: AnyLayout) -> Array:
    """The values of a layout as (threads, values): mode 0 counts the threads."""
    threads, values = extents(layout)
    return values_of(layout).reshape(values, threads).T


def extents(layout: AnyLayout) -> tuple[int, int]:
    """How many threads a (thread, value) layout has, and how many values each."""
    threads, *values = product_each(layout.shape)
    return threads, prod(values)


def values_of(layout: AnyLayout) -> Array:
    """The value of a static layout at every index, int64.

    Raises: LayoutError for run-time sizes.
    """
    if not is_static(layout):
        raise LayoutError(
            f"cannot analyse {layout}: some sizes are known at run time",
            code="K102",
            fix="put typical sizes in their place",
        )
    if inner_of(layout).has_basis:
        raise LayoutError(
            f"{layout} gives coordinates, and memory is counted by offsets",
            code="K187",
            fix="give the layout of the memory",
        )
    if isinstance(layout, ComposedLayout):
        inner = values_of(layout.inner) + layout.offset
        if isinstance(layout.outer, Layout):
            return np.array([layout.outer(int(i)) for i in inner], np.int64)
        return np.asarray(layout.outer(inner))
    flat = flatten(layout)
    modes = [(flat.shape, flat.stride)]
    if isinstance(flat.shape, tuple):
        modes = list(zip(flat.shape, flat.stride, strict=True))
    out = np.zeros(1, np.int64)
    for extent, stride in modes:
        out = (np.arange(extent, dtype=np.int64)[:, None] * stride + out).ravel()
    return out
