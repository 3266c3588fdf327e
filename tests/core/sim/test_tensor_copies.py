"""TMA copies of a batch: bytes, receivers, reductions, counters and hazards."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kdsl_core.dtypes import DType, bf16, dtype_of, f16, f32, i32, u32
from kdsl_core.ir import Exit, Im2col, Kernel, MapShape, TensorMap
from kdsl_core.ir.flat import Instruction
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import RANK_SHIFT, SHARED_BASE, Batch
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.global_access import GlobalAccess
from kdsl_core.sim.groups import Group
from kdsl_core.sim.hazards import ALL_CHECKS, Findings
from kdsl_core.sim.memory import GlobalMemory, GlobalStore
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.tensor_boxes import swizzled
from kdsl_core.sim.tensor_copies import TensorCopies

SIZE = 1 << 13  # of each block's shared memory
BARRIER = SHARED_BASE + SIZE - 8
MAP = 0x6000_0000_0000
Values = np.ndarray[Any, Any]


class Blocks:
    """Shared memory of the blocks of one cluster, and the bytes completed at each mbarrier."""

    def __init__(self, blocks: int, memory: GlobalAccess) -> None:
        self.fetch, self.put = memory.load, memory.store
        self.expect, self._memory = memory.expect, memory
        self.data = np.zeros((blocks, SIZE), np.uint8)
        self.completed: dict[tuple[int, int], int] = {}
        self.barriers: set[int] = set()

    def _place(self, access: Access) -> tuple[Values, Values]:
        rank = access.address >> RANK_SHIFT
        block = np.where(rank == 0, access.row, rank - 1)
        return block[:, None], (access.address & 0xFFFFFF)[:, None] - SHARED_BASE

    def receive(self, access: Access, data: Values, barrier: Values) -> None:
        """Write."""
        block, at = self._place(access)
        self.data[block, at + np.arange(access.size)] = data
        self.barriers |= set(barrier.tolist())

    def send(self, access: Access) -> Values:
        """Read."""
        block, at = self._place(access)
        return self.data[block, at + np.arange(access.size)]

    def keep(self, access: Access) -> None:
        """Nothing: nobody writes in the meantime."""

    def send_until(self, access: Access, barrier: Values) -> Values:
        """Read."""
        return self.send(access)

    def combine(self, access: Access, dtype: DType, update: Any) -> None:
        """Update."""
        self._memory.atomic(access, dtype.numpy, update)

    def complete(self, access: Access, size: Values) -> None:
        """Count bytes."""
        block, at = self._place(access)
        for who, amount in zip(zip(block[:, 0], at[:, 0], strict=True), size, strict=True):
            key = (int(who[0]), int(who[1]) + SHARED_BASE)
            self.completed[key] = self.completed.get(key, 0) + int(amount)


@dataclass
class Here:
    """One lane of each of some warps executes."""

    group: Group
    pc: int = 0


class Bench:
    """A batch of blocks of one warp, whose lane 5 issues copies of tensor `x`."""

    def __init__(self, x: Values, blocks: int = 1, **shape: Any) -> None:
        kernel = Kernel("test", (32, 1, 1))
        kernel.allocate_shared("tile", SIZE, 1024)
        memory = GlobalMemory()
        self.dtype = dtype_of(x.dtype)
        self.address = memory.add("x", x, self.dtype)
        self.store = GlobalStore(memory.buffers)
        self.findings = Findings(ALL_CHECKS, "collect")
        instructions: list[Instruction] = [Exit(None)]
        reporter = Reporter(kernel, instructions, self.store, self.findings)
        reporter.batch = Batch(kernel, (blocks, 1, 1), np.arange(blocks))
        self.counters = Counters(instructions)
        self.counters.start()
        everything = GlobalAccess(self.store, reporter, self.store.allocations)
        everything.batch = reporter.batch
        self.blocks = Blocks(blocks, everything)
        self.maps = {MAP: self.map_of(x, **shape)} if shape else {}
        mask = np.zeros((blocks, 32), bool)
        mask[:, 5] = True
        here = Here(Group(np.arange(blocks), mask, 0, blocks, 0))
        self.tma = TensorCopies(here, self.maps, self.blocks, reporter, self.counters)

    def map_of(self, x: Values, **shape: Any) -> TensorMap:
        """The map of all of an array, its last mode innermost."""
        strides = tuple(reversed(x.strides[:-1]))
        kind = MapShape(self.dtype, **shape)
        return TensorMap(kind, "x", self.address, tuple(reversed(x.shape)), strides)

    @property
    def codes(self) -> list[str]:
        """What was found."""
        return [hazard.code for hazard in self.findings.hazards]

    def tile(self, block: int, at: int, count: int, line: int, dtype: DType) -> Values:
        """Elements of shared memory with the swizzle undone."""
        address = swizzled(SHARED_BASE + at + np.arange(count * dtype.bytes), line)
        return self.blocks.data[block][address - SHARED_BASE].view(dtype.numpy)


def lanes(*values: int) -> Values:
    """One number per block, in all lanes."""
    return np.broadcast_to(np.array(values, np.int64)[:, None], (len(values), 32))


HANDLE = lanes(MAP)
TILE = lanes(SHARED_BASE)


def matrix(rows: int = 24, columns: int = 64, dtype: Any = np.float32) -> Values:
    """Different numbers."""
    return np.arange(rows * columns).reshape(rows, columns).astype(dtype)


def test_load_of_each_block() -> None:
    """Every block gets its own box, zero where outside, and all of its bytes at its barrier."""
    x = matrix()
    bench = Bench(x, 2, box=(32, 16), swizzle=128)
    to, barrier = lanes(SHARED_BASE, SHARED_BASE + 2048), lanes(BARRIER, BARRIER)
    bench.tma.tensor_load(lanes(MAP, MAP), [lanes(-4, 32), lanes(0, 16)], to, barrier)
    want = np.zeros((16, 32), np.float32)
    want[:, 4:] = x[:16, :28]
    np.testing.assert_array_equal(bench.tile(0, 0, 512, 128, f32).reshape(16, 32), want)
    want = np.zeros((16, 32), np.float32)
    want[:8] = x[16:, 32:]
    np.testing.assert_array_equal(bench.tile(1, 2048, 512, 128, f32).reshape(16, 32), want)
    assert bench.blocks.completed == {(0, BARRIER): 2048, (1, BARRIER): 2048}
    assert bench.codes == []


@pytest.mark.parametrize(("first", "found"), [(-8, []), (4, []), (2, ["misaligned"])])
def test_innermost_coordinates(first: int, found: list[str]) -> None:
    """The innermost coordinate is a multiple of 16 bytes, the others are free."""
    bench = Bench(matrix(), box=(32, 16))
    bench.tma.tensor_load(HANDLE, [lanes(first), lanes(3)], TILE, lanes(BARRIER))
    assert bench.codes == found
    bench.tma.tensor_store(HANDLE, [lanes(abs(first)), lanes(7)], TILE, reduce=None)
    assert bench.codes == found


def test_masked_load_does_nothing() -> None:
    """Lanes whose predicate is false issue no copy."""
    bench = Bench(matrix(), box=(32, 16))
    coordinates = [lanes(0), lanes(0)]
    where = np.zeros((1, 32), bool)
    bench.tma.tensor_load(HANDLE, coordinates, TILE, lanes(BARRIER), where=where)
    assert not bench.blocks.data.any()
    assert bench.blocks.completed == {}


def test_multicast() -> None:
    """Each block of the mask receives the box at the same place and completes its own barrier."""
    x = matrix()
    bench = Bench(x, 4, box=(64, 4))
    four = [lanes(*(n,) * 4) for n in (MAP, 0, SHARED_BASE, BARRIER)]
    rows = lanes(0, 4, 8, 12)
    to = lanes(*(SHARED_BASE + 1024 * rank for rank in range(4)))
    masks = lanes(0b0011, 0b1100, 0b1111, 0b0000)
    bench.tma.tensor_load(four[0], [four[1], rows], to, four[3], multicast=masks)
    for block in range(4):
        for rank, mask in enumerate((0b0011, 0b1100, 0b1111, 0)):
            want = x[4 * rank : 4 * rank + 4] if mask >> block & 1 else np.zeros((4, 64))
            got = bench.tile(block, 1024 * rank, 256, 0, f32).reshape(4, 64)
            np.testing.assert_array_equal(got, want)
    assert bench.blocks.completed == {(block, BARRIER): 2048 for block in range(4)}


def test_store_clips() -> None:
    """Only the part of a box in the tensor is written."""
    x = np.zeros((24, 64), np.float32)
    bench = Bench(x, box=(16, 8), swizzle=64)
    image = np.arange(1, 129, dtype=np.float32)
    place = swizzled(SHARED_BASE + np.arange(512), 64) - SHARED_BASE
    bench.blocks.data[0][place] = image.view(np.uint8)
    bench.tma.tensor_store(HANDLE, [lanes(56), lanes(20)], TILE, reduce=None)
    bench.store.write_back()
    want = np.zeros((24, 64), np.float32)
    want[20:, 56:] = image.reshape(8, 16)[:4, :8]
    np.testing.assert_array_equal(x, want)


REDUCED = [
    *itertools.product(("add", "min", "max"), (np.uint32, np.int32, np.float16, "bfloat16")),
    ("add", np.float32),
    *itertools.product(("and", "or", "xor", "inc", "dec"), (np.uint32,)),
]


def by_definition(reduce: str, old: Any, new: Any) -> Any:
    """One element combined, by Python's own arithmetic."""
    if reduce == "inc":
        return 0 if old >= new else old + 1
    if reduce == "dec":
        return new if old == 0 or old > new else old - 1
    rules: dict[str, Any] = {
        "add": operator.add,
        "min": min,
        "max": max,
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
    }
    return rules[reduce](old, new)


