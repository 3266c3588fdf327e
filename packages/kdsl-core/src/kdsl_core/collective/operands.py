"""Operands of a warp group's matrix product on their way from global to shared memory, by TMA."""

from __future__ import annotations

import math
from typing import Any

from kdsl_core import atoms
from kdsl_core.collective.tiles import contiguous_mode, divisor, unlike
from kdsl_core.lang.mbarriers import Mbarrier
from kdsl_core.lang.memory import smem
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tma import tma_load
from kdsl_core.records import dataclass

_TMA_PITCH = 16  # bytes that the TMA unit wants strides to be multiples of
_WIDEST_SPAN = 128  # bytes of a swizzle


def tma_can_address(x: Tensor) -> bool:
    """Whether a matrix's start and pitches are proven multiples of 16 bytes."""
    along = contiguous_mode(x)
    pitches = [step for mode, step in enumerate(x.stride) if mode != along]
    bytes_ = [divisor(step) * x.dtype.bytes for step in pitches]
    return all(n % _TMA_PITCH == 0 for n in (x.place((0,) * len(x.shape)).align, *bytes_))


@dataclass(frozen=True)
class TileShare:
    """A block's share of tiles that `count` blocks of its cluster need.

    Block `number` of them loads that part of the rows and multicasts it to all, the blocks in
    `mask`; None where a block is alone.
    """

    count: int = 1
    number: Any = 0
    mask: Any = None


ALONE = TileShare()


class TmaOperand:
    """One operand's tiles (rows × depth), loaded by TMA into a ring of shared-memory stages.

    Of tiles that blocks of the cluster have in common each loads its `share`.

    Memory: swizzled as `wgmma` reads it, in stages of its own or in the tiles `into`. What hangs
    over the edge of the matrix is zero. `cache` is advice for L2 (`kd.tma_load`).
    Units: `fetch` in bytes that L2 brings from memory at a time.
    Threads: `load` by one thread.
    """

    def __init__(
        self,
        tensor: Tensor,
        tile: tuple[int, int],
        stages: int,
        *,
        name: str,
        share: TileShare = ALONE,
        cache: str | None = None,
        fetch: int = 256,
        into: Tensor | None = None,
    ) -> None:
        rows, self.depth = tile
        self.rows = rows
        self.part = rows // share.count
        panel = self.part if share.count > 1 else None
        self.shared = _stages(tensor, tile, stages, name, panel) if into is None else into
        self.bytes = rows * self.depth * tensor.dtype.bytes
        self.rest = len(tensor.layout) - 2
        self.share, self.cache = share, cache
        self.target = self.shared.tile((self.part, self.depth), (share.number, 0))
        box = (self.part, self.depth, *(1,) * self.rest)
        self.box = tma_load(tensor, self.target[..., 0], box, promotion=fetch)

    def prefetch(self) -> None:
        """Bring the tensor map to the TMA unit's cache. Threads: one."""
        self.box.prefetch()

    def load(self, stage: Any, row_tile: Any, k_tile: Any, batch: Any, barrier: Mbarrier) -> None:
        """Start copying tile (row_tile, k_tile) into a stage; `bytes` complete at `barrier`.

        `batch` is the coordinate in mode 2, or a tuple of those behind the matrix's two.
        """
        row = row_tile * self.rows + self.share.number * self.part
        behind = batch if isinstance(batch, tuple) else (batch,)
        coord = (row, k_tile * self.depth, *behind[: self.rest])
        target, mask = self.target[..., stage], self.share.mask
        self.box(target, coord, barrier, multicast=mask, cache=self.cache)


class TmaPair:
    """Tiles of two operands of one shape, the halves of a stage: rows of the first come first.

    A product with such a stage has two sums in each thread, of rows that are half a tile apart.

    Memory and threads: as `TmaOperand`. Options are those of each operand.
    Raises: TypeMismatch K476 for operands of different types or major orders.
    """

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor],
        tile: tuple[int, int],
        stages: int,
        *,
        name: str,
        share: TileShare = ALONE,
        **options: Any,
    ) -> None:
        first, second = tensors
        if first.dtype is not second.dtype or contiguous_mode(first) != contiguous_mode(second):
            raise unlike(first, second)
        half = tile[0] // 2, tile[1]
        self.shared = _stages(first, tile, stages, name, half[0] // share.count)
        self.halves = [
            TmaOperand(
                tensor, half, stages,
                name=name, share=share, into=self.shared.tile(half, (i, 0)), **options,
            )
            for i, tensor in enumerate(tensors)
        ]  # fmt: skip
        self.bytes = sum(half.bytes for half in self.halves)

    def prefetch(self) -> None:
        """Bring both tensor maps to the TMA unit's cache. Threads: one."""
        for half in self.halves:
            half.prefetch()

    def load(self, stage: Any, row_tile: Any, k_tile: Any, batch: Any, barrier: Mbarrier) -> None:
        """Start copying half a tile of each operand; `bytes` in all complete at `barrier`."""
        for half in self.halves:
            half.load(stage, row_tile, k_tile, batch, barrier)


def _stages(
    tensor: Tensor, tile: tuple[int, int], stages: int, name: str, panel: int | None = None
) -> Tensor:
    """Shared memory for a ring of an operand's tiles, which every `panel` rows may be cut apart."""
    major, swizzle = "K" if contiguous_mode(tensor) == 1 else "MN", None
    if panel is not None and major == "MN":  # swizzles must not reach across
        span = math.gcd(panel * tensor.dtype.bytes, _WIDEST_SPAN)
        swizzle = span if span > _TMA_PITCH else 0
    layout = atoms.shared_operand(tensor.dtype, tile, major=major, stages=stages, swizzle=swizzle)
    return smem(tensor.dtype, layout, name=name)
