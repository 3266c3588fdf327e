"""A warp group's results on their way out: through shared memory in chunks, by TMA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from kdsl_core import atoms
from kdsl_core import dtypes as dt
from kdsl_core.collective.fragment_epilogue import ROWS, FragmentEpilogue
from kdsl_core.collective.tiles import contiguous_mode
from kdsl_core.dtypes import DType
from kdsl_core.ir import Operand
from kdsl_core.isa import convert, matrix_copy
from kdsl_core.lang.engine import Place
from kdsl_core.lang.functions import func
from kdsl_core.lang.memory import smem
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tma import tma_store, tma_store_commit, tma_store_wait
from kdsl_core.lang.tracer import builder
from kdsl_core.lang.words import fence_proxy_async, named_barrier
from kdsl_core.layout import Layout

_STEP = 16  # columns that one matrix store of 4 × 8 × 8 takes
_WIDEST = 64  # columns of a chunk


class TmaStoreStage:
    """Writes blocks of 64 rows × `columns` of 16-bit results while the next ones are computed.

    Each of `groups` warp groups has buffers of its own; `group` is the one that calls. A chunk goes
    from registers to a swizzled buffer by `stmatrix`, and from there by TMA, which clips what hangs
    over the edge.

    Shapes: all outputs alike, in shape, type and major order.
    Threads: all of a warp group, `thread` being the number in it.
    Memory: named barriers 1 + group; buffers of its own, or those of a stage for outputs alike.
    """

    def __init__(
        self,
        outputs: Sequence[Tensor],
        columns: int,
        epilogue: FragmentEpilogue,
        *,
        groups: int,
        group: Any,
        thread: Any,
        into: Tensor | None = None,
    ) -> None:
        self.columns, self.epilogue = columns, epilogue
        self.chunk = math.gcd(columns, _WIDEST)
        c, self.outputs = outputs[0], len(outputs)
        turns = columns // self.chunk * self.outputs
        # Each block of rows starts with the first buffer again, so they must divide its turns.
        self.buffers = next(
            (n for n in (2, 3) if turns % n == 0 and n >= self.outputs), self.outputs
        )
        major = "K" if contiguous_mode(c) == 1 else "MN"
        self.transposed = major == "MN"
        self.dtype = c.dtype
        layout = atoms.shared_operand(
            c.dtype, (ROWS, self.chunk), major=major, stages=self.buffers * groups
        )
        self.stage = smem(c.dtype, layout, name="results") if into is None else into
        self.rest = len(c.layout) - 2
        box = (ROWS, self.chunk, *(1,) * self.rest)
        self.send = [tma_store(output, self.stage[..., 0], box) for output in outputs]
        self.first = group * self.buffers
        self.leader = thread == 0
        self.barrier = named_barrier(1 + group, 128)
        self.place = self._place(thread // 32, thread % 32)

    def _place(self, warp: Any, lane: Any) -> tuple[Any, Any]:
        """Row and column of the eight neighbours that a lane's address names in a matrix store."""
        if self.transposed:
            return 16 * warp + 8 * (lane // 8 % 2), lane % 8 + 8 * (lane // 16)
        return 16 * warp + lane % 16, 8 * (lane // 16)

    def store(self, block: Tensor, origin: tuple[Any, Any], batch: Any) -> None:
        """Write the results of a block of 64 rows, `origin` being its first element."""
        chunks = [range(x, x + self.chunk) for x in range(0, self.columns, self.chunk)]
        parts = self.epilogue.fetch(origin, batch, chunks[0])
        address = cache(self._address)  # of this block alone: it is computed where it is asked for
        for turn, columns in enumerate(chunks):
            buffers = [(turn * self.outputs + i) % self.buffers for i in range(self.outputs)]
            _claim(self)
            following = chunks[turn + 1 : turn + 2]
            upcoming = [self.epilogue.fetch(origin, batch, chunk) for chunk in following]
            for start in range(0, self.chunk, _STEP):
                some = columns[start : start + _STEP]
                eights = parts[start // 8 : start // 8 + len(some) // 8]
                results = self.epilogue.results(block, eights, some)
                for buffer, values in zip(buffers, results, strict=True):
                    self._keep(self._words(values), address(buffer, start))
            fence_proxy_async()
            behind = batch if isinstance(batch, tuple) else (batch,)
            coord = (origin[0], origin[1] + columns[0], *behind[: self.rest])
            _send(self, [self.first + buffer for buffer in buffers], coord)
            parts = upcoming[0] if upcoming else []

    def _address(self, buffer: int, column: int) -> Place:
        """Where the eight neighbours of a lane lie of the columns from `column` on of a buffer."""
        row, across = self.place
        offset = self.stage.layout((row, across + column, self.first + buffer))
        return self.stage.with_layout(Layout(8), offset).place(0)

    def _words(self, results: list[Scalar]) -> tuple[Operand, ...]:
        """The results of up to 16 columns, two in a register."""
        pairs = zip(results[::2], results[1::2], strict=True)
        return tuple(packed(low, high, self.dtype) for low, high in pairs)

    def _keep(self, words: tuple[Operand, ...], place: Place) -> None:
        """Store them to their place in a buffer."""
        matrix_copy.stmatrix(
            builder(), place.address, words, transposed=self.transposed, offset=place.offset
        )

    def finish(self) -> None:
        """Wait until shared memory has been read, before the block ends."""
        _finish(self)


def packed(low: Scalar, high: Scalar, dtype: DType) -> Operand:
    """Two results rounded to a 16-bit type, in one register."""
    b = builder()
    if low.dtype is dt.f32:
        return convert.convert_pack(b, low.operand, high.operand, dtype)
    return convert.pack(b, (low.to(dtype).operand, high.to(dtype).operand))


@func
def _claim(stage: TmaStoreStage) -> None:
    """Wait until the oldest buffers, one for each output, have been read."""
    if stage.leader:
        tma_store_wait(stage.buffers - stage.outputs)
    stage.barrier.sync()


@func
def _send(stage: TmaStoreStage, slots: list[Any], coord: tuple[Any, ...]) -> None:
    """Send buffers that every thread has written, each in a group of its own."""
    stage.barrier.sync()
    if stage.leader:
        for send, slot in zip(stage.send, slots, strict=True):
            send(stage.stage[..., slot], coord)
            tma_store_commit()


@func
def _finish(stage: TmaStoreStage) -> None:
    if stage.leader:
        tma_store_wait(0)
