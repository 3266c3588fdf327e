"""Row-wise kernels from one template: read a row once, reduce it, compute from it, write.

A `RowProgram` says what is computed (`row_programs` has the usual ones), a `RowConfig` how rows are
shared among threads (`rows_plan` chooses).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_core.layout import leaves
from kdsl_fuse.kernels.row_exchange import WARP, Exchange, reduced
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.row_ring import take_from_rings
from kdsl_fuse.kernels.row_turns import take_in_turns
from kdsl_fuse.kernels.vectors import begin, neighbours, put, widened


@dataclass(frozen=True)
class RowConfig:
    """How rows are shared among threads.

    `lanes` threads of each of `cluster` blocks hold a row, `vectors` times `width` neighbouring
    elements each: a power of two up to 32, or whole warps. A block has `groups` such groups of
    threads, and each takes `together` rows at a time, which share operands of the epilogue.
    `ragged` says that the last of a thread's vectors may lie behind the row's end, `partial` that
    the last block has too few rows. Rows that are too long to be held are `streamed`: read again
    for each phase and for the results; or they are `staged` in shared memory, so many times
    `columns` of them, and read there, while `kept` times `columns` behind them stay in registers:
    no more turns than the row needs.
    Staged rows may come through a `ring` of so many turns for each of the `groups`: `clusters` then
    stay, and take one row after another, while a warp behind the others copies ahead.
    `early` reads operands of the epilogue before the reductions, of staged rows a turn ahead. With
    `resident` a thread has so few registers that as many blocks share a multiprocessor. `load` and
    `store` are the cache operators of what is read and written once, `again` that with which a
    streamed row is read for its results. `overlap` says that the kernel itself waits for the launch
    before, which takes sm_90, as clusters and stages do.
    """

    width: int
    lanes: int
    vectors: int
    groups: int = 1
    together: int = 1
    cluster: int = 1
    ragged: bool = True
    partial: bool = True
    streamed: bool = False
    staged: int = 0
    kept: int = 0
    ring: int = 0
    clusters: int = 0
    resident: int = 0
    early: bool = True
    load: str = ""
    again: str = ""
    store: str = ""
    overlap: bool = True

    def __post_init__(self) -> None:
        alone = (self.kept, self.together, self.partial, self.lanes % WARP) == (0, 1, False, 0)
        if self.ring and not (alone and self.ring >= self.staged > 0 < self.clusters):
            raise kd.ArgumentError(
                "the ring of a group holds all staged turns of a row, one at a time, whose whole "
                f"warps keep nothing else, in 1 cluster or more of rows without end; got {self}",
                code="K937",
                fix="take as many stages as turns at least, and `partial=False`",
            )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups + (WARP if self.ring else 0)

    def grid(self, height: int) -> int:
        """Blocks for so many rows."""
        clusters = min(self.clusters, height) if self.ring else -(-height // self.rows)
        return clusters * self.cluster

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.groups * self.together

    @property
    def columns(self) -> int:
        """Columns that the threads of a row take at a time."""
        return self.chunk * self.cluster

    @property
    def chunk(self) -> int:
        """Columns that the threads of a row in one block take at a time."""
        return self.width * self.lanes * self.vectors

    @property
    def in_turns(self) -> bool:
        """Whether a thread takes a row in turns, and does not hold it."""
        return self.streamed or self.staged > 0

    @property
    def ends_apart(self) -> bool:
        """Whether the staged turn in which the row ends is taken behind the loop over the others.

        They need not look for the end then.
        """
        return self.ragged and self.staged > 2 and not self.kept


@kd.kernel
def rows(*arrays: kd.Tensor, program: kd.Static, config: kd.Static):
    """Outputs, row outputs = program(inputs, extras, row inputs), in this order of `arrays`.

    Shapes: outputs, inputs and extras (…, n), extras perhaps broadcast by strides of 0; row outputs
    and row inputs (…). All leading modes are the same.
    """
    if config.resident:
        kd.min_blocks_per_sm(config.resident)
    if config.ring:
        operands = Operands(program, arrays)
        take_from_rings(program, operands, Share(config, operands.full[0].shape))
        return
    begin(config)
    operands = Operands(program, arrays)
    share = Share(config, operands.full[0].shape)
    exchange = Exchange(config)
    if config.in_turns:
        take_in_turns(program, operands, share, exchange)
    else:
        hold(program, operands, share, exchange)


def hold(program, operands, share, exchange):
    """Rows that stay in registers from their reading to their writing."""
    labels = [operands.labels(row, share) for row in share.rows]
    read = [operands.read(row, share) for row in share.rows]
    if share.config.early:
        extras = operands.extras_of(share)
    picked = [operands.picked(row, *label) for row, label in zip(share.rows, labels, strict=True)]
    values = [[operands.values(vector) for vector in vectors] for vectors in read]
    stats = [() for _ in share.rows]
    for number, phase in enumerate(program.phases):
        states = [
            share.reduced(phase, vectors, found)
            for vectors, found in zip(values, stats, strict=True)
        ]
        totals = exchange.totals(number, phase, states)
        stats = [
            (*found, *phase.finish(state, share.count, found))
            for found, state in zip(stats, totals, strict=True)
        ]
    if not share.config.early:
        extras = operands.extras_of(share)
    for r, row in enumerate(share.rows):
        for v in range(share.config.vectors):
            operands.write(row, v, share, values[r][v], extras[r][v], stats[r])
        operands.write_row(row, share, stats[r], labels[r][0], picked[r])


class Share:
    """Which rows and columns belong to a thread, in one turn of those that a row is taken in."""

    def __init__(self, config: RowConfig, shape: Any, turn: Any = 0, row: Any = None) -> None:
        self.config, self.shape, self.turn = config, shape, turn
        self.height, self.columns = kd.size(shape[0]), shape[1]
        self.count = kd.as_scalar(self.columns)
        self.lane = kd.thread_rank() % config.lanes
        if row is None:
            first = kd.cluster_idx()[0] * config.rows + kd.thread_rank() // config.lanes
            self.rows = [first + config.groups * r for r in range(config.together)]
        else:
            self.rows = [row]
        self.part = kd.cluster_rank() * config.lanes + self.lane

    @property
    def turns(self) -> Any:
        """How often the threads take columns."""
        c = self.config
        return c.staged + c.kept if c.staged else kd.ceil_div(self.columns, c.columns)

    def at(self, turn: Any) -> Share:
        """The same rows in another turn."""
        return self.of(self.rows[0], turn)

    def of(self, row: Any, turn: Any = 0) -> Share:
        """The same columns of a row of which it is known that there is one."""
        return Share(self.config, self.shape, turn, row)

    def column(self, v: int) -> Any:
        """The first column of the thread's vector `v`: threads take neighbouring vectors.

        Vectors of a block lie side by side where they are staged, for one copy.
        """
        c = self.config
        if c.staged:
            block = self.turn * c.cluster + kd.cluster_rank()
            return block * c.chunk + (v * c.lanes + self.lane) * c.width
        return self.turn * c.columns + (self.part + v * c.cluster * c.lanes) * c.width

    def reaches(self, v: int) -> Any:
        """Whether vector `v` lies in the row; None where that is certain."""
        c = self.config
        if not c.staged:
            ends = v == c.vectors - 1
        elif isinstance(self.turn, int):
            ends = self.turn == self.turns - 1
        else:
            ends = not (c.kept or c.ends_apart)
        if c.streamed or (c.ragged and ends):
            return kd.as_scalar(self.column(v) < self.columns)
        return None

    def has(self, row: Any) -> Any:
        """Whether there is such a row; None where that is certain."""
        return kd.as_scalar(row < self.height) if self.config.partial else None

    def inside(self, row: Any, v: int) -> Any:
        """Whether vector `v` of a row is to be read and written; None where that is certain."""
        return both(self.has(row), self.reaches(v))

    def first(self, row: Any) -> Any:
        """Whether this thread acts for the whole row, which exists."""
        return both(self.has(row), kd.as_scalar(self.part == 0))

    def reduced(self, phase: Any, vectors: Any, stats: Any, state: Any = None) -> tuple[Any, ...]:
        """A phase's state of a thread's vectors, joined to what it has; their part in the row."""
        inside = [self.reaches(v) for v in range(len(vectors))]
        return reduced(phase, vectors, inside, stats, state)


class Operands:
    """The arrays of a launch by their parts in the program."""

    def __init__(self, program: RowProgram, arrays: Any) -> None:
        self.program, left = program, list(arrays)
        counts = program.counts
        taken = [[left.pop(0) for _ in range(count)] for count in counts]
        outputs, row_outputs, inputs, extras, row_inputs = taken
        self.outputs, self.inputs, self.extras = (
            [matrix(x, 1) for x in group] for group in (outputs, inputs, extras)
        )
        self.row_outputs, self.row_inputs = (
            [matrix(x, 0) for x in group] for group in (row_outputs, row_inputs)
        )
        self.full = self.inputs

    def read(self, row: Any, share: Share) -> list[list[list[Any]]]:
        """Vectors of each input."""
        return self._read(row, share, share.config.load)

    def read_again(self, row: Any, share: Share) -> list[list[list[Any]]]:
        """The same for the last time."""
        return self._read(row, share, share.config.again)

    def _read(self, row: Any, share: Share, cache: str) -> list[list[list[Any]]]:
        return [self._read_vector(row, v, share, cache) for v in range(share.config.vectors)]

    def _read_vector(self, row: Any, v: int, share: Share, cache: str) -> list[list[Any]]:
        """A vector of each input."""
        place, inside = (row, share.column(v)), share.inside(row, v)
        return [neighbours(x, place, 1, share.config.width, inside, cache) for x in self.inputs]

    def values(self, read: list[list[Any]]) -> list[Any]:
        """The prologue's values of a vector."""
        elements = zip(*read, strict=True)
        return [kd.as_scalar(self.program.prologue(*map(widened, each))) for each in elements]

    def extras_of(self, share: Share) -> list[list[list[list[Any]]]]:
        """Each row's vectors of each operand of the epilogue; what all rows share is read once."""
        vectors, found = range(share.config.vectors), []
        for row in share.rows:
            shared = found[0] if found else [None] * len(vectors)
            found.append([self._extra(row, v, share, shared[v]) for v in vectors])
        return found

    def _extra(self, row: Any, v: int, share: Share, shared: Any) -> list[list[Any]]:
        """A vector of each operand of the epilogue: of rows behind the first one as it has it."""
        place, inside = (row, share.column(v)), share.inside(row, v)
        return [
            shared[i]
            if shared and alike_in_all_rows(x)
            else neighbours(x, place, 1, share.config.width, inside)
            for i, x in enumerate(self.extras)
        ]

    def write_vectors(self, row: Any, share: Share, read: Any, extras: Any, stats: Any) -> None:
        """Compute and write vectors of each output."""
        for v, (vector, own) in enumerate(zip(read, extras, strict=True)):
            self.write(row, v, share, self.values(vector), own, stats)

    def write(self, row: Any, v: int, share: Share, values: Any, extras: Any, stats: Any) -> None:
        """Compute and write a vector of each output."""
        if not self.outputs:
            return
        results = []
        for i, value in enumerate(values):
            own = tuple(widened(extra[i]) for extra in extras)
            results.append(self.program.epilogue(value, own, stats))
        place, inside = (row, share.column(v)), share.inside(row, v)
        for output, found in zip(self.outputs, zip(*results, strict=True), strict=True):
            put(output, place, 1, [kd.as_scalar(x) for x in found], inside, share.config.store)

    def labels(self, row: Any, share: Share) -> tuple[Any, Any]:
        """The row inputs, and whether this thread is to pick an element by the first of them."""
        if not self.row_inputs:
            return (), None
        first = share.first(row)
        return tuple(widened(x.load(row, first)) for x in self.row_inputs), first

    def picked(self, row: Any, labels: Any, first: Any) -> Any:
        """The value in the column that the first row input names; None where none is asked for."""
        if not self.program.picks:
            return None
        there = self.program.picks(labels[0], kd.as_scalar(self.inputs[0].shape[1]), first)
        elements = [widened(x.load((row, labels[0]), there)) for x in self.inputs]
        return kd.as_scalar(self.program.prologue(*elements))

    def write_row(self, row: Any, share: Share, stats: Any, labels: Any, picked: Any) -> None:
        """Compute and write the row's own results."""
        if not self.row_outputs:
            return
        results = self.program.row_results(stats, labels, picked)
        for output, value in zip(self.row_outputs, results, strict=True):
            output.store(row, kd.as_scalar(value).to(output.dtype), share.first(row))


def matrix(x: Any, tail: int) -> Any:
    """A tensor whose leading modes, all but the last `tail`, are one."""
    lead = len(x.shape) - tail
    return x if lead == 1 else x.group(0, lead)


def alike_in_all_rows(x: Any) -> bool:
    """Whether a matrix is known to be one row, broadcast."""
    return all(isinstance(step, int) and step == 0 for step in leaves(x.stride[0]))


def both(first: Any, second: Any) -> Any:
    """The conjunction of two conditions, each of which may be None for true."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
