"""Convolutions on Hopper ready to launch: sizes checked, a configuration, operands as TMA wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.ir.map_limits import ALIGNMENT
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import conv_sm80_plan, stem_sm90_plan
from kdsl_fuse.kernels import conv_sm90_table as table
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_plan as gemm
from kdsl_fuse.kernels.conv_pack import Packing
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90 import conv_sm90
from kdsl_fuse.kernels.conv_sm90_operands import Window
from kdsl_fuse.kernels.conv_tables import key_of
from kdsl_fuse.kernels.conv_views import (
    as_images,
    filter_view,
    groups_of,
    matrix_view,
    problem_of,
    unfit,
)
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import ROOM
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS, Sm90Plan
from kdsl_fuse.kernels.stem_sm90_plan import StemPlan
from kdsl_fuse.kernels.sum_parts import add_up
from kdsl_fuse.strided import Strided

DTYPES = (kd.f16, kd.bf16)
MOST_STRIDE = 8  # of a walk by TMA
CORNERS = range(-128, 128)  # where windows may start, relative to an image's corners
BESIDE = 128  # filters that fill the rows of a tile
CROWDED = 96  # accumulators of a thread that leave too few of 168 registers for a matrix
_COSTS = {64: 1.0, 32: 1.15, 16: 1.4}  # channels of a panel ↦ what a stage of such panels costs


@dataclass(frozen=True)
class ConvPlan:
    """One way to compute a convolution: a `product` of windows and filters for each group.

    `panel` channels of one element of the filter go at a time; None for a matrix product of pixels
    and filters as they are. With a `packing`, images and filters are copied first.
    """

    problem: ConvProblem
    product: Sm90Plan
    panel: int | None = None
    packing: Packing | None = None

    def __str__(self) -> str:
        words = [str(self.product)]
        words += [] if self.panel is None else [f"panel {self.panel}"]
        return " ".join([*words, *["packed"] * (self.packing is not None)])

    @property
    def kernel(self) -> Any:
        """What is launched: `conv_sm90`, or the matrix product's kernel."""
        return gemm_sm90 if self.panel is None else conv_sm90

    @property
    def config(self) -> Any:
        """How blocks compute their tiles."""
        return self.product.config

    @property
    def grid(self) -> int:
        """Blocks of the grid."""
        return self.product.grid

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.product.config.threads

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The cluster's shape."""
        return self.product.cluster

    @property
    def seen(self) -> ConvProblem:
        """The problem of one group, as the kernel sees it."""
        return one_group(self.problem) if self.packing is None else self.packing.packed

    @property
    def statics(self) -> dict[str, Any]:
        """The kernel's trace-time arguments but for the epilogue."""
        if self.panel is None:
            return {"config": self.config}
        window = Window.of(self.seen, self.panel)
        return {"config": self.config, "window": window, "swap": self.product.swap}

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        if self.panel is None:
            return self.product.launch
        return conv_sm90.configure(
            grid=self.grid, block=self.block, cluster=self.cluster, overlap=True
        )

    def run(
        self,
        x: Any,
        w: Any,
        out: Any,
        *extras: Any,
        epilogue: Callable[..., Any] = identity,
        also: Sequence[Any] = (),
    ) -> None:
        """out = epilogue(convolution of x and w, extras…), on the arrays' current stream.

        Shapes: x (n, h, w, c), w (k, r, s, c / groups), out and those of `also`, which an epilogue
        that gives a tuple writes, too, (n, p, q, k); extras broadcast to out's shape.
        Memory: images or filters that TMA cannot walk over are copied first.
        Raises: ArgumentError K998 for a result whose pixels are no rows of a matrix.
        """
        for part in groups_of(self.problem, x, w, (out, *also), extras):
            self._run_group(*part, epilogue)

    def _run_group(
        self, x: Any, w: Any, results: list[Any], extras: list[Any], epilogue: Callable[..., Any]
    ) -> None:
        if self.panel is None:
            self._run_product(x, w, results, extras, epilogue)
            return
        x, w = self._operands(x, w)
        c, *also = (self.product.oriented(y) for y in results)
        tail = [self.product.oriented(y) for y in extras]
        if self.config.splits == 1:
            outputs = len(results)
            self.launch(x, w, c, *also, *tail, epilogue=epilogue, outputs=outputs, **self.statics)
            return
        parts = self.product.parts(x, results[0])
        self.launch(x, w, parts, epilogue=identity, **self.statics)
        add_up(parts, [c, *also], tail, epilogue)

    def _operands(self, x: Any, w: Any) -> tuple[Any, Any]:
        """Images and filters (k, c, taps) that TMA can walk over."""
        packing = self.packing
        filters = filter_view(w)
        if packing is None and (filters is None or not all(map(walkable, (x, filters)))):
            packing = Packing.unchanged(self.seen)
        return (x, filters) if packing is None else packing.copies(x, w)

    def _run_product(
        self, x: Any, w: Any, results: list[Any], extras: list[Any], epilogue: Callable[..., Any]
    ) -> None:
        """Pixels and filters as they are."""
        p = one_group(self.problem)
        pixels = matrix_view(x, (p.batch, p.height, p.width, p.channels))
        filters = matrix_view(w, (p.filters, 1, 1, p.channels))
        if pixels is None or any(_pitch_of(y) is None for y in (pixels, filters)):
            pixels, filters = _packed_matrices(p, x, w)
        self.product.run(pixels, filters, results[0], *extras, epilogue=epilogue, also=results[1:])


