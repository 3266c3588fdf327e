"""Convolutions of few channels on Hopper ready to launch: a configuration, and the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kdsl_core.ir.map_limits import ALIGNMENT
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_views import filter_matrix, result_matrix
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS
from kdsl_fuse.kernels.stem_sm90 import ROWS, StemConfig, stem_sm90
from kdsl_fuse.strided import Strided, row_major

MOST_FILTERS = 128
MOST_STEPS = 16  # of an instruction's K: fragments of all are in a thread's registers
RESULT_BYTES = 16_384  # shared memory of a warp group's results on their way out
_SHAPES = ((2, 3, 4), (2, 3, 3), (2, 2, 3), (1, 3, 4), (2, 2, 2), (1, 2, 3), (1, 1, 3))


@dataclass(frozen=True)
class StemPlan:
    """One way to compute a convolution of few channels."""

    problem: ConvProblem
    config: StemConfig
    multiprocessors: int = MULTIPROCESSORS

    kernel = stem_sm90
    cluster = None

    def __str__(self) -> str:
        c = self.config
        return f"stem {c.tile[0]}x{c.tile[1]} s{c.stages} coop{c.consumers}"

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        rows, columns = self.problem.output
        return -(-rows * columns // self.config.tile[0]) * self.problem.batch

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, its results and barriers included."""
        c = self.config
        return c.shared_bytes + c.consumers * RESULT_BYTES + model.BARRIER_BYTES

    @property
    def side_by_side(self) -> int:
        """Blocks of a multiprocessor."""
        warps = 4 * self.config.consumers
        return max(min(model.SM_SHARED_BYTES // self.shared_bytes, 16 // warps), 1)

    @property
    def grid(self) -> int:
        """Blocks: as many as run at a time, or one for each tile."""
        return min(self.tiles, self.multiprocessors * self.side_by_side)

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.config.threads

    @property
    def statics(self) -> dict[str, Any]:
        """The kernel's trace-time arguments but for the epilogue."""
        return {"config": self.config, "columns": self.problem.output[1]}

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        return stem_sm90.configure(grid=self.grid, block=self.config.threads, overlap=True)

    def oriented(self, y: Any) -> Any:
        """A matrix of pixels × filters as (pixels of an image, filters, images)."""
        facts, (rows, columns) = facts_of(y, "y"), self.problem.output
        pixels, (pitch, step) = rows * columns, facts.strides
        shape = pixels, self.problem.filters, self.problem.batch
        return arrays.view(y, Strided(shape, (pitch, step, pixels * pitch)))

    def run(
        self,
        x: Any,
        w: Any,
        out: Any,
        *extras: Any,
        epilogue: Callable[..., Any] = identity,
        also: Sequence[Any] = (),
    ) -> None:
        """As `ConvPlan.run`, for images and filters that are contiguous."""
        p = self.problem
        line = p.width * p.channels
        images = arrays.view(x, Strided.dense((p.batch, p.height, line)))
        results = [result_matrix(y, p, "out") for y in (out, *also)]
        operands = [result_matrix(y, p, "an extra operand") for y in extras]
        self.launch(
            images, filter_matrix(w), *map(self.oriented, (*results, *operands)),
            epilogue=epilogue, outputs=len(results), **self.statics,
        )  # fmt: skip


def takes(x: Any, w: Any) -> bool:
    """Whether images and filters lie as this kernel reads them."""
    images, filters = facts_of(x, "x"), filter_matrix(w)
    dense = tuple(images.strides) == row_major(tuple(images.shape))
    return dense and images.pointer % ALIGNMENT == 0 and filters is not None


def fits(problem: ConvProblem) -> bool:
    """Whether this kernel takes a convolution: pairs of a few channels, whole lines for TMA."""
    p = problem
    even = p.stride[1] * p.channels % 2 == 0 and p.width * p.channels % 8 == 0
    small = p.channels % 8 and p.filters <= MOST_FILTERS and p.groups == 1
    return bool(even and small and p.dilation == (1, 1) and candidates(p))


def candidates(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> list[StemPlan]:
    """The plans that fit a multiprocessor, those worth trying first first."""
    return list(_candidates(problem, multiprocessors))


def _candidates(problem: ConvProblem, multiprocessors: int) -> Iterator[StemPlan]:
    for blocks, consumers, stages in _SHAPES:
        config = StemConfig.of(problem, blocks, consumers, stages)
        plan = StemPlan(problem, config, multiprocessors)
        whole = config.tile[0] // ROWS == blocks * consumers
        if config.steps <= MOST_STEPS and plan.shared_bytes <= model.SHARED_BYTES and whole:
            yield plan
