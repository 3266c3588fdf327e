"""Row programs on accumulators: where a tile holds whole rows, they are reduced before they leave.

`RowProgram` says what is computed (`row_programs`); its first input is the product. Nothing of a
row goes through memory between its product and its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kdsl_core as kd
from kdsl_core.collective.fragment_epilogue import PAIRS_APART, ROWS
from kdsl_core.collective.outputs import by_tma
from kdsl_core.collective.tiles import access_elements
from kdsl_fuse.kernels.row_exchange import over_lanes, reduced
from kdsl_fuse.kernels.row_programs import RowProgram, Scalars, add, tree
from kdsl_fuse.kernels.vectors import put, widened

EIGHT = 8  # columns of which a thread of a quad holds two, in each of two rows
QUAD = 4  # lanes that share a row of accumulators
READ_COLUMNS = 32  # of inputs that a thread has under way at a time


class RowArrays:
    """The arrays of a launch by their parts in the program, whose first input is the product."""

    def __init__(self, program: RowProgram, arrays: Sequence[Any]) -> None:
        outputs, row_outputs, inputs, extras, row_inputs = program.counts
        left = list(arrays)
        parts = [
            [left.pop(0) for _ in range(count)]
            for count in (outputs, row_outputs, inputs - 1, extras, row_inputs)
        ]
        self.outputs, self.row_outputs, self.inputs, self.extras, self.row_inputs = parts


class RowSum:
    """What a row program makes of the values that the lanes of a row hold."""

    def __init__(self, program: RowProgram, columns: int, lanes: int) -> None:
        self.program, self.lanes = program, lanes
        self.count = kd.as_scalar(columns)

    def value(self, product: Any, *inputs: Any) -> Any:
        """An element's value, from its product and the other inputs."""
        return kd.as_scalar(self.program.prologue(product, *map(widened, inputs)))

    def results(self, value: Any, extras: Sequence[Any], stats: Scalars) -> Scalars:
        """The outputs for one element."""
        assert self.program.epilogue is not None, "a program with outputs has an epilogue"
        return self.program.epilogue(value, tuple(map(widened, extras)), stats)

    def statistics(self, values: Sequence[Any], inside: Sequence[Any]) -> Scalars:
        """The statistics of a row, the same in all of its lanes.

        `inside` says of each value whether it belongs to the row; None where that is certain.
        """
        stats: Scalars = ()
        for phase in self.program.phases:
            found = reduced(phase, [[value] for value in values], inside, stats)
            state = tuple(map(kd.as_scalar, found))
            stats = (*stats, *phase.finish(over_lanes(phase, state, self.lanes), self.count, stats))
        return stats

    def picked(
        self, values: Sequence[Any], columns: Sequence[Any], labels: Scalars, exists: Any
    ) -> Any:
        """The value in the column that the first row input names, None where none is asked for."""
        if self.program.picks is None:
            return None
        asked = self.program.picks(labels[0], self.count, exists)
        named = [
            kd.where(asked & (labels[0] == column), value, 0.0)
            for value, column in zip(values, columns, strict=True)
        ]
        total = tree(add, named)
        for step in (1 << i for i in range(self.lanes.bit_length() - 1)):
            total = total + kd.shfl_xor(total, step)
        return total

    def write_row(self, arrays: RowArrays, row: Any, found: tuple[Any, ...], first: Any) -> None:
        """Write a row's own results, by its `first` thread, of what was found: stats, labels, pick.

        The three are the arguments of the program's `row_results`.
        """
        if not arrays.row_outputs:
            return
        assert self.program.row_results is not None, "a program with row outputs computes them"
        results = self.program.row_results(*found)
        for output, value in zip(arrays.row_outputs, results, strict=True):
            output.store(row, kd.as_scalar(value).to(output.dtype), first)


def unknown(statistic: Any) -> Any:
    """The same number, as one that ptxas cannot know.

    Beside values that are stored, too, there are no registers for what was computed of each for the
    statistics, such as powers: it is computed again for the results.
    """
    return kd.shfl_xor(kd.as_scalar(statistic), 0)


