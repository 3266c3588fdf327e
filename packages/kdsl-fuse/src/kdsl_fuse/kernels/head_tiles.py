"""Tiles of a head's rows, all of its elements wide, between global and swizzled shared memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_fuse.kernels.turned import turned


def head_rows(dtype: DType, rows: int, dim: int, slots: int, name: str) -> kd.Tensor:
    """Shared memory for `slots` tiles: (rows, dim, slots), read by `ldmatrix` without conflicts.

    A swizzled line is a power of two long: heads lie in panels of the longest one that divides
    them. The shape is (rows, (line, panels), slots).
    """
    line = dim & -dim
    swizzle = kd.collective.shared_tile(dtype, rows, line, 1).outer
    shape, strides = (rows, (line, dim // line), slots), (line, (1, rows * line), rows * dim)
    return kd.smem(dtype, kd.ComposedLayout(swizzle, 0, kd.Layout(shape, strides)), name=name)


class HeadTiles:
    """Copies tiles of a head (sequence, dim) into slots of `shared`.

    What hangs over the ends of the sequence and of the head is zero.

    Threads: the whole block, of `threads`.
    Memory: `cp.async`, to be committed and waited for by the caller.
    """

    def __init__(self, head: kd.Tensor, shared: kd.Tensor, threads: int) -> None:
        rows, (line, panels), slots = shared.shape
        self.panels = [
            kd.collective.TileLoader(
                turned(head), (line, rows), panel, slots, threads, kd.thread_rank(),
                into=turned(shared[None, (None, panel), None]),
            )
            for panel in range(panels)
        ]  # fmt: skip

    def load(self, tile: Any, slot: Any) -> None:
        """Start copying tile number `tile`; tiles behind the last one are zeros."""
        for panel in self.panels:
            panel.load(tile, slot)


def store_rows(shared: kd.Tensor, head: kd.Tensor, tile: Any, threads: int) -> None:
    """Write a slot to tile number `tile` of a head, but for what hangs over.

    Threads: the whole block, of `threads`, which has met since the slot was written.
    """
    rows, (line, panels) = shared.shape
    width = kd.collective.access_elements(head, 1)
    plan = kd.collective.line_copy(head.dtype, (rows, line), 1, width, threads)
    part = plan.get_slice(kd.thread_rank())
    places = part.partition_S(kd.identity_tensor((rows, line)))

    def exists(panel: int, index: int) -> Any:
        row, column = places[index]
        inside = kd.as_scalar(tile * rows + row < head.shape[0])
        return inside & (panel * line + column < head.shape[1])

    for panel in range(panels):
        source = part.partition_S(shared[None, (None, panel)])
        target = part.partition_D(head.tile((rows, line), (tile, panel)))
        kd.copy(source, target, pred=partial(exists, panel))
