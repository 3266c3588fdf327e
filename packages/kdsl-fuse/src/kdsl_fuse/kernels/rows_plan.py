"""Row-wise kernels ready to launch: operands as views, and the configuration for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kdsl_core.dtypes import f32
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse import arrays
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.rows import RowConfig, rows
from kdsl_fuse.kernels.rows_sharing import MULTIPROCESSORS, Traffic, shared_out
from kdsl_fuse.kernels.vectors import ACCESS_BYTES, common_width
from kdsl_fuse.kernels.views import Modes, broadcast_strides, require_distinct
from kdsl_fuse.strided import Strided


@dataclass(frozen=True)
class RowsPlan:
    """A row-wise program for arrays of certain shapes, ready to launch."""

    program: RowProgram
    rows: Modes
    columns: int
    steps: tuple[int, ...]
    config: RowConfig

    @property
    def height(self) -> int:
        """Rows."""
        return math.prod(self.rows.shape)

    @property
    def grid(self) -> int:
        """Blocks."""
        return self.config.grid(self.height)

    @property
    def cluster(self) -> int | None:
        """Blocks of a cluster."""
        return self.config.cluster if self.config.cluster > 1 else None

    @property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        return rows.configure(
            grid=self.grid, block=self.config.threads, cluster=self.cluster, overlap=True
        )

    @property
    def statics(self) -> dict[str, Any]:
        """The kernel's trace-time arguments."""
        return {"program": self.program, "config": self.config}

    def layouts(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shape and strides of each operand as the kernel takes it."""
        shape = self.rows.shape
        return [
            (shape, lead) if step is None else ((*shape, self.columns), (*lead, step))
            for lead, step in zip(self.rows.strides, self.steps, strict=True)
        ]

    def views(self, operands: Sequence[Any]) -> list[Any]:
        """The operands, in the kernel's order, as the kernel takes them."""
        pairs = zip(operands, self.layouts(), strict=True)
        return [arrays.view(x, Strided(*layout)) for x, layout in pairs]

    def described(self, operands: Sequence[Any]) -> list[ArraySpec]:
        """What the views would be, also of operands without data."""
        pairs = zip(operands, self.layouts(), strict=True)
        return [Modes(shape, (steps,)).described([x])[0] for x, (shape, steps) in pairs]

    def run(self, *operands: Any) -> None:
        """Outputs, row outputs, inputs, extras and row inputs, on the arrays' current stream."""
        if self.height and (self.columns or self.program.row_outputs):
            self.launch(*self.views(operands), **self.statics)


def choose(
    program: RowProgram,
    *operands: Any,
    in_turns: RowProgram | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    staging: bool = True,
    clusters: bool = True,
    rings: bool = True,
) -> RowsPlan:
    """The plan for operands in the kernel's order: arrays, or `kd.spec`s.

    Extras, and inputs that are smaller than the largest, are broadcast. `in_turns` is a program
    that computes the same in fewer phases, at the price of registers: it is taken where rows are
    read again for each. Without `staging` long rows are held in registers, without `clusters` by
    one block each; without `rings` very long ones are staged as others are.

    Raises: ArgumentError K947 for a wrong number of operands or shapes that do not fit, K944 where
    an operand cannot be repeated, K945 for outputs whose places share elements.
    """
    full, of_rows, shape = _by_shape(program, operands)
    for index, x in enumerate(operands[: program.outputs + program.row_outputs]):
        require_distinct(x, f"output {index}")
    strides = {id(x): broadcast_strides(x, shape) for x in full}
    strides |= {id(x): broadcast_strides(x, shape[:-1]) for x in of_rows}
    lead, depth = len(shape) - 1, shape[-1]
    joined = Modes(shape[:-1], tuple(strides[id(x)][:lead] for x in operands)).joined()
    if not joined.shape:
        joined = Modes((1,), ((0,),) * len(operands))
    joined = joined.permuted(range(len(joined.shape))[::-1])  # neighbouring rows first
    steps = tuple(strides[id(x)][-1] if any(x is y for y in full) else None for x in operands)
    traffic = _traffic(program, operands, joined, depth, steps)
    height = math.prod(joined.shape)
    shorter = in_turns or program
    if staging:
        traffic = traffic._replace(states=states_read_once(shorter))
    else:
        traffic = traffic._replace(staged=0)
    config = shared_out(height, depth, traffic, multiprocessors, clusters, rings)
    return RowsPlan(shorter if config.in_turns else program, joined, depth, steps, config)


def states_read_once(program: RowProgram) -> int:
    """Numbers that a thread keeps of its part of a row that is read once; 0 if it is read again."""
    if program.outputs or len(program.phases) > 1:
        return 0
    return len(program.phases[0].identity(f32))


def _by_shape(
    program: RowProgram, operands: Sequence[Any]
) -> tuple[list[Any], list[Any], tuple[int, ...]]:
    """Operands with columns, those with one element a row, and the common shape."""
    if len(operands) != sum(program.counts):
        names = "outputs, row outputs, inputs, extras, row inputs"
        raise _misfit(f"the program takes {program.counts} {names}, got {len(operands)} operands")
    left, groups = list(operands), []
    for count in program.counts:
        groups.append(left[:count])
        left = left[count:]
    outputs, row_outputs, inputs, extras, row_inputs = groups
    specs = [arrays.spec_of(x) for x in (*outputs, *inputs)]
    shape = max((s.shape for s in specs if s), key=lambda shape: (len(shape), shape))
    if not shape:
        raise _misfit("rows need an axis, got a single number")
    for output, want in [*((x, shape) for x in outputs), *((x, shape[:-1]) for x in row_outputs)]:
        spec = arrays.spec_of(output)
        if spec is None or spec.shape != want:
            raise _misfit(f"an output {spec} should have the shape {list(want)}")
    return [*outputs, *inputs, *extras], [*row_outputs, *row_inputs], shape


def _misfit(text: str) -> ArgumentError:
    return ArgumentError(
        text, code="K947", fix="inputs and outputs are (…, columns), row operands (…)"
    )


def _traffic(
    program: RowProgram, operands: Sequence[Any], joined: Modes, depth: int, steps: Any
) -> Traffic:
    """What is read of the operands, but for `states`."""
    described, read, later, written, staged = [], 0, 0, 0, True
    first = program.outputs + program.row_outputs
    for index, (x, lead, step) in enumerate(zip(operands, joined.strides, steps, strict=True)):
        if step is None:
            continue
        facts = Modes((*joined.shape, depth), ((*lead, step),)).described([x])[0]
        is_extra = index >= first + program.inputs
        if not is_extra or any(lead):
            described.append(facts)
        if first <= index and not is_extra:
            own = common_width([facts], len(joined.shape))
            staged = staged and own * facts.dtype.bytes == ACCESS_BYTES
        if index < first:
            written += facts.dtype.bytes
        elif is_extra:
            later += facts.dtype.bytes
        else:
            read += facts.dtype.bytes
    width = common_width(described, len(joined.shape))
    return Traffic(width, read, later, staged * read, written)