class RowOutput:
    """Writes what a row program makes of accumulators of `wgmma`, in tiles as wide as the rows.

    Four threads hold a row, so that shuffles among them give its statistics. 16-bit results that
    TMA can address leave by TMA, others from registers.

    Shapes: outputs, further inputs and extras (M, columns), extras perhaps broadcast by strides of
    0; row outputs and row inputs (M).
    Threads: the warp groups of a block. Memory: as `kd.collective.TmaStoreStage`.
    """

    def __init__(
        self,
        program: RowProgram,
        arrays: Sequence[Any],
        tile: tuple[int, int],
        group: Any,
        extent: tuple[Any, int],
    ) -> None:
        self.tile, self.group, self.extent = tile, group, extent
        self.row_sum = RowSum(program, extent[1], QUAD)
        self.arrays = RowArrays(program, arrays)
        make, thread = kd.collective.FragmentEpilogue, group.thread
        self.values = make(self.row_sum.value, self.arrays.inputs, extent, thread)
        self.results = make(self._results, self.arrays.extras, extent, thread)
        self.stage = None
        if self.arrays.outputs and by_tma(self.arrays.outputs):
            self.stage = kd.collective.TmaStoreStage(
                self.arrays.outputs, tile[1], self.results,
                groups=group.count, group=group.number, thread=thread,
            )  # fmt: skip

    def _results(self, held: tuple[Any, Scalars], *extras: Any) -> Scalars:
        value, stats = held
        return self.row_sum.results(value, extras, stats)

    def init(self) -> None:
        """No barriers of its own."""

    def write(self, acc: Any, tile: Any) -> None:
        """Write a tile's accumulators (V, blocks of 64 rows, 1)."""
        group = self.group
        among = group.number % group.readers
        for block in range(kd.size(acc.layout[1])):
            row = tile.m * self.tile[0] + (block * group.readers + among) * ROWS
            write_block(self, acc[None, block, 0], row)

    def write_block(self, fragment: Any, origin: tuple[Any, Any]) -> None:
        """Write a block of 64 rows, whose first result is at `origin`."""
        rows = FragmentRows(self._values(fragment, origin))
        for pair in range(2):
            rows.stats.append(self._finish_row(rows, pair, origin[0]))
        if self.stage is not None:
            self.stage.store(rows, origin, 0)
        elif self.arrays.outputs:
            self._store(rows, origin)

    def _values(self, fragment: Any, origin: tuple[Any, Any]) -> list[Any]:
        """The values of a block of 64 rows, in the order of its registers."""
        found: list[Any] = []
        for start in range(0, self.tile[1], READ_COLUMNS):
            columns = range(start, min(start + READ_COLUMNS, self.tile[1]))
            (some,) = self.values.results(fragment, self.values.fetch(origin, 0, columns), columns)
            found += some
            kd.sync_warp()  # behind which ptxas does not read the next columns' inputs already
        return found

    def _finish_row(self, rows: FragmentRows, pair: int, first: Any) -> Scalars:
        """The statistics of one of a thread's two rows, whose own results are written."""
        row = first + self.values.row + PAIRS_APART * pair
        values = rows.of(pair)
        columns = [self.values.column + x for x in rows.columns(len(values))]
        stats = self.row_sum.statistics(values, [self._inside(x) for x in columns])
        exists = kd.as_scalar(row < self.extent[0])
        labels = tuple(widened(x.load(row, exists)) for x in self.arrays.row_inputs)
        picked = self.row_sum.picked(values, columns, labels, exists)
        once = exists & (self.group.thread % QUAD == 0)
        self.row_sum.write_row(self.arrays, row, (stats, labels, picked), once)
        return stats if self.row_sum.program.outputs < 2 else tuple(map(unknown, stats))

    def _inside(self, column: Any) -> Any:
        """Whether a column belongs to the row; None where the tile is as wide as the row."""
        return None if self.tile[1] == self.extent[1] else kd.as_scalar(column < self.extent[1])

    def _store(self, rows: FragmentRows, origin: tuple[Any, Any]) -> None:
        """Write results from registers: a quad fills a sector of f32."""
        for start in range(0, self.tile[1], EIGHT):
            columns = range(start, start + EIGHT)
            parts = self.results.fetch(origin, 0, columns)
            found = self.results.results(rows, parts, columns)
            for output, values in zip(self.arrays.outputs, found, strict=True):
                width = min(access_elements(output, 1), 2)
                for at in range(0, QUAD, width):
                    row = origin[0] + self.values.row + PAIRS_APART * (at // 2)
                    column = self.values.column + start + at % 2
                    inside = kd.as_scalar(row < self.extent[0]) & (column < self.extent[1])
                    put(output, (row, column), 1, values[at : at + width], inside)
            kd.sync_warp()  # as above

    def finish(self) -> None:
        """Wait until shared memory is no longer read; the block may end then."""
        if self.stage is not None:
            self.stage.finish()


@kd.func
def write_block(out, fragment, row):
    """Write a block of 64 rows from `row` on, if there is one.

    The branch also keeps conversions of accumulators behind the wait for them: without it ptxas
    serialises `wgmma` (C7514) where a product is rounded at once.
    """
    if row < out.extent[0]:
        out.write_block(fragment, (row, 0))


class FragmentRows:
    """A thread's values of two rows in the order of its registers, each with its row's statistics.

    Of each eight columns the first two values are of the one row, the next two of the other one.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)
        self.stats: list[Scalars] = []

    def of(self, pair: int) -> list[Any]:
        """The values of one of the two rows."""
        return [x for i, x in enumerate(self.values) if i // 2 % 2 == pair]

    def columns(self, count: int) -> list[int]:
        """Columns of a row's values, counted from the thread's first one."""
        return [EIGHT * (i // 2) + i % 2 for i in range(count)]

    def __getitem__(self, index: int) -> tuple[Any, Scalars]:
        return self.values[index], self.stats[index // 2 % 2]