def _packed_matrices(problem: ConvProblem, x: Any, w: Any) -> tuple[Any, Any]:
    """Copies of pixels and filters as matrices, for arrays that are none."""
    packing = Packing.unchanged(problem)
    images, filters = packing.copies(x, w)
    p = packing.packed
    pixels = matrix_view(images, (p.batch, p.height, p.width, p.channels))
    return pixels, arrays.view(filters, Strided.dense((p.filters, p.channels)))


def _pitch_of(matrix: Any) -> int | None:
    """The step between rows of a matrix that is contiguous along its columns, else None."""
    strides = facts_of(matrix, "operand").strides
    return strides[0] if strides[1] == 1 else None


def walkable(x: Any) -> bool:
    """Whether TMA can take an array: neighbours along one mode, other strides whole 16 bytes."""
    facts = facts_of(x, "operand")
    size = facts.dtype.bytes
    channel = 1 if len(facts.shape) == 3 else 3  # of filters, of images
    steps = [step for mode, step in enumerate(facts.strides) if mode != channel]
    whole = all(step * size % ALIGNMENT == 0 for step in steps)
    return facts.strides[channel] == 1 and whole and facts.pointer % ALIGNMENT == 0


def conv2d_sm90(
    x: Any,
    w: Any,
    out: Any = None,
    *extras: Any,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    epilogue: Callable[..., Any] = identity,
    f32_precision: str = "ieee",
) -> Any:
    """epilogue(convolution of x with w, extras…), accumulated in f32; returns `out`.

    What the kernels of Hopper do not take (f32, steps of more than 8 pixels, very large windows)
    those for sm_80 compute; f32 exactly, or with `f32_precision` "tf32" on tensor cores.

    Shapes: x (batch, height, width, channels), w (filters, rows, columns, channels / groups), out
    (batch, rows, columns, filters); x and out may be lines, without a height, whose w has one row.
    Extras broadcast to out's shape.
    Memory: `out` is new where none is given. Images and filters that TMA cannot walk over are
    copied first.
    Raises: ArgumentError K942, K943 and K998.
    """
    sizes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    images = as_images(x)
    problem, facts = problem_of(images, w, **sizes), facts_of(x, "x")
    shape = (problem.batch, *problem.output, problem.filters)
    wanted = shape if len(facts.shape) == 4 else (shape[0], *shape[2:])
    if out is None:
        out = arrays.empty(wanted, facts.dtype, x)
    elif tuple(facts_of(out, "out").shape) != wanted:
        raise unfit(f"out is to be {wanted}, got {tuple(facts_of(out, 'out').shape)}")
    if refusal(problem, facts.dtype) is None:
        reads = any(len(facts_of(y, "an extra operand").shape) > 1 for y in extras)
        plan: Any = choose(
            problem, facts.dtype, facts_of(out, "out").dtype,
            tail=bool(extras), reads=reads, lines=stem_sm90_plan.takes(images, w),
        )  # fmt: skip
    else:
        plan = conv_sm80_plan.choose(
            problem, facts.dtype, target="sm_90a", f32_precision=f32_precision
        )
    plan.run(images, w, as_images(out), *map(as_images, extras), epilogue=epilogue)
    return out


# -- the choice ------------------------------------------------------------------------------------
def refusal(problem: ConvProblem, dtype: DType) -> str | None:
    """Why these kernels do not take a convolution; None where they do."""
    if dtype not in DTYPES:
        return f"operands are f16 or bf16, got {dtype}"
    if _is_product(problem):
        return None
    seen = Packing.of(one_group(problem)).packed if _odd(problem) else problem
    if max(seen.stride) > MOST_STRIDE:
        return f"TMA steps over up to {MOST_STRIDE} pixels, got the stride {problem.stride}"
    window = Window.of(seen, 64)
    if any(corner not in CORNERS for corner in (*window.lower, *window.upper)):
        return (
            f"windows start from {CORNERS[0]} to {CORNERS[-1]} pixels from an image's corners, got "
            f"padding {problem.padding}, kernel {problem.kernel} and dilation {problem.dilation}"
        )
    return None


def one_group(problem: ConvProblem) -> ConvProblem:
    """The problem of each of the groups."""
    groups = problem.groups
    channels, filters = problem.channels // groups, problem.filters // groups
    return replace(problem, channels=channels, filters=filters, groups=1)


def _is_product(problem: ConvProblem) -> bool:
    """Whether windows are the pixels themselves."""
    sides = problem.kernel, problem.stride, problem.padding
    return sides == ((1, 1), (1, 1), (0, 0))


def _odd(problem: ConvProblem) -> bool:
    """Whether channels must be packed."""
    return one_group(problem).channels % 8 != 0


