"""A pointwise function of a warp group's accumulators, applied where they are: in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kdsl_core.collective.tiles import access_elements
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.warp_groups import warp_uniform
from kdsl_core.lang.words import thread_rank, warpgroup_idx
from kdsl_core.records import dataclass

THREADS = 128  # of a warp group
ROWS = 64  # of one warp group's accumulator block
PAIRS_APART = 8  # rows between the two pairs that a thread holds of eight columns
Parts: TypeAlias = "list[list[list[Scalar]]]"  # of each extra: two pairs of eight columns


@dataclass(frozen=True)
class WarpGroup:
    """Which of a block's warp groups this is, and how they share tiles.

    `readers` groups share a tile, its blocks of 64 rows dealt in turn; `count` groups write
    results. `thread` is the thread's number in its group, `number` the group's.
    """

    number: Any
    thread: Any
    count: int
    readers: int

    @classmethod
    def of_thread(cls, count: int, readers: int | None = None) -> WarpGroup:
        """The one of the calling thread; `readers` is `count` where all share tiles."""
        number = warp_uniform(warpgroup_idx())
        return cls(number, thread_rank() % THREADS, count, count if readers is None else readers)


class FragmentEpilogue:
    """function(accumulator, extras…) of the accumulators of 64 rows × N columns.

    Thread t of the warp group holds, of each eight columns, two neighbours in row t div 4 mod 8 +
    16 (t div 32) and two in the row eight further: columns 2 (t mod 4) and the next.

    Shapes: every extra is (M, N) or (M, N, L); extras may be broadcast by strides of 0. What lies
    outside is read as zero.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        extras: Sequence[Tensor],
        extent: tuple[Any, Any],
        thread: Any,
    ) -> None:
        self.function = function
        self.extras = tuple(extras)
        self.extent = extent
        self.row = 16 * (thread // 32) + thread % 32 // 4
        self.column = 2 * (thread % 4)

    def fetch(self, origin: tuple[Any, Any], batch: Any, columns: range) -> list[Parts]:
        """Read the extras of `columns` (a multiple of 8), for each eight columns.

        `origin` is the matrix coordinate of the block's first element. To be called some time
        before the results are computed, as memory takes its time.
        """
        row, first = origin[0] + self.row, origin[1] + self.column
        along_rows = {
            index: self._extra(extra, row, first, batch)
            for index, extra in enumerate(self.extras)
            if _is_broadcast(extra, 1)
        }
        return [
            [
                along_rows.get(index) or self._extra(extra, row, first + column, batch)
                for index, extra in enumerate(self.extras)
            ]
            for column in columns[::8]
        ]

    def results(self, block: Tensor, parts: list[Parts], columns: range) -> list[list[Scalar]]:
        """For each output the results of `columns`, in register order, from what was fetched."""
        found = []
        for column, extras in zip(columns[::8], parts, strict=True):
            for pair in range(2):
                for element in range(2):
                    value = block[column // 2 + 2 * pair + element]
                    operands = [part[pair][element] for part in extras]
                    found.append(results_of(self.function, value, operands))
        return [list(output) for output in zip(*found, strict=True)]

    def _extra(self, extra: Tensor, row: Any, column: Any, batch: Any) -> list[list[Scalar]]:
        """The four elements of an extra operand that belong to a thread's four accumulators."""
        rest = (batch,) if len(extra.layout) == 3 else ()
        upper = self._pair(extra, row, column, rest)
        if _is_broadcast(extra, 0):
            return [upper, upper]
        return [upper, self._pair(extra, row + PAIRS_APART, column, rest)]

    def _pair(self, extra: Tensor, row: Any, column: Any, rest: tuple[Any, ...]) -> list[Scalar]:
        inside = None if _is_broadcast(extra, 0) else as_scalar(row < self.extent[0])
        if _is_broadcast(extra, 1):
            return [extra.load((row, column, *rest), inside)] * 2
        within = _both(inside, column < self.extent[1])
        if _is_contiguous(extra) and access_elements(extra, 1) >= 2:
            return extra.load_vector((row, column, *rest), 2, within)
        second = _both(inside, column + 1 < self.extent[1])
        return [
            extra.load((row, column, *rest), within),
            extra.load((row, column + 1, *rest), second),
        ]


def results_of(
    function: Callable[..., Any], value: Scalar, operands: Sequence[Scalar]
) -> tuple[Scalar, ...]:
    """The results of a pointwise function, one for each output."""
    results = function(value, *operands)
    each = results if isinstance(results, tuple) else (results,)
    return tuple(as_scalar(result) for result in each)


def _is_broadcast(extra: Tensor, mode: int) -> bool:
    step = extra.stride[mode]
    return isinstance(step, int) and step == 0


def _is_contiguous(extra: Tensor) -> bool:
    step = extra.stride[1]
    return isinstance(step, int) and step == 1


def _both(first: Scalar | None, second: Any) -> Scalar:
    return as_scalar(second) if first is None else first & second
