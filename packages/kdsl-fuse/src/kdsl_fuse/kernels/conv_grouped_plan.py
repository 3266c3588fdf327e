"""Grouped convolutions ready to launch: sizes checked, a configuration, and the grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.ir.target import Target, target_of
from kdsl_core.lang.arguments import ArrayFacts, facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import conv_grouped_model as model
from kdsl_fuse.kernels import conv_grouped_table as table
from kdsl_fuse.kernels.conv_grouped import ENTRIES
from kdsl_fuse.kernels.conv_grouped_config import LINES, OCTET, PAIRED, PANEL, GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS
from kdsl_fuse.strided import broadcasts

MOST_WEIGHTS = 80  # registers of a thread for weights
MOST_LOOPED = 48  # octets times rows times octets of channels where the kernel counts the steps
MOST_SHARED = 7  # octets times rows of a kernel whose weights are in shared memory, else it spills
MOST_ROWS = 14  # of a step
MOST_FILTERS = 256  # of a line's groups
WIDTHS = (2, 64)  # channels of a group, least and most
TMA = 90  # the first target that has it
ADDRESSABLE = 16  # bytes that starts and strides are multiples of


@dataclass(frozen=True)
class GroupedPlan:
    """One way to compute a grouped convolution."""

    problem: ConvProblem
    config: GroupedConfig
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        return table.words_of(self.config)

    @property
    def chunks(self) -> int:
        """Lines of channels of a pixel."""
        return -(-self.problem.channels // self.config.line)

    @property
    def items(self) -> int:
        """Pieces of images, each with one line of channels, that blocks take one by one."""
        return model.items(self.problem, self.config)

    @property
    def grid(self) -> int:
        """Blocks: as many for each line of channels as run at a time."""
        room = self.multiprocessors * self.config.blocks_per_sm
        return self.chunks * max(min(room // self.chunks, self.items), 1)

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid and block, waiting for arguments."""
        kernel = ENTRIES[self.config.blocks_per_sm]
        return kernel.configure(grid=self.grid, block=self.config.threads, overlap=True)

    def run(
        self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Callable[..., Any] = identity
    ) -> None:
        """Write `out`, on the arrays' current stream; extras have its shape, maybe broadcast."""
        self.launch(x, w, out, *extras, epilogue=epilogue, config=self.config)


def choose(
    problem: ConvProblem,
    *,
    staged: int | None = None,
    target: str | Target = "sm_90a",
    multiprocessors: int = MULTIPROCESSORS,
    device: str = DEVICE,
) -> GroupedPlan:
    """The plan that was fastest when these sizes were measured, or else the model's first one.

    `staged` is as `stageable` gives it.

    Raises: ArgumentError K994 for groups that no configuration takes; CacheError (K761) where a
    table of the device cannot be used.
    """
    if (staged, str(target), multiprocessors) == (None, "sm_90a", MULTIPROCESSORS):
        measured = table.TABLE.find(device, problem)
        if measured is not None:
            return GroupedPlan(problem, measured)
    return _chosen(problem, staged, target_of(target), multiprocessors)


def explain(problem: ConvProblem, *, device: str = DEVICE) -> str:
    """Which plan `choose` finds, from which table or why from the model."""
    target = target_of("sm_90a")
    return table.TABLE.explain(
        device, problem, lambda: _chosen(problem, None, target, MULTIPROCESSORS).config
    )


@lru_cache(maxsize=1024)
def _chosen(
    problem: ConvProblem, staged: int | None, target: Target, multiprocessors: int
) -> GroupedPlan:
    found = candidates(problem, target, staged=staged, multiprocessors=multiprocessors)
    if not found:
        raise unfit_groups(problem)
    return found[0]


def candidates(
    problem: ConvProblem,
    target: Target,
    *,
    staged: int | None = None,
    multiprocessors: int = MULTIPROCESSORS,
) -> list[GroupedPlan]:
    """The plans that fit a target, those that promise most first."""
    if target.number < TMA:
        staged = None
    found = {
        GroupedPlan(problem, config, multiprocessors): None
        for config in configs(problem, target, staged)
        if config.overfull(target) is None and config.spilling is None
    }
    return sorted(found, key=cycles)


def configs(
    problem: ConvProblem, target: Target, staged: int | None = None
) -> Iterator[GroupedConfig]:
    """Configurations, each with the most stages that fit; some of them do not fit at all."""
    for first in _first_configs(problem, staged, target):
        yield from _deepest_configs(problem, first, target)


def cycles(plan: GroupedPlan) -> float:
    """What the model predicts."""
    blocks = plan.grid // plan.chunks
    return model.cycles(plan.problem, plan.config, blocks, plan.multiprocessors)


