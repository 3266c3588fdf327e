"""A warp group's results on their way out by ordinary stores: any pitch, any type, any split of K.

Accumulators go to a slab of f32 (or i32) in shared memory and are read back line by line, so that
neighbouring threads write neighbouring elements. On the way the slabs of the blocks of a cluster
can be summed, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.collective.fragment_epilogue import ROWS, THREADS, results_of
from kdsl_core.collective.tiles import access_elements, contiguous_mode
from kdsl_core.lang.clusters import cluster_rank, peer
from kdsl_core.lang.functions import func
from kdsl_core.lang.mbarriers import mbarrier
from kdsl_core.lang.memory import smem
from kdsl_core.lang.numbers import minimum
from kdsl_core.lang.ranges import Range
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.struct import struct
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.words import named_barrier
from kdsl_core.layout import Layout

_WIDEST = 64  # columns of a slab
_VECTOR = 4  # accumulators that a thread takes at a time: one 16-byte access
_PADDING = {"rows": 8, "columns": 4}  # elements behind each line, against bank conflicts


@struct
class Parity:
    """The parity of the phase that is waited for next."""

    now: dt.u32  # type: ignore[valid-type] # a register of the kernel


class Meeting:
    """Where the warp groups of one number in all blocks of a cluster wait for each other.

    They meet by turns at two barriers: a block that goes on from one meeting may arrive at the next
    before a third block has been told of all arrivals at the first.

    Threads: all of a warp group, which has met at a barrier of its own before.
    Memory: 16 bytes of shared memory a group; what was written before is visible to all afterwards.
    """

    def __init__(self, blocks: int, groups: int, group: Any, thread: Any) -> None:
        self.blocks = blocks
        self.all = mbarrier(blocks, 2 * groups, name="meeting")
        self.mine = self.all[2 * group], self.all[2 * group + 1]
        self.thread = thread
        self.parity = Parity(0)

    def wait(self, turn: int) -> None:
        """Arrive in every block, and wait until every block has arrived in this one.

        `turn` is 0 and 1 alternately.
        """
        # One instruction for all: each release at the cluster's scope costs a microsecond.
        rank = minimum(self.thread, self.blocks - 1)
        self.mine[turn].arrive(rank=rank, pred=self.thread < self.blocks)
        self.mine[turn].wait(self.parity.now)
        self.parity.now = self.parity.now ^ turn


class SlabStore:
    """Writes blocks of 64 rows × `columns`: C = function(Σ accumulators, extras…).

    Each of `groups` warp groups has a slab of its own. With `peers` > 1, that many blocks of a
    cluster hold parts of the same sums, and each stores its share of the elements.

    Shapes: all outputs and every extra (M, N[, L]), the outputs of one major order, extras
    broadcast by strides of 0.
    Threads: all of a warp group, `thread` being the number in it. Memory: named barriers 1 + group.
    """

    def __init__(
        self,
        outputs: Sequence[Tensor],
        columns: int,
        function: Callable[..., Any],
        extras: Sequence[Tensor],
        *,
        accumulator: Any,
        groups: int,
        group: Any,
        thread: Any,
        peers: int = 1,
    ) -> None:
        self.outputs, self.function, self.extras = tuple(outputs), function, tuple(extras)
        c = self.c = outputs[0]
        self.columns = columns
        self.chunk = math.gcd(columns, _WIDEST)
        self.along = contiguous_mode(c)
        self.thread, self.group, self.groups = thread, group, groups
        self.peers = peers
        self.rank = cluster_rank() if peers > 1 else 0
        lines = self.chunk if self.along == 0 else ROWS
        length = ROWS if self.along == 0 else self.chunk
        padded = length + _PADDING["columns" if self.along == 0 else "rows"]
        strides = (1, padded) if self.along == 0 else (padded, 1)
        slabs = smem(
            accumulator, Layout((ROWS, self.chunk, groups), (*strides, padded * lines)), name="slab"
        )
        self.slab: Tensor = slabs[None, None, group]
        widths = [access_elements(output, self.along) for output in outputs]
        self.width = math.gcd(*widths, _VECTOR, length)
        self.per_line = length // self.width
        self.share = self.per_line * lines // peers
        self.barrier = named_barrier(1 + group, THREADS)
        self.meeting = Meeting(peers, groups, group, thread) if peers > 1 else None
        self.row = 16 * (thread // 32) + thread % 32 // 4
        self.column = 2 * (thread % 4)

    # -- from registers to the slab, and to units of neighbouring elements -----------------------
    def deposit(self, block: Tensor, start: int) -> None:
        """Write the accumulators of columns start … to the slab."""
        for column in range(0, self.chunk, 8):
            for pair in range(2):
                first = (start + column) // 2 + 2 * pair
                values = [block[first], block[first + 1]]
                row, across = self.row + 8 * pair, self.column + column
                if self.along == 1:
                    self.slab.store_vector((row, across), values)
                else:
                    self.slab.store((row, across), values[0])
                    self.slab.store((row, across + 1), values[1])

    def place(self, unit: Any) -> tuple[Any, Any]:
        """Row and column in the slab of a unit's first element."""
        line, inside = unit // self.per_line, unit % self.per_line * self.width
        return (inside, line) if self.along == 0 else (line, inside)

    def sums(self, unit: Any) -> list[Scalar]:
        """The unit's accumulators, summed over the cluster in the order of ranks."""
        place = self.place(unit)
        if self.peers == 1:
            return self.slab.load_vector(place, self.width)
        total: list[Scalar] = []
        for rank in range(self.peers):
            part = peer(self.slab, rank).load_vector(place, self.width)
            total = [x + y for x, y in zip(total, part, strict=True)] if total else part
        return total

    def finish(self, unit: Any, values: list[Scalar], origin: tuple[Any, Any], batch: Any) -> None:
        """Apply the function to a unit, and write it to the matrix."""
        row, column = self.place(unit)
        place = [origin[0] + row, origin[1] + column]
        rest = (batch,) if len(self.c.layout) == 3 else ()
        across, along = 1 - self.along, self.along
        inside = as_scalar(place[across] < self.c.shape[across])
        # The width divides the extent, so that a unit lies inside or outside as a whole.
        inside = inside & (place[along] < self.c.shape[along])
        coord = (place[0], place[1], *rest)
        parts = [self._extra(extra, coord, inside) for extra in self.extras]
        results = [
            results_of(self.function, value, [part[i] for part in parts])
            for i, value in enumerate(values)
        ]
        for output, found in zip(self.outputs, zip(*results, strict=True), strict=True):
            output.store_vector(coord, [value.to(output.dtype) for value in found], inside)

    def _extra(self, extra: Tensor, coord: tuple[Any, ...], inside: Scalar) -> list[Scalar]:
        coord = coord[: len(extra.layout)]
        step = extra.stride[self.along]
        if isinstance(step, int) and step == 0:
            return [extra.load(coord, inside)] * self.width
        if isinstance(step, int) and step == 1:
            return extra.load_vector(coord, self.width, inside)
        moved = [
            tuple(x + i if mode == self.along else x for mode, x in enumerate(coord))
            for i in range(self.width)
        ]
        return [extra.load(place, inside) for place in moved]

    def init(self) -> None:
        """Initialise the cluster's barriers. Threads: one, before a barrier of the cluster."""
        if self.meeting is not None:
            self.meeting.all.init()

    # -- whole blocks ------------------------------------------------------------------------------
    def store(self, block: Tensor, origin: tuple[Any, Any], batch: Any) -> None:
        """Write a block of 64 rows, `origin` being the coordinate of its first element."""
        for start in range(0, self.columns, self.chunk):
            self._exchange(block, start)
            place = origin[0], origin[1] + start
            walk(self, self.sums, partial(self.finish, origin=place, batch=batch))

    def _exchange(self, block: Tensor, start: int) -> None:
        self._meet(0)
        self.deposit(block, start)
        self._meet(1)

    def _meet(self, turn: int) -> None:
        """Wait for everyone who reads or writes this slab."""
        self.barrier.sync()
        if self.meeting is not None:
            self.meeting.wait(turn)

    def own_units(self, turn: Any, unrolled: int) -> list[Any]:
        """The units that a thread takes in a turn of its walk over this block's share."""
        first = self.rank * self.share + self.thread
        return [first + (turn * unrolled + i) * THREADS for i in range(unrolled)]

    @property
    def unrolled(self) -> int:
        """How many units a thread takes in a turn, all read before the first is finished."""
        return next((n for n in (4, 2) if self.share % (n * THREADS) == 0), 1)


@func
def walk(slab: SlabStore, read: Callable[[Any], Any], finish: Callable[[Any, Any], None]) -> None:
    """Read and finish every unit of this block's share."""
    turn: Any
    unrolled = slab.unrolled
    for turn in Range(-(-slab.share // (unrolled * THREADS))):
        if slab.share % THREADS == 0 or turn * THREADS + slab.thread < slab.share:
            units = slab.own_units(turn, unrolled)
            values = [read(unit) for unit in units]
            for unit, value in zip(units, values, strict=True):
                finish(unit, value)
