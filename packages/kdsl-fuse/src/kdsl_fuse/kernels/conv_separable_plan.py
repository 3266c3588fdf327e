"""Separable convolutions in one kernel, ready to launch: sizes checked, configuration and grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import target_of
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import conv_depthwise_plan as depthwise
from kdsl_fuse.kernels import conv_separable_space as space
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import EIGHT, SeparableConfig, Tails
from kdsl_fuse.kernels.conv_separable_model import (
    CYCLES_PER_US,
    Choice,
    SeparableProblem,
    at_once,
    count,
    cycles,
)
from kdsl_fuse.kernels.conv_separable_sm90 import KERNELS
from kdsl_fuse.kernels.conv_views import filter_matrix, rows_of
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS
from kdsl_fuse.strided import Strided

COLUMNS = (2, 5)  # taps of a row, fewest and most
TAPS = 25


@dataclass(frozen=True)
class SeparablePlan:
    """One way to compute a separable convolution in one launch on Hopper."""

    problem: SeparableProblem
    choice: Choice
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        c = self.config
        w = c.window
        tile = "x".join(map(str, (*w.tile, w.channels, c.filters)))
        words = [tile, f"r{w.rows}", f"g{c.groups}", f"p{c.parts}", f"s{w.stages}"]
        return " ".join([*words, f"b{self.choice.blocks_per_sm}", *[f"c{c.peers}"] * (c.peers > 1)])

    @property
    def config(self) -> SeparableConfig:
        """How blocks compute."""
        return self.choice.config

    @property
    def grid(self) -> int:
        """Blocks: as many as run at a time, or one for each tile; whole clusters."""
        room = at_once(self.choice, self.multiprocessors)
        return min(count(self.problem, self.config), room) * self.config.peers

    @property
    def about_us(self) -> float:
        """About how long it takes."""
        return cycles(self.problem, self.choice, self.multiprocessors) / CYCLES_PER_US

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """Blocks that share channels."""
        return (self.config.peers, 1, 1) if self.config.peers > 1 else None

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        kernel = KERNELS[self.choice.blocks_per_sm]
        return kernel.configure(
            grid=self.grid, block=self.config.threads, cluster=self.cluster, overlap=True
        )

    def run(self, x: Any, w: Any, pointwise: Any, out: Any, *extras: Any, epilogue: Tails) -> None:
        """out = epilogue of both convolutions, on the arrays' current stream.

        Filters are contiguous. Extras have four modes, perhaps by strides of 0: the first ones
        those of the depthwise result, the others those of out.
        """
        taps = depthwise.reshaped(w, (self.problem.depthwise.channels, self.config.window.taps))
        filters = filter_matrix(pointwise)
        self.launch(x, taps, filters, out, *extras, epilogue=epilogue, config=self.config)


def refusal(
    problem: SeparableProblem, dtype: DType, target: str = "sm_90a", extras: int = 0
) -> str | None:
    """Why the two convolutions cannot share a kernel, None where they can."""
    p = problem.depthwise
    if target_of(target).number < depthwise.HOPPER or not target.endswith("a"):
        return f"it multiplies by wgmma, which {target} does not have"
    if dtype.bits != 16:
        return f"it takes f16 and bf16, not {dtype}"
    if p.filters != p.channels:
        return f"it has one filter for each channel, not {p.filters} for {p.channels}"
    if p.channels % EIGHT or problem.filters % EIGHT:
        return (
            f"it takes channels and filters by {EIGHT}, which {p.channels} and {problem.filters} "
            "are not"
        )
    narrow = COLUMNS[0] <= p.kernel[1] <= COLUMNS[1] and p.kernel[0] * p.kernel[1] <= TAPS
    steps = all(step <= taps for step, taps in zip(p.stride, p.kernel, strict=True))
    if not narrow or not steps or p.dilation != (1, 1):
        return (
            f"its windows have up to {TAPS} taps, {COLUMNS[0]} to {COLUMNS[1]} in a row, without "
            f"gaps between or within them, not {p.kernel} with stride {p.stride} and dilation "
            f"{p.dilation}"
        )
    if not space.candidates(problem, extras):
        return "no tile of it fits shared memory and registers"
    return None


def lie_well(x: Any, w: Any, pointwise: Any) -> bool:
    """Whether TMA can walk over images and pointwise filters, and depthwise ones are dense."""
    facts = facts_of(pointwise, "pointwise")
    filters = rows_of(Strided.of(facts))
    if filters is None:
        return False
    starts = facts.pointer, filters.strides[0] * facts.dtype.bytes
    whole = not any(start % depthwise.ADDRESSABLE for start in starts)
    return whole and depthwise.access_width(x, w, x, ()) is None


@lru_cache(maxsize=1024)
def choose(
    problem: SeparableProblem, extras: int = 0, multiprocessors: int = MULTIPROCESSORS
) -> SeparablePlan:
    """The plan for these sizes, and `extras` numbers for each input channel.

    `refusal` has no reason against them.
    """
    choice = space.candidates(problem, extras, multiprocessors)[0]
    return SeparablePlan(problem, choice, multiprocessors)


def conv_separable(
    x: Any,
    w: Any,
    pointwise: Any,
    bias: Any = None,
    pointwise_bias: Any = None,
    out: Any = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    between: Callable[..., Any] = identity,
    extras: Sequence[Any] = (),
    epilogue: Callable[..., Any] = identity,
) -> Any:
    """epilogue(Σ pointwise · between(depthwise + bias) + pointwise_bias, extras…); returns `out`.

    Both sums are f32; what is between them is rounded to the images' type once, as if it were
    stored. A result of the depthwise convolution that is no finite number makes NaN of all filters'
    results of its pixel, and of its neighbours' in a window.

    Shapes: x (batch, height, width, channels), w (channels, R, S, 1), pointwise (filters, 1, 1,
    channels), biases (channels) and (filters), out (batch, rows, columns, filters); extras are
    broadcast to out. f16 or bf16, on Hopper.
    Memory: `out` is new where none is given. Starts and strides are multiples of 16 bytes.
    Raises: ArgumentError K999 where `refusal` has a reason, K977 and K978 as `conv_depthwise`.
    """
    first = depthwise.problem_of(x, w, *(depthwise.pair(n) for n in (stride, padding, 1)))
    problem = SeparableProblem(first, _filters_of(first, pointwise))
    dtype, rows = facts_of(x, "x").dtype, (first.batch, *first.output)
    out = depthwise.result(out, (*rows, problem.filters), x)
    gpu = arrays.gpu_of(x)
    numbers = [depthwise.broadcast(b, (*rows, first.channels)) for b in (bias,) if b is not None]
    reason = refusal(problem, dtype, "sm_90a" if gpu is None else gpu.target, len(numbers))
    if reason is None and not (lie_well(x, w, pointwise) and lie_well(out, w, pointwise)):
        reason = "its arrays start at multiples of 16 bytes and have such strides"
    if reason is not None:
        raise kd.ArgumentError(
            f"two convolutions do not share a kernel: {reason}",
            code="K999",
            fix="call conv_depthwise, and conv2d_sm90 on its result",
        )
    behind = epilogue if pointwise_bias is None else depthwise.Biased(epilogue)
    given = [*([] if pointwise_bias is None else [pointwise_bias]), *extras]
    seen = [depthwise.broadcast(extra, (*rows, problem.filters)) for extra in given]
    before = between if bias is None else depthwise.Biased(between)
    plan = choose(problem, len(numbers))
    epilogues = Tails(before, len(numbers), behind)
    plan.run(x, w, pointwise, out, *numbers, *seen, epilogue=epilogues)
    return out


def _filters_of(problem: ConvProblem, pointwise: Any) -> int:
    """How many pointwise filters there are, once they fit the depthwise result."""
    shape = tuple(facts_of(pointwise, "pointwise").shape)
    if len(shape) != 4 or shape[1:] != (1, 1, problem.filters):
        raise kd.ArgumentError(
            f"pointwise filters are (filters, 1, 1, channels) for {problem.filters} channels, got "
            f"{shape}",
            code="K977",
            fix="give them the channels of the depthwise result",
        )
    return shape[0]