def _first_configs(
    problem: ConvProblem, staged: int | None, target: Target
) -> Iterator[GroupedConfig]:
    """Configurations without their rows: who computes which filters, and from what columns."""
    group = problem.channels // problem.groups, problem.filters // problem.groups
    fields = (problem.kernel, group, problem.stride, problem.padding, problem.dilation)
    copies = "tma" if target.number >= TMA else "cp.async"
    buffers = 2 if staged is None else 3  # so that an operand arrives during the step before
    for line, paired, octets in itertools.product(
        sorted(LINES, reverse=True), PAIRED, range(max(group[1] // OCTET, 1), 0, -1)
    ):
        if not _fits_line(line, problem, group) or _filters(line, group) % (OCTET * octets):
            continue
        columns = _tile_columns(problem.output[1], PAIRED[paired][1])
        config = GroupedConfig(
            *fields, line=line, rows=2, columns=columns, steps=1, stages=2, octets=octets,
            warps=_filters(line, group) // (OCTET * octets), paired=paired, copies=copies,
            buffers=buffers, staged=staged,
        )  # fmt: skip
        if config.weight_registers <= MOST_WEIGHTS:
            yield config
        elif _loads_in_time(shared := replace(config, weights="shared")):
            yield shared


def _deepest_configs(
    problem: ConvProblem, first: GroupedConfig, target: Target
) -> Iterator[GroupedConfig]:
    """Steps of several heights by several teams, with most stages."""
    for rows, teams, together, blocks in itertools.product(
        _heights(problem, first), (1, 2, 3, 4), (1, 2), (1, 2)
    ):
        warps = first.parts * teams
        if not 4 <= warps <= 16 or together > first.strips:
            continue
        wanted = replace(
            first, rows=rows, warps=warps, together=together, blocks_per_sm=blocks,
            buffers=max(first.buffers, teams + first.buffers - 1),
        )  # fmt: skip
        for steps in _steps(problem, wanted):
            config = _deepest(wanted, steps, target)
            if config is not None:
                yield config


def _loads_in_time(config: GroupedConfig) -> bool:
    """Whether weights that are loaded while they are needed leave registers for the rest."""
    held = config.octets * config.kernel[0]
    return held * config.octets_read <= MOST_LOOPED if config.looped else held <= MOST_SHARED


def _heights(problem: ConvProblem, first: GroupedConfig) -> list[int]:
    """Rows that a step may have."""
    whole = PAIRED[first.paired][0]
    most = -(-problem.output[0] // whole) * whole
    if first.paired == "images":
        return [most] if most <= MOST_ROWS and problem.batch > 1 else []
    return sorted({min(rows, most) for rows in range(2, MOST_ROWS + 1, 2)})


def _filters(line: int, group: tuple[int, int]) -> int:
    return line // group[0] * group[1]


def _fits_line(line: int, problem: ConvProblem, group: tuple[int, int]) -> bool:
    """Whether whole groups make up a line with a fitting number of filters."""
    if line % group[0] or group[0] % 2 or (line > 16 and line // 2 >= problem.channels):
        return False
    filters = _filters(line, group)
    return filters <= MOST_FILTERS and (filters in (8, 16, 32) or filters % PANEL == 0)


def _tile_columns(columns: int, across: int) -> int:
    """Columns of a tile: up to 64, as few as cover a row in the same number of tiles."""
    tiles = -(-columns // 64)
    return -(-columns // (tiles * across)) * across


def _deepest(wanted: GroupedConfig, steps: int, target: Target) -> GroupedConfig | None:
    """The configuration with as many stages as fit, or as few as there can be."""
    config = None
    for stages in range(12, 1, -1):
        try:
            config = replace(wanted, steps=steps, stages=stages)
        except kd.ArgumentError:
            continue
        if config.overfull(target) is None:
            break
    return config


def _steps(problem: ConvProblem, first: GroupedConfig) -> set[int]:
    """Steps of an item: down the whole image, or part of it, so that there are more items."""
    whole = -(-problem.output[0] // first.rows)
    across = -(-problem.output[1] // first.columns) * -(-problem.channels // first.line)
    packs = -(-problem.batch // first.images)
    wanted = -(-4 * MULTIPROCESSORS // (packs * across))
    return {whole, max(-(-whole // max(wanted, 1)), 1)}


def conv_grouped(
    x: Any,
    w: Any,
    out: Any = None,
    *extras: Any,
    groups: int,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    epilogue: Callable[..., Any] = identity,
    target: str | Target = "sm_90a",
) -> Any:
    """epilogue(convolution of x with w in groups, extras…), accumulated in f32; returns `out`.

    Shapes: x (batch, height, width, channels), w (filters, rows, columns, channels / groups), out
    (batch, rows, columns, filters). Groups have up to 64 channels, an even number that 64 is a
    multiple of; others belong to the dense kernel. Extras broadcast to out's shape. f16 or bf16.
    Memory: `out` is new where none is given. Starts and strides, but that of channels, are
    multiples of 16 bytes.
    Raises: ArgumentError K994 … K997.
    """
    problem = problem_of(x, w, groups, stride, padding, dilation)
    shape = (problem.batch, *problem.output, problem.filters)
    if out is None:
        out = arrays.empty(shape, facts_of(x, "x").dtype, x)
    elif tuple(facts_of(out, "out").shape) != shape:
        raise _unfit(f"out is to be {shape}, got {tuple(facts_of(out, 'out').shape)}")
    for name, array in (("x", x), ("out", out)):
        _check_addressable(facts_of(array, name), name)
    full = [broadcast(extra, shape) for extra in extras]
    plan = choose(problem, staged=stageable(out, full), target=target)
    plan.run(x, w, out, *full, epilogue=epilogue)
    return out


def stageable(out: Any, extras: Sequence[Any]) -> int | None:
    """The first of a tail's operands that is laid out and typed as images are, if there is one."""
    dtype = facts_of(out, "out").dtype
    for number, extra in enumerate(extras):
        facts = facts_of(extra, "extra")
        if facts.dtype is dtype and _addressable(facts) and 0 not in facts.strides:
            return number
    return None


def problem_of(
    x: Any,
    w: Any,
    groups: int,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
) -> ConvProblem:
    """The sizes of a convolution, once its operands fit together."""
    a, b = facts_of(x, "x"), facts_of(w, "w")
    if len(a.shape) != 4 or len(b.shape) != 4:
        raise _unfit(f"x and w have four modes, got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype is not b.dtype or a.dtype not in (kd.bf16, kd.f16):
        raise kd.ArgumentError(
            f"x and w are both f16 or both bf16, got {a.dtype} and {b.dtype}",
            code="K996",
            fix="convert them first",
        )
    (batch, height, width, channels), (filters, rows, columns, depth) = a.shape, b.shape
    if groups < 1 or channels != depth * groups or filters % groups or min(*a.shape, *b.shape) < 1:
        raise _unfit(
            f"with groups={groups}, w {tuple(b.shape)} of (filters, rows, columns, channels / "
            f"groups) does not go with x {tuple(a.shape)} of (batch, height, width, channels)"
        )
    steps, pads, spread = (_pair(n) for n in (stride, padding, dilation))
    if min(steps) < 1 or min(pads) < 0 or min(spread) < 1:
        raise _unfit(
            f"stride and dilation are at least 1, padding at least 0, got stride={stride}, "
            f"padding={padding}, dilation={dilation}"
        )
    problem = ConvProblem(
        batch, height, width, channels, filters, (rows, columns), steps, pads, spread, groups
    )
    if min(problem.output) < 1:
        raise _unfit(f"a kernel of {rows} x {columns} is larger than the padded image of {x.shape}")
    return problem


def broadcast(extra: Any, shape: tuple[int, ...]) -> Any:
    """An operand of the tail with the result's shape, by strides of 0."""
    kept = arrays.strided(extra)
    if not broadcasts(kept.shape, shape):
        raise _unfit(f"an extra {kept.shape} does not broadcast to the result {shape}")
    return arrays.view(extra, kept.broadcast(shape))


def _pair(n: int | tuple[int, int]) -> tuple[int, int]:
    return (n, n) if isinstance(n, int) else (n[0], n[1])


def _unfit(what: str) -> kd.ArgumentError:
    return kd.ArgumentError(
        f"operands of a grouped convolution do not fit: {what}",
        code="K995",
        fix="images are (batch, height, width, channels), filters (filters, rows, columns, "
        "channels / groups)",
    )


def unfit_groups(problem: ConvProblem) -> kd.ArgumentError:
    """The error for groups that no configuration takes."""
    p = problem
    return kd.ArgumentError(
        f"no grouped kernel takes groups of {p.channels // p.groups} channels and "
        f"{p.filters // p.groups} filters with a kernel of {p.kernel[0]} x {p.kernel[1]}: channels "
        f"are 2, 4, … {WIDTHS[1]}, with 8, 16, 32 or a multiple of {PANEL} filters for each "
        f"{LINES[0]}, {LINES[1]} or {LINES[2]} of them, and weights fit the registers of a thread",
        code="K994",
        fix="compute each group with the dense kernel",
    )


def _check_addressable(facts: ArrayFacts, name: str) -> None:
    if _addressable(facts):
        return
    size = facts.dtype.bytes
    raise kd.ArgumentError(
        f"{name} starts at a multiple of {ADDRESSABLE} bytes, has pixels and strides of such a "
        f"multiple, and its channels are neighbours; got address {facts.pointer:#x}, shape "
        f"{tuple(facts.shape)}, strides {tuple(facts.strides)} of {size} bytes",
        code="K997",
        fix="lay images out as (batch, height, width, channels), a multiple of 8 channels",
    )


def _addressable(facts: ArrayFacts) -> bool:
    """Whether TMA, and copies of 16 bytes, can reach the pixels of an array."""
    size = facts.dtype.bytes
    pitches = [step * size for step in facts.strides[:3]]
    inner = facts.strides[3] == 1 or facts.shape[3] == 1
    row = facts.shape[3] * size
    return inner and not any(n % ADDRESSABLE for n in (facts.pointer, row, *pitches))
