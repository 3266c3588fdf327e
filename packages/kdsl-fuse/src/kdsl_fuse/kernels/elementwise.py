"""Pointwise functions of any number of operands, written to one or more outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_fuse import arrays
from kdsl_fuse.kernels.vectors import begin, caching, common_width, neighbours, put, widened
from kdsl_fuse.kernels.views import Modes, require_distinct

THREADS = 256
_READ_BYTES = 64  # of operands that a thread should have under way: 128 KiB a multiprocessor
_MOST_VECTORS = 8
_BUSY_THREADS = 1 << 18  # that keep a chip's memory busy
_LARGEST_I32 = 2**31 - 1


@dataclass(frozen=True)
class ElementwiseConfig:
    """How elements are shared among threads.

    A thread takes `vectors` times `width` neighbouring elements of the last mode, and reads all of
    them before it computes. `partial` says that the last block has too few, `wide` that elements
    are counted in 64 bits. `load` and `store` are cache operators. `overlap` says that the kernel
    itself waits for the launch before, which takes sm_90.
    """

    width: int
    vectors: int
    threads: int = THREADS
    partial: bool = True
    wide: bool = False
    load: str = ""
    store: str = ""
    overlap: bool = True


@kd.kernel
def elementwise(
    *operands: kd.Tensor, function: kd.Static, config: kd.Static, outputs: kd.Static = 1
):
    """outputs = function(*inputs): the first `outputs` operands are written, the others read.

    Elements narrower than 32 bits are widened first, results rounded once, to their output's type.
    A function with several outputs gives a tuple.

    Shapes: all the same; inputs may be broadcast by strides of 0.
    """
    begin(config)
    c = config
    along = len(operands[0].shape) - 1
    written, read = operands[:outputs], operands[outputs:]
    block = kd.as_scalar(kd.block_idx()[0])
    first = (block.to(kd.i64) if c.wide else block) * (c.threads * c.vectors) + kd.thread_rank()
    spots = [spot(operands[0].shape, first + v * c.threads, c) for v in range(c.vectors)]
    found = [
        [neighbours(x, place, along, c.width, inside, c.load) for x in read]
        for place, inside in spots
    ]
    for (place, inside), vectors in zip(spots, found, strict=True):
        elements = zip(*vectors, strict=True) if vectors else [()] * c.width
        results = [results_of(function, each) for each in elements]
        for output, values in zip(written, zip(*results, strict=True), strict=True):
            put(output, place, along, values, inside, c.store)


def spot(shape, number, config):
    """Where vector `number` starts, lines one after the other, and whether it exists."""
    *outer, length = shape
    line = length // config.width
    vectors = math.prod(outer, start=kd.as_scalar(line, number.dtype))
    inside = kd.as_scalar(number < vectors) if config.partial else None
    place = []
    for extent in (line, *outer[:0:-1]) if outer else ():
        place.append(number % extent)
        number = number // extent
    place.append(number)
    place[0] = place[0] * config.width
    return tuple(reversed(place)), inside


def results_of(function, elements):
    """The results for one element, one for each output."""
    results = function(*map(widened, elements))
    return tuple(map(kd.as_scalar, results if isinstance(results, tuple) else (results,)))


@dataclass(frozen=True)
class ElementwisePlan:
    """A pointwise function of operands of certain shapes, ready to launch."""

    modes: Modes
    config: ElementwiseConfig
    outputs: int

    @property
    def grid(self) -> int:
        """Blocks."""
        total = math.prod(self.modes.shape) // self.config.width
        return -(-total // (self.config.threads * self.config.vectors))

    def run(self, function: Callable[..., Any], *operands: Any) -> None:
        """outputs = function(*inputs), on the arrays' current stream."""
        if not math.prod(self.modes.shape):
            return
        launch = elementwise.configure(grid=self.grid, block=self.config.threads, overlap=True)
        views = self.modes.views(operands)
        launch(*views, function=function, config=self.config, outputs=self.outputs)


def choose(outputs: Sequence[Any], inputs: Sequence[Any]) -> ElementwisePlan:
    """The plan for arrays, or `kd.spec`s; inputs are broadcast to the outputs' shape.

    Raises: ArgumentError K944 where an operand cannot be repeated to it, K945 for an output whose
    places share elements, K946 for outputs of several shapes.
    """
    operands = (*outputs, *inputs)
    shape = _common_shape(outputs)
    for index, output in enumerate(outputs):
        require_distinct(output, f"output {index}")
    modes = Modes.of(operands, shape)
    order = sorted(range(len(shape)), key=lambda i: (-modes.strides[0][i], i))
    modes = modes.permuted(order).joined()
    if not modes.shape:
        modes = Modes((1,), ((1,),) * len(operands))
    along = len(modes.shape) - 1
    width = common_width(modes.described(operands), along)
    config = _shared_out(ElementwiseConfig(width, 1), modes, len(outputs), operands)
    return ElementwisePlan(modes, config, len(outputs))


def _common_shape(outputs: Sequence[Any]) -> tuple[int, ...]:
    specs = [arrays.spec_of(output) for output in outputs]
    shapes = {spec.shape for spec in specs if spec is not None}
    if len(shapes) != 1:
        raise ArgumentError(
            f"outputs of one kernel must have one shape, got {', '.join(map(str, specs))}",
            code="K946",
            fix="write them by kernels of their own",
        )
    return shapes.pop()


def _shared_out(
    config: ElementwiseConfig, modes: Modes, outputs: int, operands: Sequence[Any]
) -> ElementwiseConfig:
    """As many vectors a thread as keep memory busy, but threads first."""
    specs = [arrays.spec_of(x) for x in operands]
    full = [
        s.dtype.bytes for s, steps in zip(specs, modes.strides, strict=True) if s and any(steps)
    ]
    read, written = sum(full[outputs:]), sum(full[:outputs])
    elements = math.prod(modes.shape)
    total = elements // config.width
    under_way = config.width * read or _READ_BYTES // 4
    vectors = min(_MOST_VECTORS, max(_READ_BYTES // under_way, 1), max(total // _BUSY_THREADS, 1))
    return replace(
        config,
        **caching(elements * read, elements * written),
        vectors=vectors,
        partial=total % (config.threads * vectors) != 0,
        wide=(total + config.threads * vectors) * config.width > _LARGEST_I32,
    )
