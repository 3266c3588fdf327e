"""Row-wise kernels ready to launch: how rows are shared among threads, and operands as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kdsl_core.dtypes import f32
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse import arrays
from kdsl_fuse.kernels.row_programs import RowProgram
from kdsl_fuse.kernels.rows import RowConfig, rows
from kdsl_fuse.kernels.vectors import ACCESS_BYTES, common_width
from kdsl_fuse.kernels.views import Modes, broadcast_strides, require_distinct
from kdsl_fuse.strided import Strided

MULTIPROCESSORS = 132
WARP = 32
_BLOCK = 256  # threads where a row takes fewer
_MOST_LANES = 512
_MOST_BLOCKS = 8  # of a cluster on every chip that has clusters
_HELD_BYTES = 128  # of inputs that a thread has under way, and of values that it holds
_HELD_LANES = 256  # of a row that is held: a longer one is taken in turns
_SHARED_BYTES = 228 << 10  # of a multiprocessor
_OWN_BYTES = 1280  # of each block of it: what the driver takes, and barriers
_TOTAL_BYTES = 12  # of a warp of the row: three numbers of a phase, or one or two of each of two
_THIRD_BYTES = 72 << 10  # of a block's part of a row, of which three share a multiprocessor
_HALF_BYTES = 128 << 10  # of two, with what is kept in registers
_KEPT_BYTES = 64  # of a part, in each thread's registers
_STREAMING = {1: (0, 8, 512, 1024), 2: (4096, 32, 256, 256)}  # by states: more accesses a row than
# this, accesses of a thread, threads
_LINE_LANES = 8  # of 16 bytes: a whole line of memory
_MOST_TOGETHER = 8


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
        return -(-self.height // self.config.rows) * self.config.cluster

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
) -> RowsPlan:
    """The plan for operands in the kernel's order: arrays, or `kd.spec`s.

    Extras, and inputs that are smaller than the largest, are broadcast. `in_turns` is a program
    that computes the same in fewer phases, at the price of registers: it is taken where rows are
    read again for each. Without `staging` long rows are held in registers, without `clusters` by
    one block each.

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
    width, read, later, staged = _accesses(program, operands, joined, depth, steps)
    height = math.prod(joined.shape)
    shorter = in_turns or program
    config = shared_out(
        height, depth, width, max(read, 4), multiprocessors, staging * staged, clusters,
        staging * states_read_once(shorter),
    )  # fmt: skip
    if not config.in_turns:
        held = config.width * config.vectors * config.together
        early = held * (read + later) <= _HELD_BYTES
        return RowsPlan(program, joined, depth, steps, replace(config, early=early))
    return RowsPlan(shorter, joined, depth, steps, config)


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


def _accesses(
    program: RowProgram, operands: Sequence[Any], joined: Modes, depth: int, steps: Any
) -> tuple[int, int, int, int]:
    """Elements of a vector, and bytes of each column: read before the reductions, read after them,
    and of inputs that the copy engine can take, 0 unless it can take them all.
    """
    described, read, later, staged = [], 0, 0, True
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
        if index >= first:
            read, later = (
                (read, later + facts.dtype.bytes) if is_extra else (read + facts.dtype.bytes, later)
            )
    return common_width(described, len(joined.shape)), read, later, staged * read


