"""Reductions over the first axis of a matrix: neighbouring threads take neighbouring columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.errors import ArgumentError
from kdsl_fuse import arrays
from kdsl_fuse.kernels.row_programs import REDUCTIONS, tree
from kdsl_fuse.kernels.vectors import begin, common_width, computed, neighbours, put, widened
from kdsl_fuse.kernels.views import Modes, require_distinct
from kdsl_fuse.strided import Strided

MULTIPROCESSORS = 132
_LANES, _DEPTH = 32, 8  # threads of a block along columns and rows
_UNROLLED_BYTES = 64  # that a thread has under way
_BLOCKS_EACH = 6  # of a multiprocessor: all of them have work to do, whatever ends first
_LEAST_ROWS = 64  # of a part: what it costs to add one up again


@dataclass(frozen=True)
class ColumnsConfig:
    """How a matrix is shared among blocks of `lanes` × `depth` threads.

    A thread takes `width` neighbouring columns and `unrolled` rows at a time, one of `depth`; the
    rows are split into `parts`. `first` says that elements are reduced, not what parts left.
    `finished` says that there is nothing to be combined afterwards, `overlap` that the kernel
    itself waits for the launch before, which takes sm_90.
    """

    width: int
    unrolled: int
    parts: int = 1
    lanes: int = _LANES
    depth: int = _DEPTH
    first: bool = True
    finished: bool = True
    overlap: bool = True

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.depth


@kd.kernel
def columns(
    x: kd.Tensor,
    y: kd.Tensor,
    *,
    count: kd.i32,
    reduction: kd.Static,
    config: kd.Static,
):
    """y[part, …] = what a reduction with states of one number makes of x[rows of the part, …].

    Block (i, part) takes the part's rows of lanes · width columns. `count` is the number of
    elements reduced in the end.
    """
    begin(config)
    c = config
    x, y = (t if len(t.shape) == 2 else t.group(1, len(t.shape)) for t in (x, y))
    height, wide = x.shape[0], kd.size(x, 1)
    across, part, _ = kd.block_idx()
    lane, level = kd.thread_rank() % c.lanes, kd.thread_rank() // c.lanes
    column = (across * c.lanes + lane) * c.width
    share = kd.ceil_div(height, c.parts)
    start, stop = part * share, kd.minimum((part + 1) * share, height)
    exists = kd.as_scalar(column < wide)
    fill = reduction.fill(computed(x.dtype), ())
    held = kd.rmem(computed(x.dtype), c.width).fill(reduction.identity(computed(x.dtype))[0])
    step = c.depth * c.unrolled
    for row in kd.range(start + level, stop, step):
        rows = [row + c.depth * u for u in range(c.unrolled)]
        insides = [exists & (at < stop) for at in rows]
        read = [
            neighbours(x, (at, column), 1, c.width, inside)
            for at, inside in zip(rows, insides, strict=True)
        ]
        found = [
            [kd.where(inside, widened(value), fill) for value in vector]
            for vector, inside in zip(read, insides, strict=True)
        ]
        for i, values in enumerate(zip(*found, strict=True)):
            held[i] = reduction.combine((held[i],), reduced(reduction, values, c.first))[0]
    totals = over_levels(reduction, held, lane, level, c)
    if c.finished:
        totals = [reduction.finish((total,), count, ())[0] for total in totals]
    put(y, (part, column), 1, totals, exists & (level == 0))


def reduced(reduction, values, first):
    """The state of some elements, or of the states of some parts."""
    if first:
        return reduction.local(values, ())
    return tree(reduction.combine, [(value,) for value in values])


def over_levels(reduction, held, lane, level, config):
    """The totals over the block's levels, for the threads of level 0."""
    c = config
    shared = kd.smem(held.dtype, (c.lanes, c.width, c.depth), name="levels")
    for i in range(c.width):
        shared[lane, i, level] = held[i]
    kd.sync_threads()
    return [
        tree(reduction.combine, [(shared[lane, i, other],) for other in range(c.depth)])[0]
        for i in range(c.width)
    ]


def reduce_columns(name: str, x: Any, y: Any) -> None:
    """y = "sum", "mean", "max", "min" or "prod" of x along the first axis.

    Floats are computed in f32 (f64 in f64), integers in 32 bits, or 64 where x has them. Rows of
    few columns are split among more blocks, whose results a second launch combines.

    Raises: ArgumentError K950 for another name, for single numbers, and for extremes of nothing;
    K947 where y has another shape, K945 where its places share elements.
    """
    spec, result = arrays.spec_of(x), arrays.spec_of(y)
    if spec is None or result is None or spec.shape[1:] != result.shape or not spec.shape:
        raise ArgumentError(
            f"a reduction over the first axis of {spec} gives its other axes, got {result}",
            code="K947",
            fix="pass a result of the shape x.shape[1:]",
        )
    if name not in REDUCTIONS or (name in ("max", "min") and spec.shape[0] == 0):
        raise ArgumentError(
            f"{name} over the first axis of {spec}: no such reduction, or no value to choose",
            code="K950",
            fix=f"there are {', '.join(REDUCTIONS)}; max and min need a row",
        )
    require_distinct(y, "the output")
    if math.prod(result.shape):
        choose(name, x, y).run(x, y)