@pytest.mark.parametrize(("reduce", "dtype"), REDUCED)
def test_reducing_store(reduce: str, dtype: Any) -> None:
    """Two blocks combine their tiles with one place of the tensor, one after the other."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(len(reduce))
    x, new = rng.integers(0, 16, (8, 64)), rng.integers(0, 16, (2, 8, 64))
    want = x.tolist()
    for tile in new.tolist():
        want = [
            [by_definition(reduce, *pair) for pair in zip(*rows, strict=True)]
            for rows in zip(want, tile, strict=True)
        ]
    out = x.astype(kind)
    bench = Bench(out, 2, box=(64, 8))
    for block in range(2):
        data = new[block].astype(kind).reshape(-1).view(np.uint8)
        bench.blocks.data[block][: data.size] = data
    zero, to = lanes(0, 0), lanes(SHARED_BASE, SHARED_BASE)
    bench.tma.tensor_store(lanes(MAP, MAP), [zero, zero], to, reduce=reduce)
    bench.store.write_back()
    np.testing.assert_array_equal(out.astype(np.int64), want)
    assert bench.codes == []


def test_bulk_runs() -> None:
    """Runs of different lengths go in, to other blocks, and out again."""
    x = matrix(2, 256)
    bench = Bench(x, 2)
    to, barrier = lanes(SHARED_BASE, SHARED_BASE + 512), lanes(BARRIER, BARRIER)
    size = lanes(256, 48)
    bench.tma.bulk_load(to, lanes(bench.address, bench.address + 64), size, barrier)
    np.testing.assert_array_equal(bench.tile(0, 0, 64, 0, f32), x.reshape(-1)[:64])
    np.testing.assert_array_equal(bench.tile(1, 512, 12, 0, f32), x.reshape(-1)[16:28])
    assert bench.blocks.completed == {(0, BARRIER): 256, (1, BARRIER): 48}
    there = lanes((2 << RANK_SHIFT) + SHARED_BASE, (1 << RANK_SHIFT) + SHARED_BASE + 512)
    remote = lanes((2 << RANK_SHIFT) + BARRIER, (1 << RANK_SHIFT) + BARRIER)
    bench.tma.bulk_send(there, to, size, remote)
    np.testing.assert_array_equal(bench.tile(1, 0, 64, 0, f32), x.reshape(-1)[:64])
    assert bench.blocks.completed == {(0, BARRIER): 304, (1, BARRIER): 304}
    out = lanes(bench.address + 1024, bench.address + 1536)
    bench.tma.bulk_store(out, to, size, reduce=None)
    bench.tma.bulk_store(out, to, size, reduce=("add", f32))
    bench.store.write_back()
    np.testing.assert_array_equal(x[1, :64], 2 * x[0, :64])
    np.testing.assert_array_equal(x[1, 128:140], 2 * x[0, 16:28])
    assert bench.codes == []


def test_counters() -> None:
    """Boxes, their bytes with and without what is filled, and the sectors of each."""
    bench = Bench(matrix(), box=(32, 16))
    bench.tma.tensor_load(HANDLE, [lanes(4), lanes(20)], TILE, lanes(BARRIER))
    moved = {"copies": 1, "bytes": 512, "sectors": 20, "ideal_sectors": 16}
    counts = {("tma_load", measure): amount for measure, amount in moved.items()}
    assert bench.counters.counts[0] == {**counts, "tma_boxes": 1, "tma_bytes": 2048}
    bench.tma.tensor_prefetch(HANDLE, [lanes(0), lanes(0)])
    assert bench.counters.counts[0]["tma_boxes"] == 2
    assert bench.counters.counts[0]["tma_prefetch", "sectors"] == 16 * 4


def test_a_map_beyond_its_tensor_is_found() -> None:
    """Bytes that the map has and the tensor has not are out of bounds, for a prefetch as well."""
    for copy in ("load", "prefetch"):
        x = matrix()
        bench = Bench(x, box=(32, 16))
        bench.maps[MAP] = replace(bench.maps[MAP], sizes=(64, 30))
        if copy == "load":
            bench.tma.tensor_load(HANDLE, [lanes(0), lanes(16)], TILE, lanes(BARRIER))
        else:
            bench.tma.tensor_prefetch(HANDLE, [lanes(0), lanes(16)])
        assert bench.codes == ["oob"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"handle": MAP + 128}, "oob", "none of the kernel's parameters"),
        ({"to": SHARED_BASE + 64}, "misaligned", "no multiple of 128"),
        ({"w": 1}, "value", "im2col"),
        ({"bytes": 40}, "misaligned", "40 bytes"),
    ],
)
def test_hazards(change: dict[str, int], code: str, words: str) -> None:
    """Each misuse is found once, and named."""
    x = np.zeros((2, 6, 6, 8), ml_dtypes.bfloat16)
    walk = Im2col((-1, -1), (-1, -1), 8, 16)
    bench = Bench(x, box=(8, 1, 1, 1), element_strides=(1, 2, 2, 1), im2col=walk)
    handle, to = lanes(change.get("handle", MAP)), lanes(change.get("to", SHARED_BASE))
    at = [lanes(0), lanes(change.get("w", 0) - 1), lanes(-1), lanes(0)]
    offsets = (lanes(0), lanes(0))
    bench.tma.tensor_load(handle, at, to, lanes(BARRIER), offsets=offsets)
    size = lanes(change.get("bytes", 48))
    bench.tma.bulk_load(TILE, lanes(bench.address), size, lanes(BARRIER))
    assert bench.codes == [code]
    assert words in bench.findings.hazards[0].message


@pytest.mark.parametrize("reduce", [None, "add"])
@pytest.mark.parametrize("start", [(-4, 0), (0, -1), (-8, 3)])
def test_stores_start_in_the_tensor(start: tuple[int, int], reduce: str | None) -> None:
    """A box that is written may hang over the ends, not over the beginnings."""
    x = np.zeros((6, 16), np.float32)
    bench = Bench(x, box=(8, 2))
    where = [lanes(at) for at in start]
    bench.tma.tensor_store(HANDLE, where, TILE, reduce=reduce)
    assert bench.codes == ["oob"]
    text = f"starts at ({start[0]}, {start[1]}), innermost first; only loads may start before"
    assert text in bench.findings.hazards[0].message
    bench = Bench(x, box=(8, 2))
    bench.tma.tensor_store(HANDLE, [lanes(12), lanes(5)], TILE, reduce=reduce)
    bench.tma.tensor_store(HANDLE, [lanes(16), lanes(9)], TILE, reduce=reduce)
    assert bench.codes == []


def test_types_of_maps_decide_reductions() -> None:
    """Halves are rounded once per addition, to nearest even."""
    for dtype, old, new in ((f16, 2048, 1), (bf16, 256, 1), (i32, 7, -9), (u32, 7, 9)):
        x = np.full((1, 64), old).astype(dtype.numpy)
        bench = Bench(x, box=(64, 1))
        data = np.full(64, new).astype(dtype.numpy).view(np.uint8)
        bench.blocks.data[0][: data.size] = data
        bench.tma.tensor_store(HANDLE, [lanes(0), lanes(0)], TILE, reduce="add")
        bench.store.write_back()
        want = {f16: 2048, bf16: 256, i32: -2, u32: 16}[dtype]
        assert set(x.astype(np.float64).reshape(-1).tolist()) == {want}
