"""Tiles of a head's rows, all of its elements wide, between global and swizzled shared memory."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType


def head_rows(dtype: DType, rows: int, dim: int, slots: int, name: str) -> kd.Tensor:
    """Shared memory for `slots` tiles: (rows, dim, slots), read by `ldmatrix` without conflicts.

    A swizzled line is a power of two long: heads lie in panels of the longest one that divides
    them. The shape is (rows, (line, panels), slots).
    """
    line = dim & -dim
    swizzle = kd.collective.shared_tile(dtype, rows, line, 1).outer
    shape, strides = (rows, (line, dim // line), slots), (line, (1, rows * line), rows * dim)
    return kd.smem(dtype, kd.ComposedLayout(swizzle, 0, kd.Layout(shape, strides)), name=name)


def turned(matrix: kd.Tensor) -> kd.Tensor:
    """The tensor with its first two modes exchanged."""
    rest = range(2, len(matrix.layout))
    return matrix.with_layout(kd.select(matrix.layout, (1, 0, *rest)))


class HeadTiles:
    """Copies tiles of a head (sequence, dim) into slots of `shared`, and from there.

    What hangs over the ends of the sequence and of the head is read as zero, and not written.

    Threads: the whole block, of `threads`.
    Memory: `cp.async`, to be committed and waited for by the caller.
    """

    def __init__(self, head: kd.Tensor, shared: kd.Tensor, threads: int) -> None:
        self.head, self.shared, self.threads = head, shared, threads
        self.rows, (self.line, panels), slots = shared.shape
        self.loads = [
            kd.collective.TileLoader(
                turned(head), (self.line, self.rows), panel, slots, threads, kd.thread_rank(),
                into=turned(shared[None, (None, panel), None]),
            )
            for panel in range(panels)
        ]  # fmt: skip

    def load(self, tile: Any, slot: Any) -> None:
        """Start copying tile number `tile`; tiles behind the last one are zeros."""
        for panel in self.loads:
            panel.load(tile, slot)

    def store(self, tile: Any, slot: Any) -> None:
        """Write a slot to tile number `tile` of the head, in accesses as wide as loads are."""
        shape, vector = (self.rows, self.line), self.loads[0].vector
        part = kd.collective.line_copy(self.head.dtype, shape, 1, vector, self.threads).get_slice(
            kd.thread_rank()
        )
        places = part.partition_S(kd.identity_tensor(shape))
        for panel in range(len(self.loads)):
            origin = tile * self.rows, panel * self.line
            source = part.partition_S(self.shared[None, (None, panel), slot])
            kd.copy(
                source,
                part.partition_D(self.head.tile(shape, (tile, panel))),
                pred=lambda i, origin=origin: self._exists(origin, places[i]),
            )

    def _exists(self, origin: tuple[Any, Any], place: tuple[Any, Any]) -> Any:
        row, column = (start + step for start, step in zip(origin, place, strict=True))
        return kd.as_scalar(row < self.head.shape[0]) & (column < self.head.shape[1])
