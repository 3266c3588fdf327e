"""How rows are shared among threads, blocks and clusters, by what is read of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from kdsl_fuse.kernels.rows import RowConfig
from kdsl_fuse.kernels.vectors import ACCESS_BYTES, caching

MULTIPROCESSORS = 132
WARP = 32
_BLOCK = 128  # threads where a row takes fewer
_MOST_LANES, _MOST_THREADS = 512, 1024
_MOST_BLOCKS = 8  # of a cluster on every chip that has clusters
_HELD_BYTES = 128  # of inputs that a thread has under way, and of values that it holds
_VALUE_BYTES = 4
_HELD_LANES = 256  # of a row that is held: a longer one is taken in turns
_EARLY_BYTES = 192  # that a thread of a row's only warp has under way, with operands behind it
_EARLY_ROW_BYTES = 16 << 10  # of many warps that hold half as much
_LIGHT_BYTES = 2  # of a column's operands behind the reductions: one of 16 bits, or none
_SHARED_BYTES = 228 << 10  # of a multiprocessor
_OWN_BYTES = 1280  # of each block of it: what the driver takes, and barriers
_TOTAL_BYTES = 12  # of a warp of the row: three numbers of a phase, or one or two of each of two
_BARRIER_BYTES = 8
_FULL_THREADS = 8192  # of a multiprocessor, one behind the other: two rows each leave it full
_PLACED = 2  # blocks of a cluster for which every multiprocessor has a place (docs/facts.md)
_THIRD_BYTES = 72 << 10  # of a block's part of a row, of which three share a multiprocessor
_HALF_BYTES = 128 << 10  # of two, with what is kept in registers
_ROOMY_LANES = 320  # of three blocks: each has 64 registers
_KEPT_BYTES = 64  # of a part, in each thread's registers
_ROWS_OF_A_RING = 4  # at least, that pay for its start
_WAVES, _FEWER_WAVES = 16, 4  # of clusters whose rows come through rings
_STREAMING = {1: (0, 8, 512, 1024), 2: (4096, 32, 256, 256)}  # by states: more accesses a row than
# this, accesses of a thread, threads
_LINE_LANES = 8  # of 16 bytes: a whole line of memory
_MOST_TOGETHER = 8


class Traffic(NamedTuple):
    """What is moved of each column: vectors of `width` elements, and bytes.

    `read` before the reductions, `later` behind them, `staged` of inputs that the copy engine can
    take, 0 unless it can take them all; `written` are those of results. `states` are the numbers
    that a thread keeps of its part of a row that is read once; 0 if it is read again.
    """

    width: int
    read: int
    later: int = 0
    staged: int = 0
    written: int = 0
    states: int = 0

    @property
    def vectors(self) -> int:
        """That a thread holds: 32 bits of each element at least."""
        return max(_HELD_BYTES // max(self.read, _VALUE_BYTES) // self.width, 1)

    @property
    def several(self) -> bool:
        """Whether more than one input is staged."""
        return self.width * self.staged > ACCESS_BYTES


@lru_cache(maxsize=4096)
def shared_out(
    height: int,
    columns: int,
    traffic: Traffic,
    multiprocessors: int = MULTIPROCESSORS,
    clusters: bool = True,
    rings: bool = True,
) -> RowConfig:
    """The configuration for `height` rows.

    A thread holds 32 elements of 32 bits and less; rows of up to 1024 go to a warp or a part of
    one, up to 8192 to a block. Longer ones, unless they are so few that all are under way at once,
    are streamed if they are read once for a number or two, or else staged if they can be, in
    `rings` if they are very long. Of others up to 16384 go to a block, beyond to a cluster, and are
    streamed when that is full.
    """
    config = _placed(height, columns, traffic, multiprocessors, clusters, rings)
    elements = height * columns
    operators = caching(elements * traffic.read, elements * traffic.written)
    if operators and config.streamed:
        operators["again"] = "evict_first"
    return replace(config, **operators)


def _placed(
    height: int, columns: int, traffic: Traffic, multiprocessors: int, clusters: bool, rings: bool
) -> RowConfig:
    """Threads, blocks and clusters."""
    each, vectors = traffic.vectors, max(-(-columns // traffic.width), 1)
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
        states = traffic.states
        if states in _STREAMING and vectors > _STREAMING[states][0]:
            return _streamed(traffic, vectors, height, multiprocessors)
        ringed = _ringed(height, columns, traffic, multiprocessors) if rings else None
        staged = ringed or _staged(height, columns, traffic, multiprocessors)
        if staged:
            return staged
    return _held(height, columns, traffic, cluster, multiprocessors)


def _held(
    height: int, columns: int, traffic: Traffic, cluster: int, multiprocessors: int
) -> RowConfig:
    """Rows in registers, or streamed where a cluster has too few.

    Threads may hold half as much, see `_halved`.
    """
    width, each = traffic.width, traffic.vectors
    vectors = max(-(-columns // width), 1)
    lanes = _lanes(-(-vectors // (each * cluster)), vectors)
    if cluster == 1 and each > 1 and _halved(vectors, lanes, traffic):
        each //= 2
        lanes = _lanes(-(-vectors // each), vectors)
    streamed = lanes > _MOST_LANES
    lanes = min(lanes, _MOST_LANES)
    held = each if streamed else -(-vectors // (lanes * cluster))
    config = RowConfig(
        width, lanes, held, cluster=cluster, streamed=streamed,
        ragged=held * lanes * cluster * width != columns,
    )  # fmt: skip
    if cluster == 1 and not streamed:
        config = _together(config, height, each, traffic, multiprocessors)
    early = streamed or _early(config, traffic, halved=each < traffic.vectors)
    return replace(config, partial=height % config.rows != 0, early=early)


def _halved(vectors: int, lanes: int, traffic: Traffic) -> bool:
    """Whether threads do better with half of what they could hold, where columns have results.

    Up to four warps do that would be filled and read operands behind the reductions: twice as many
    threads wait for these. More do if operands are few: so few registers let 2048 threads share a
    multiprocessor.
    """
    if not traffic.written:
        return False
    if lanes <= _BLOCK:
        return traffic.later > 0 and vectors == lanes * traffic.vectors
    return traffic.later <= _LIGHT_BYTES and lanes <= _HELD_LANES


def _early(config: RowConfig, traffic: Traffic, halved: bool) -> bool:
    """Whether operands behind the reductions are read before them.

    They are where few bytes are under way then; more may be where a row has a single warp, or few
    that hold half as much. Where many do, registers are few.
    """
    each = config.width * config.vectors
    under_way = each * (config.together * traffic.read + traffic.later)
    if halved:
        return config.lanes <= _BLOCK or config.lanes * under_way <= _EARLY_ROW_BYTES
    return under_way <= (_EARLY_BYTES if config.lanes <= WARP else _HELD_BYTES)


def _streamed(traffic: Traffic, vectors: int, height: int, multiprocessors: int) -> RowConfig:
    """Rows that are read once: a block each, whose threads keep several accesses under way.

    A few rows are shared by clusters, so that all multiprocessors read.
    """
    _, share, fewest, most = _STREAMING[traffic.states]
    lanes, cluster = min(max(vectors // share // WARP * WARP, fewest), most), 1
    while cluster < _MOST_BLOCKS and 2 * height * cluster <= multiprocessors:
        cluster *= 2
    return RowConfig(
        traffic.width, lanes, traffic.vectors, cluster=cluster, streamed=True, partial=False
    )


def _ringed(height: int, columns: int, traffic: Traffic, multiprocessors: int) -> RowConfig | None:
    """Rows of one input in rings, where clusters would have to be larger if they were just staged.

    They are larger than what three blocks hold, or six where little comes behind the reductions,
    and take as much of one or two blocks' shared memory as leaves room to copy ahead. There are
    several times as many clusters as have a place, as rows do not take the same time everywhere;
    fewer where each has to read many operands of columns.
    """
    size, heavy = columns * traffic.staged, traffic.staged < traffic.later
    if traffic.several or not (1 if heavy else 2) * _THIRD_BYTES < size <= 2 * _HALF_BYTES:
        return None
    cluster = 1 if size <= _HALF_BYTES else 2
    each = max(traffic.vectors // 2, 1)
    config = RowConfig(traffic.width, _MOST_LANES, each, cluster=cluster)
    found = ringed_by(config, columns, traffic.staged, 1, multiprocessors)
    if found is None or height < _ROWS_OF_A_RING * found.clusters:
        return None
    return replace(found, clusters=found.clusters * (_FEWER_WAVES if heavy else _WAVES))


def _staged(height: int, columns: int, traffic: Traffic, multiprocessors: int) -> RowConfig | None:
    """Rows in shared memory, if they fit: so many blocks a row that three share a multiprocessor.

    One part is then copied while another is reduced and a third written. Two parts of several
    inputs are better than three, where a row has two of them at most: they are larger than half of
    the shared memory, and threads keep the rest. A thread takes 16 elements in a turn, as it gets
    along with the 40 registers of three blocks of 512 then, and half as much of such parts. With
    several operands of 16 bits behind the reductions half as many threads take twice as much.
    """
    width, column_bytes = traffic.width, traffic.staged
    if not column_bytes:
        return None
    several = traffic.several
    if several and columns * column_bytes > _PLACED * _HALF_BYTES:
        thirds = _in_thirds(columns, traffic)
        if thirds:
            return thirds
    most, cluster = _HALF_BYTES if several else _THIRD_BYTES, 1
    while cluster < _MOST_BLOCKS and (
        columns * column_bytes > cluster * most or 2 * height * cluster <= multiprocessors
    ):
        cluster *= 2
    large = several and columns * column_bytes > cluster * _THIRD_BYTES
    heavy = not several and column_bytes == _LIGHT_BYTES < traffic.later
    each = 1 if large else traffic.vectors if heavy else max(traffic.vectors // 2, 1)
    vectors, most_lanes = columns // width, _MOST_LANES // 2 if heavy else _MOST_LANES
    turns = -(-vectors // (cluster * each * most_lanes))
    lanes = _lanes(-(-vectors // (cluster * each * turns)), vectors)
    config = RowConfig(width, lanes, each, cluster=cluster, early=large)
    for resident in (3, 2, 1):
        found = staged_by(config, columns, column_bytes, resident)
        kept = found.kept * each * width * column_bytes
        if kept == 0 or (large and resident == 2 and kept <= _KEPT_BYTES):
            return found if large or heavy else replace(found, resident=0)
    return None


def _in_thirds(columns: int, traffic: Traffic) -> RowConfig | None:
    """Three parts on a multiprocessor, larger than a third of its shared memory: threads keep some.

    In as small a cluster as can be.
    """
    for cluster in range(_PLACED + 1, _MOST_BLOCKS + 1):
        config = RowConfig(traffic.width, _ROOMY_LANES, 1, cluster=cluster, early=True)
        found = staged_by(config, columns, traffic.staged, 3)
        if found.kept * found.width * traffic.staged <= _KEPT_BYTES:
            return found
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


def ringed_by(
    config: RowConfig,
    columns: int,
    column_bytes: int,
    resident: int,
    multiprocessors: int = MULTIPROCESSORS,
) -> RowConfig | None:
    """The same groups of threads for rows that come through rings, which fill shared memory.

    So many blocks are `resident` on a multiprocessor and stay there. None where the rings of a
    block have no room for a row each, or its threads none for those that copy.
    """
    turns = -(-columns // config.columns)
    totals = 2 * _TOTAL_BYTES * config.cluster * config.lanes // WARP
    room = _SHARED_BYTES // resident - _OWN_BYTES - config.groups * (totals + 2 * _BARRIER_BYTES)
    ring = room // (config.groups * (config.chunk * column_bytes + 2 * _BARRIER_BYTES))
    if ring < turns or config.threads + WARP > _MOST_THREADS:
        return None
    blocks = multiprocessors if config.cluster <= _PLACED else multiprocessors * 7 // 8
    return replace(
        config, staged=turns, ring=ring, clusters=blocks * resident // config.cluster,
        resident=resident, kept=0, ragged=config.columns * turns != columns, streamed=False,
        partial=False, together=1,
    )  # fmt: skip


def _lanes(needed: int, vectors: int) -> int:
    """Threads of a row of each block: a power of two of lanes, or whole warps."""
    if needed > WARP:
        return -(-needed // WARP) * WARP
    line = min(_LINE_LANES, 1 << (vectors - 1).bit_length())
    return int(max(line, 1 << (needed - 1).bit_length()))


def _together(
    config: RowConfig, height: int, each: int, traffic: Traffic, multiprocessors: int
) -> RowConfig:
    """Rows that a block shares among its threads, and that a thread takes together.

    Short rows are, so that a thread has enough under way; and two of several warps for which more
    operands are read behind the reductions, once for both, than before.
    """
    groups, together = max(_BLOCK // config.lanes, 1), 1
    full = height * config.lanes >= _FULL_THREADS * multiprocessors
    if config.lanes <= WARP:
        together = min(max(each // config.vectors, 1), _MOST_TOGETHER)
    elif full and each < traffic.vectors and traffic.later > traffic.read:
        groups, together = max(groups // 2, 1), 2
    while groups * config.lanes > WARP and groups > 1 and height < groups * multiprocessors:
        groups //= 2
    while together > 1 and height < 4 * groups * together * multiprocessors:
        together //= 2
    return replace(config, groups=groups, together=together)