def panel_of(channels: int) -> int:
    """Channels of a panel: whole swizzled lines that waste little of the tensor cores' work."""
    return min(_COSTS, key=lambda panel: -(-channels // panel) * panel * _COSTS[panel])


def choose(
    problem: ConvProblem,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
    device: str = DEVICE,
    tail: bool = False,
    reads: bool = False,
    lines: bool = True,
) -> ConvPlan | StemPlan:
    """The plan that was fastest when these sizes were measured, or else the model's first one.

    With a `tail` to compute for every element, warp groups of large products take turns; one that
    reads a matrix (`reads`) gets the registers that it needs for that. `lines` says whether images
    lie so that those of few channels can be read line by line (`stem_sm90_plan.takes`).
    Raises: ArgumentError K989 for what these kernels do not take (`refusal`); CacheError (K761)
    where a table of the device cannot be used.
    """
    reason = refusal(problem, dtype)
    if reason is not None:
        raise kd.ArgumentError(
            f"no kernel of Hopper takes this convolution: {reason}",
            code="K989",
            fix="take the plan of kdsl_fuse.kernels.conv_sm80, which has no such limits",
        )
    if lines and stem_sm90_plan.fits(problem):
        return stem_sm90_plan.candidates(problem, multiprocessors)[0]
    whole = multiprocessors == MULTIPROCESSORS
    plan = _measured(problem, dtype, result, reads, device) if whole else None
    if plan is not None and (reads or not tail):
        return plan
    plan = plan or _first(problem, dtype, result, multiprocessors, device)
    return replace(plan, product=with_tail(plan.product, reads)) if tail or reads else plan


def _measured(
    problem: ConvProblem, dtype: DType, result: DType | None, reads: bool, device: str
) -> ConvPlan | None:
    """The plan of a table's entry, if there is one."""
    entry = table.find(device, key_of(problem, dtype, result or dtype, reads))
    return None if entry is None else plan_of(problem, dtype, result, entry.config, entry.swap)


def with_tail(product: Sm90Plan, reads: bool) -> Sm90Plan:
    """The plan for a tail: by turns, or with registers for what it reads.

    Filters are the rows of what takes turns, so that a thread has one bias for all its columns.
    """
    whole = product.problem.n % BESIDE == 0
    beside = replace(product, swap=True)
    turned = gemm.by_turns(beside)
    if reads or not whole or turned is beside:  # the last where tiles are too few for turns
        return with_room(product)
    return turned


def with_room(product: Sm90Plan) -> Sm90Plan:
    """The plan, or one whose threads have registers beside their accumulators."""
    c = product.config
    if c.registers or c.consumers != 2 or c.accumulators < CROWDED or c.peers * c.splits > 1:
        return product
    side = product.problem.swapped if product.swap else product.problem
    fitted = model.fit(replace(c, registers=ROOM, cluster=(1, 1)), side, 1)
    return product if fitted is None else replace(product, config=fitted)


@lru_cache(maxsize=1024)
def _first(
    problem: ConvProblem, dtype: DType, result: DType | None, multiprocessors: int, device: str
) -> ConvPlan:
    if not _is_product(problem):
        return next(_ranked(problem, dtype, result, multiprocessors))
    frame = plan_of(problem, dtype, result, multiprocessors=multiprocessors)
    p = frame.product.problem
    sizes = {"multiprocessors": multiprocessors, "device": device}
    return replace(frame, product=gemm.choose(p.m, p.n, p.k, dtype, result, **sizes))


def candidates(
    problem: ConvProblem,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
    limit: int = 12,
) -> list[ConvPlan]:
    """The plans that the model finds fastest, fastest first."""
    return gemm.deepest_rings(_ranked(problem, dtype, result, multiprocessors), limit)


def _ranked(
    problem: ConvProblem, dtype: DType, result: DType | None, multiprocessors: int
) -> Iterator[ConvPlan]:
    """Every plan, in the model's order."""
    frame = plan_of(problem, dtype, result, multiprocessors=multiprocessors)
    for product in gemm.ranked(frame.product.problem, multiprocessors):
        if frame.panel is None or product.config.tile[2] % frame.panel == 0:
            yield replace(frame, product=product)


def plan_of(
    problem: ConvProblem,
    dtype: DType,
    result: DType | None = None,
    config: Any = None,
    swap: bool = False,
    *,
    multiprocessors: int = MULTIPROCESSORS,
) -> ConvPlan:
    """The plan with a stated configuration of the product's tiles."""
    one = one_group(problem)
    rows, columns = one.output
    packing = Packing.of(one) if _odd(one) and not _is_product(one) else None
    seen = one if packing is None else packing.packed
    panel = None if _is_product(one) else panel_of(seen.channels)
    taps, depth = seen.kernel[0] * seen.kernel[1], seen.channels
    if panel is not None:
        depth = -(-depth // panel) * panel
    product = gemm.problem_of(one.batch * rows * columns, one.filters, taps * depth, dtype, result)
    return ConvPlan(problem, Sm90Plan(product, config, swap, multiprocessors), panel, packing)