@dataclass(frozen=True)
class ColumnsPlan:
    """A reduction over the first axis of an array of a certain shape, ready to launch.

    `modes` are the columns, with the strides of x and y; `step` is x's stride along the rows. Where
    a `second` launch combines what the first left in parts, these are of type `held`.
    """

    reduction: Any
    height: int
    step: int
    modes: Modes
    held: DType
    config: ColumnsConfig
    second: ColumnsConfig | None = None

    @property
    def wide(self) -> int:
        """Columns."""
        return math.prod(self.modes.shape)

    @property
    def source(self) -> Strided:
        """x as the first launch takes it."""
        return Strided((self.height, *self.modes.shape), (self.step, *self.modes.strides[0]))

    @property
    def target(self) -> Strided:
        """y as the last launch takes it."""
        return Strided((1, *self.modes.shape), (0, *self.modes.strides[1]))

    @property
    def parts(self) -> Strided:
        """Partial results: the matrix's columns, in its order, packed."""
        shape = self.modes.shape
        steps = [math.prod(shape[:i]) for i in range(len(shape))]
        return Strided((self.config.parts, *shape), (self.wide, *steps))

    def grid(self, config: ColumnsConfig) -> tuple[int, int]:
        """Blocks of a launch."""
        return -(-self.wide // (config.lanes * config.width)), config.parts

    def statics(self, config: ColumnsConfig) -> dict[str, Any]:
        """All arguments of a launch but the arrays."""
        return {"count": self.height, "reduction": self.reduction, "config": config}

    def run(self, x: Any, y: Any) -> None:
        """y = the reduction of x, on the arrays' current stream."""
        source, target = arrays.view(x, self.source), arrays.view(y, self.target)
        if self.second is None:
            self._launch(source, target, self.config)
            return
        parts = arrays.view(arrays.empty((self.config.parts, self.wide), self.held, x), self.parts)
        self._launch(source, parts, self.config)
        self._launch(parts, target, self.second)

    def _launch(self, x: Any, y: Any, config: ColumnsConfig) -> None:
        launch = columns.configure(
            grid=self.grid(config), block=config.threads, overlap=config.overlap
        )
        launch(x, y, **self.statics(config))


def choose(name: str, x: Any, y: Any, *, overlap: bool = True) -> ColumnsPlan:
    """The plan for arrays, or `kd.spec`s, of fitting shapes."""
    spec, result = arrays.spec_of(x), arrays.spec_of(y)
    assert spec is not None and result is not None, "operands are arrays"
    modes = Modes(spec.shape[1:], (spec.strides[1:], result.strides)).joined()
    modes = modes.permuted(range(len(modes.shape))[::-1])  # neighbouring columns first
    if not modes.shape:
        modes = Modes((1,), ((1,), (1,)))
    height, step = spec.shape[0], spec.strides[0]
    source = Modes((height, *modes.shape), ((step, *modes.strides[0]),))
    width = common_width(source.described([x]), 1) if len(modes.shape) == 1 else 1
    wide = math.prod(modes.shape)
    config = replace(shared_out(height, wide, width, spec.dtype.bytes), overlap=overlap)
    plan = ColumnsPlan(REDUCTIONS[name], height, step, modes, computed(spec.dtype), config)
    if config.parts == 1:
        return plan
    second = shared_out(config.parts, wide, math.gcd(width, 4), 4, most=1)
    second = replace(second, first=False, overlap=overlap)
    return replace(plan, config=replace(config, finished=False), second=second)


@lru_cache(maxsize=1024)
def shared_out(
    height: int, wide: int, width: int, item_bytes: int, most: int | None = None
) -> ColumnsConfig:
    """The configuration for a matrix; at most `most` parts."""
    unrolled = max(_UNROLLED_BYTES // (width * item_bytes), 1)
    blocks = -(-wide // (_LANES * width))
    wanted = -(-_BLOCKS_EACH * MULTIPROCESSORS // blocks)
    parts = max(min(wanted, height // _LEAST_ROWS, most or wanted), 1)
    return ColumnsConfig(width, min(unrolled, 8), parts)
