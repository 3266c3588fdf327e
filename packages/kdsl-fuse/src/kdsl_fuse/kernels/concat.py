"""Arrays one behind the other along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_fuse import arrays
from kdsl_fuse.kernels.elementwise import spot
from kdsl_fuse.kernels.vectors import begin, common_width, neighbours, put

THREADS = 256


@dataclass(frozen=True)
class ConcatConfig:
    """Along which axis, and how many elements a thread takes."""

    axis: int
    width: int
    overlap: bool = False
    threads: int = THREADS
    partial: bool = True


@kd.kernel
def concat(y: kd.Tensor, *parts: kd.Tensor, config: kd.Static):
    """y = the parts one behind the other. Block (i, part) copies elements of one of them."""
    begin(config)
    c, along = config, len(y.shape) - 1
    number = kd.as_scalar(kd.block_idx()[0] * c.threads + kd.thread_rank())
    before = 0
    for i, part in enumerate(parts):
        if kd.block_idx()[1] == i:
            place, inside = spot(part.shape, number, c)
            values = neighbours(part, place, along, c.width, inside)
            moved = tuple(at + before * (mode == c.axis) for mode, at in enumerate(place))
            put(y, moved, along, values, inside)
        before = before + part.shape[c.axis]


@dataclass(frozen=True)
class ConcatPlan:
    """Arrays of certain shapes, ready to be put together."""

    config: ConcatConfig
    grid: tuple[int, int]

    def run(self, y: Any, *parts: Any) -> None:
        """y = the parts one behind the other, on the arrays' current stream."""
        launch = concat.configure(
            grid=self.grid, block=self.config.threads, overlap=self.config.overlap
        )
        launch(y, *parts, config=self.config)


def choose(y: Any, *parts: Any, axis: int, overlap: bool = False) -> ConcatPlan:
    """The plan for arrays, or `kd.spec`s."""
    operands = (y, *parts)
    specs = [spec for x in operands if (spec := arrays.spec_of(x)) is not None]
    width = 1
    if all(spec.strides[-1] == 1 for spec in specs):
        width = common_width(operands, len(specs[0].shape) - 1)
    largest = max(math.prod(spec.shape) for spec in specs[1:]) // width
    config = ConcatConfig(axis, width, overlap)
    return ConcatPlan(config, (-(-largest // THREADS), len(parts)))
