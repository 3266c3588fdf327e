"""Depthwise convolutions ready to launch: sizes checked, kernel, configuration and grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.target import target_of
from kdsl_core.lang.arguments import ArrayFacts, facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import conv_depthwise_space as space
from kdsl_fuse.kernels.conv_depthwise import conv_depthwise as direct
from kdsl_fuse.kernels.conv_depthwise_config import (
    LANE_CHANNELS,
    MOST_TAPS,
    DepthwiseConfig,
    DirectConfig,
)
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_depthwise_table import TABLE
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS
from kdsl_fuse.kernels.vectors import common_width
from kdsl_fuse.strided import Strided

ADDRESSABLE = 16  # bytes that TMA wants starts and strides to be multiples of
TYPES = (kd.bf16, kd.f16, kd.f32)
HOPPER = 90
BLOCKS = 8  # of the portable kernel, for each multiprocessor
MOST_WEIGHT_BYTES = 48 << 10  # of the portable kernel's shared memory


@dataclass(frozen=True)
class DepthwisePlan:
    """One way to compute a depthwise convolution on Hopper."""

    problem: ConvProblem
    config: DepthwiseConfig
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        c = self.config
        words = ["x".join(map(str, (*c.tile, c.tile_channels))), f"r{c.rows}x{c.together}"]
        words += [f"t{c.teams}", f"s{c.stages}+{c.buffers}", f"b{c.blocks_per_sm}"]
        return " ".join([*words, f"p{c.products}"])

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks: as many as run at a time, the same number for each part of the channels."""
        p, c = self.problem, self.config
        extents = zip((p.batch, *p.output), c.output_tile[:3], strict=True)
        tiles = math.prod(-(-size // extent) for size, extent in extents)
        parts = -(-p.channels // c.tile_channels)
        room = self.multiprocessors * c.blocks_per_sm // parts
        return parts, max(1, min(tiles, room))

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        kernel = KERNELS[self.config.blocks_per_sm]
        return kernel.configure(grid=self.grid, block=self.config.threads, overlap=True)

    def run(
        self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Callable[..., Any] = identity
    ) -> None:
        """out = epilogue(convolution, extras…), on the arrays' current stream.

        Filters are contiguous. Extras have out's shape, perhaps by strides of 0.
        """
        taps = reshaped(w, (self.problem.filters, self.config.taps))
        self.launch(x, taps, out, *extras, epilogue=epilogue, config=self.config)


@dataclass(frozen=True)
class DirectPlan:
    """One way to compute a depthwise convolution on any target."""

    problem: ConvProblem
    config: DirectConfig
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        c = self.config
        return f"direct {c.outputs[0]}x{c.outputs[1]}x{c.width} l{c.lanes} t{c.threads}"

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks: several for each multiprocessor, the same number for each part of the filters."""
        p, c = self.problem, self.config
        extents = zip(p.output, c.outputs, strict=True)
        patches = p.batch * math.prod(-(-size // extent) for size, extent in extents)
        parts = -(-p.filters // c.channels)
        room = self.multiprocessors * BLOCKS // parts
        return parts, max(1, min(-(-patches // c.patches), room))

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        c = self.config
        return direct.configure(grid=self.grid, block=c.threads, overlap=c.overlap)

    def run(
        self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Callable[..., Any] = identity
    ) -> None:
        """out = epilogue(convolution, extras…), on the arrays' current stream.

        Extras have out's shape, perhaps by strides of 0.
        """
        taps = reshaped(w, (self.problem.filters, *self.config.kernel))
        self.launch(x, taps, out, *extras, epilogue=epilogue, config=self.config)


def refusal(
    problem: ConvProblem, dtype: DType, target: str = "sm_90a", *, tensor_cores: bool = True
) -> str | None:
    """Why the Hopper kernel cannot compute it, None where it can: the portable one does, then."""
    if target_of(target).number < HOPPER:
        return f"it copies tiles by TMA, which {target} does not have"
    if dtype.bits != 16:
        return f"it takes f16 and bf16, not {dtype}"
    if problem.filters != problem.channels:
        return f"it has one filter for each channel, not {problem.filters} for {problem.channels}"
    if problem.channels % LANE_CHANNELS:
        return f"its warps take {LANE_CHANNELS} channels each, which {problem.channels} are not"
    if space.first(problem, tensor_cores=tensor_cores) is None:
        return "no tile of it fits shared memory and registers"
    return None


def choose(
    problem: ConvProblem,
    dtype: DType,
    *,
    target: str = "sm_90a",
    width: int | None = None,
    extras: int = 0,
    tensor_cores: bool = True,
    multiprocessors: int = MULTIPROCESSORS,
    device: str = DEVICE,
) -> DepthwisePlan | DirectPlan:
    """The plan for these sizes, and a tail with `extras` as large as the result.

    It is what a table of the device says was fastest, or else what promises most. With `width`, the
    portable kernel, whose accesses may have no more elements.

    Raises: ArgumentError K977, K978; CacheError (K761) where a table cannot be used.
    """
    usual = (target, width, extras, tensor_cores, multiprocessors)
    if usual == ("sm_90a", None, 0, True, MULTIPROCESSORS) and dtype.bits == 16:
        measured = TABLE.find(device, problem)
        if measured is not None:
            return DepthwisePlan(problem, measured)
    return _chosen(problem, dtype, target, width, extras, tensor_cores, multiprocessors)


def explain(problem: ConvProblem, *, device: str = DEVICE) -> str:
    """Which plan of the Hopper kernel `choose` finds, from which table or why by itself.

    Raises: ArgumentError K977 where that kernel has no plan.
    """

    def first() -> DepthwiseConfig:
        config, reason = space.first(problem), refusal(problem, kd.bf16)
        if config is None or reason is not None:
            raise _unfit(f"the Hopper kernel has no plan, {reason}")
        return config

    return TABLE.explain(device, problem, first)


@lru_cache(maxsize=1024)
def _chosen(
    problem: ConvProblem,
    dtype: DType,
    target: str,
    width: int | None,
    extras: int,
    tensor_cores: bool,
    multiprocessors: int,
) -> DepthwisePlan | DirectPlan:
    check(problem, dtype)
    if width is None and refusal(problem, dtype, target, tensor_cores=tensor_cores) is None:
        config = space.first(problem, extras, tensor_cores)
        config = config or space.first(problem, tensor_cores=tensor_cores)
        assert config is not None
        return DepthwisePlan(problem, config, multiprocessors)
    most = math.gcd(problem.filters, problem.channels, 16 // dtype.bytes)
    config = portable(problem, min(width or most, most), target)
    return DirectPlan(problem, config, multiprocessors)


def portable(problem: ConvProblem, width: int, target: str) -> DirectConfig:
    """How threads of the portable kernel share the results: fewer each where windows are large."""
    p = problem
    taps = p.kernel[0] * p.kernel[1]
    outputs = (1, 8) if p.kernel[0] == 1 else (8, 1) if p.kernel[1] == 1 else (2, 4)
    if taps > 25:
        outputs = (1, 4) if p.kernel[1] > 1 else (4, 1)
        width = min(width, 2 if taps <= 49 else 1)
    width = math.gcd(width, 4)
    lanes = 32
    while lanes > 1 and (
        lanes * width >= 2 * p.filters or lanes * width * taps * 4 > MOST_WEIGHT_BYTES
    ):
        lanes //= 2
    return DirectConfig(
        p.kernel, p.stride, p.padding, p.dilation, p.filters // p.channels, width, outputs, lanes,
        overlap=target_of(target).number >= HOPPER,
    )  # fmt: skip


@dataclass(frozen=True)
class Biased:
    """An epilogue of the convolution with its bias added."""

    function: Callable[..., Any] = identity

    def __call__(self, acc: Any, bias: Any, *extras: Any) -> Any:
        """function(acc + bias, extras…)."""
        return self.function(acc + bias.to(kd.f32), *extras)


def conv_depthwise(
    x: Any,
    w: Any,
    bias: Any = None,
    out: Any = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    extras: Sequence[Any] = (),
    epilogue: Callable[..., Any] = identity,
    tensor_cores: bool = True,
    target: str | None = None,
) -> Any:
    """epilogue(convolution + bias, extras…) of each channel by itself; returns `out`.

    Sums are accumulated in f32 and rounded once. Where tensor cores take a part of the taps (f16
    and bf16 on Hopper), an infinity or NaN of one channel makes NaN of its seven neighbours in a
    group of eight, too; with `tensor_cores=False` they take none.

    Shapes: x (batch, height, width, channels), w (filters, R, S, 1) with a multiple of the channels
    as filters, bias (filters), out (batch, rows, columns, filters); extras are broadcast to out.
    Units: `stride`, `padding` and `dilation` are numbers of pixels, or pairs of them along height
    and width. `target` is the GPU's own, or sm_90a in the simulator.
    Memory: `out` is new where none is given.
    Raises: ArgumentError K977, K978.
    """
    pairs = [pair(value) for value in (stride, padding, dilation)]
    problem = problem_of(x, w, *pairs)
    shape = (problem.batch, *problem.output, problem.filters)
    out = result(out, shape, x)
    if bias is not None:
        extras, epilogue = (bias, *extras), Biased(epilogue)
    seen = [broadcast(extra, shape) for extra in extras]
    gpu = arrays.gpu_of(x)
    target = target or ("sm_90a" if gpu is None else gpu.target)
    full = sum(any(facts_of(extra, "extra").strides[:3]) for extra in seen)
    plan = choose(
        problem, facts_of(x, "x").dtype, target=target, width=access_width(x, w, out, seen),
        extras=full, tensor_cores=tensor_cores,
    )  # fmt: skip
    plan.run(x, w, out, *seen, epilogue=epilogue)
    return out


def result(out: Any, shape: tuple[int, ...], x: Any) -> Any:
    """The array for results, or a new one."""
    if out is None:
        return arrays.empty(shape, facts_of(x, "x").dtype, x)
    if tuple(facts_of(out, "out").shape) != shape:
        raise _unfit(f"out is to have the shape {shape}, got {tuple(facts_of(out, 'out').shape)}")
    return out


def problem_of(
    x: Any, w: Any, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> ConvProblem:
    """The sizes of operands, once they fit together."""
    image, filters = facts_of(x, "x"), facts_of(w, "w")
    shapes = tuple(image.shape), tuple(filters.shape)
    if len(shapes[0]) != 4 or len(shapes[1]) != 4 or shapes[1][3] != 1:
        raise _unfit(f"x is (batch, height, width, channels), w (filters, R, S, 1), got {shapes}")
    if image.dtype is not filters.dtype:
        raise _types(f"x is {image.dtype} and w {filters.dtype}")
    batch, height, width, channels = shapes[0]
    count, *kernel, _ = shapes[1]
    if min(batch, channels, count) < 1 or count % channels:
        raise _uneven(count, channels)
    problem = ConvProblem(
        batch, height, width, channels, count, (kernel[0], kernel[1]), stride, padding, dilation,
        channels,
    )  # fmt: skip
    check(problem, image.dtype)
    return problem


def check(problem: ConvProblem, dtype: DType) -> None:
    """Refuse what no kernel computes. Raises: ArgumentError K977, K978."""
    p = problem
    if dtype not in TYPES:
        raise _types(f"operands are {dtype}")
    if not p.depthwise:
        raise _unfit(f"each channel is a group of its own, got {p.groups} groups of {p.channels}")
    if p.filters % p.channels:
        raise _uneven(p.filters, p.channels)
    if min(*p.kernel, *p.stride, *p.dilation) < 1 or min(p.padding) < 0:
        raise _unfit(
            f"kernel, stride and dilation are 1 or more and padding 0 or more, got {p.kernel}, "
            f"{p.stride}, {p.dilation} and {p.padding}"
        )
    if min(p.batch, p.channels, *p.output) < 1:
        raise _unfit(f"the window with its dilation is larger than the padded image: {p}")
    if math.prod(p.kernel) > MOST_TAPS:
        raise _unfit(f"a window has up to {MOST_TAPS} taps, got {p.kernel}")


def access_width(x: Any, w: Any, out: Any, extras: Sequence[Any]) -> int | None:
    """None where TMA can address the arrays, or else how many channels an access can have."""
    x_facts, w_facts = facts_of(x, "x"), facts_of(w, "w")
    contiguous = Strided.of(w_facts).reshaped((math.prod(w_facts.shape),))
    dense = contiguous is not None and contiguous.strides == (1,) and w_facts.pointer % 16 == 0
    if dense and _addressable(x_facts) and _addressable(facts_of(out, "out")):
        return None
    return common_width([x, out, *(e for e in extras if facts_of(e, "extra").strides[3])], 3)


def _addressable(facts: ArrayFacts) -> bool:
    pitches = [
        step * facts.dtype.bytes
        for step, n in zip(facts.strides[:3], facts.shape, strict=False)
        if n > 1
    ]
    return facts.strides[3] == 1 and not any(n % ADDRESSABLE for n in (facts.pointer, *pitches))


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """A view of the same elements in row-major order."""
    facts = facts_of(array, "w")
    found = Strided.of(facts).reshaped(shape)
    if found is None:
        raise _unfit(f"w cannot be seen as {shape} without a copy: strides {tuple(facts.strides)}")
    return arrays.view(array, found)


def broadcast(extra: Any, shape: tuple[int, ...]) -> Any:
    """A bias or another extra as a view of the result's shape."""
    facts = facts_of(extra, "extra")
    own = tuple(facts.shape)
    own = (1,) * (4 - len(own)) + own
    if len(own) != 4 or any(n not in (1, m) for n, m in zip(own, shape, strict=True)):
        raise _unfit(f"bias and extras are broadcast to {shape}, got {tuple(facts.shape)}")
    return arrays.view(extra, Strided.of(facts).broadcast(shape))


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """One number for height and width, or one for each."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _unfit(what: str) -> kd.ArgumentError:
    return kd.ArgumentError(
        f"operands of a depthwise convolution do not fit: {what}",
        code="K977",
        fix="images are NHWC; filters are (filters, R, S, 1)",
    )


def _uneven(filters: int, channels: int) -> kd.ArgumentError:
    return _unfit(f"filters are a multiple of the channels, got {filters} for {channels}")


def _types(what: str) -> kd.ArgumentError:
    return kd.ArgumentError(
        f"a depthwise convolution takes operands of one type, {', '.join(map(str, TYPES))}: {what}",
        code="K978",
        fix="convert them first",
    )