@lru_cache(maxsize=4096)
def shared_out(
    height: int, columns: int, width: int, read_bytes: int, multiprocessors: int = MULTIPROCESSORS,
    staged_bytes: int = 0, clusters: bool = True, states: int = 0,
) -> RowConfig:  # fmt: skip
    """The configuration for `height` rows, of whose columns `read_bytes` each are read (or held).

    A thread holds 32 elements of 32 bits and less; rows of up to 1024 go to a warp or a part of
    one, up to 8192 to a block. Longer ones, unless they are so few that all are under way at once,
    are streamed if they are read once for a number or two (`states`), or else staged if they can
    be (`staged_bytes` a column). Of others up to 16384 go to a block, beyond to a cluster, and are
    streamed when that is full.
    """
    each = max(_HELD_BYTES // read_bytes // width, 1)
    vectors = max(-(-columns // width), 1)
    most = max(_HELD_BYTES // read_bytes, 1) // width or 1
    cluster, blocks = 1, _MOST_BLOCKS if clusters else 1
    while cluster < blocks and vectors > each * cluster * _MOST_LANES:
        cluster *= 2
    while (
        cluster < blocks
        and 2 * height * cluster <= multiprocessors
        and vectors >= each * cluster * 4 * WARP
    ):
        cluster *= 2
    few = height * cluster <= multiprocessors and vectors <= each * cluster * _MOST_LANES
    if vectors > each * _HELD_LANES and not few:
        if states in _STREAMING and vectors > _STREAMING[states][0]:
            return _streamed(width, vectors, each, height, states, multiprocessors)
        staged = staged_bytes and _staged(
            height, columns, width, max(each // 2, 1), staged_bytes, multiprocessors
        )
        if staged:
            return staged
    lanes = _lanes(-(-vectors // (each * cluster)), vectors)
    streamed = lanes > _MOST_LANES
    lanes = min(lanes, _MOST_LANES)
    held = most if streamed else -(-vectors // (lanes * cluster))
    config = RowConfig(
        width, lanes, held, cluster=cluster, streamed=streamed,
        ragged=held * lanes * cluster * width != columns,
    )  # fmt: skip
    if cluster == 1 and not streamed:
        config = _together(config, height, each, multiprocessors)
    return replace(config, partial=height % config.rows != 0)


def _streamed(
    width: int, vectors: int, each: int, height: int, states: int, multiprocessors: int
) -> RowConfig:
    """Rows that are read once: a block each, whose threads keep several accesses under way.

    A few rows are shared by clusters, so that all multiprocessors read.
    """
    _, share, fewest, most = _STREAMING[states]
    lanes, cluster = min(max(vectors // share // WARP * WARP, fewest), most), 1
    while cluster < _MOST_BLOCKS and 2 * height * cluster <= multiprocessors:
        cluster *= 2
    return RowConfig(width, lanes, each, cluster=cluster, streamed=True, partial=False)


def _staged(
    height: int, columns: int, width: int, each: int, column_bytes: int, multiprocessors: int
) -> RowConfig | None:
    """Rows in shared memory, if they fit: so many blocks a row that three share a multiprocessor.

    One part is then copied while another is reduced and a third written. Two parts of several
    inputs are better than three, as clusters are smaller: they are larger than half of the shared
    memory, and threads keep the rest. A thread takes `each` vectors in a turn, 16 elements, as it
    gets along with the 40 registers of three blocks of 512 then; of such parts it takes one.
    """
    several = width * column_bytes > ACCESS_BYTES
    most, cluster = _HALF_BYTES if several else _THIRD_BYTES, 1
    while cluster < _MOST_BLOCKS and (
        columns * column_bytes > cluster * most or 2 * height * cluster <= multiprocessors
    ):
        cluster *= 2
    large = several and columns * column_bytes > cluster * _THIRD_BYTES
    each, vectors = 1 if large else each, columns // width
    turns = -(-vectors // (cluster * each * _MOST_LANES))
    lanes = _lanes(-(-vectors // (cluster * each * turns)), vectors)
    config = RowConfig(width, lanes, each, cluster=cluster, early=large)
    for resident in (3, 2, 1):
        found = staged_by(config, columns, column_bytes, resident)
        kept = found.kept * each * width * column_bytes
        if kept == 0 or (large and resident == 2 and kept <= _KEPT_BYTES):
            return found if large else replace(found, resident=0)
    return None


def staged_by(config: RowConfig, columns: int, column_bytes: int, resident: int) -> RowConfig:
    """The same threads for a staged row, in as many turns as its columns take.

    Those for which shared memory is too small are kept in registers, when so many blocks are to be
    `resident` on a multiprocessor.
    """
    turns = -(-columns // config.columns)
    own = _OWN_BYTES + _TOTAL_BYTES * config.cluster * config.lanes // WARP
    room = (_SHARED_BYTES // resident - own) // (config.chunk * column_bytes)
    return replace(
        config, staged=min(turns, room), kept=max(turns - room, 0), resident=resident,
        ragged=config.columns * turns != columns, partial=False, groups=1, together=1,
    )  # fmt: skip


def _lanes(needed: int, vectors: int) -> int:
    """Threads of a row of each block: a power of two of lanes, or whole warps."""
    if needed > WARP:
        return -(-needed // WARP) * WARP
    line = min(_LINE_LANES, 1 << (vectors - 1).bit_length())
    return int(max(line, 1 << (needed - 1).bit_length()))


def _together(config: RowConfig, height: int, each: int, multiprocessors: int) -> RowConfig:
    """Rows that a block shares among its threads, and that a thread takes one behind the other."""
    groups = max(_BLOCK // config.lanes, 1)
    while groups * config.lanes > WARP and groups > 1 and height < groups * multiprocessors:
        groups //= 2
    together = 1
    if config.lanes <= WARP:
        together = min(max(each // config.vectors, 1), _MOST_TOGETHER)
        while together > 1 and height < 4 * groups * together * multiprocessors:
            together //= 2
    return replace(config, groups=groups, together=together)
