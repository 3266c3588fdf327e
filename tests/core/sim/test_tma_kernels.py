"""Whole kernels that copy boxes: tensor maps as parameters, and what must be waited for."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from core.sim.author import Author, codes
from kdsl_core import sim
from kdsl_core.dtypes import dtype_of, u16, u64
from kdsl_core.ir import Const, MapShape, Operand, Param, TensorMap
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa import cluster, mbarrier, memory, special, tma
from kdsl_core.isa.barrier import barrier_sync, fence_proxy
from kdsl_core.isa.convert import convert
from kdsl_core.sim.tensor_copies import TensorCopies
from kdsl_core.sim.written import written_parameters

ROWS, COLUMNS = 16, 32
BOX = MapShape(dtype_of("u32"), (COLUMNS, ROWS), 128)
WORDS = ROWS * COLUMNS
THREADS = 64
Values = np.ndarray[Any, Any]


class TmaAuthor(Author):
    """An author whose kernels have tensor maps of their arguments."""

    def tensor_map(self, name: str) -> Operand:
        """A parameter that holds the map of an argument."""
        value = self.b.value(u64, f"{name}_map")
        spec = TensorMapSpec(BOX, name, self.pointers[name], (), ())
        self.kernel.params.append(Param(f"{name}_map", value, map=spec))
        return value

    def tile(self) -> Operand:
        """The address of a box in shared memory."""
        alloc = self.kernel.allocate_shared("tile", WORDS * 4, 1024)
        return memory.shared_address(self.b, alloc)

    def first(self, body: Any) -> None:
        """Thread 0 alone."""
        self.when(self.test("eq", self.tid, 0), body)

    def index(self, value: int | Operand) -> Operand:
        """A coordinate."""
        return Const(dtype_of("i32"), value) if isinstance(value, int) else convert(
            self.b, value, dtype_of("i32")
        )  # fmt: skip

    def launch(self, grid: int, arrays: dict[str, Values], **options: Any) -> sim.Result:
        """Run with maps of the arrays; collects hazards."""
        heap = sim.GlobalMemory()
        params: dict[str, Any] = {}
        for name, array in arrays.items():
            params[name] = heap.add(name, array, dtype_of(array.dtype))
            sizes, pitch = tuple(reversed(array.shape)), array.strides[:-1]
            params[f"{name}_map"] = TensorMap(BOX, name, params[name], sizes, pitch)
        params = {p.name: params[p.name] for p in self.kernel.params}
        return sim.run(
            self.kernel, (grid, 1, 1), params, heap.buffers, on_hazard="collect", **options
        )


def negation(
    *, wait: bool = True, fence: bool = True, drain: bool = True, rewrite: bool = False
) -> TmaAuthor:
    """Loads a box per block by TMA, complements its words in place, and stores it by TMA."""
    a = TmaAuthor(THREADS, x="u32", z="u32")
    x, z = a.tensor_map("x"), a.tensor_map("z")
    tile = a.tile()
    bar = a.shared("bar", 8)
    row = a.index(a.do("mul", a.block, ROWS))

    def begin() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)
        mbarrier.arrive(a.b, bar, expect_bytes=a.const(WORDS * 4))
        tma.load(a.b, x, (a.index(0), row), tile, bar)

    def finish() -> None:
        tma.store(a.b, z, (a.index(0), row), tile)
        tma.commit(a.b)
        if drain:
            tma.wait(a.b, 0, read=True)

    def complement(i: Operand) -> None:
        at = a.word(tile, a.do("add", a.do("mul", i, THREADS), a.tid))
        a.put("shared", at, a.do("xor", a.get("shared", at), 0xFFFFFFFF))

    a.first(begin)
    barrier_sync(a.b)
    if wait:
        mbarrier.wait(a.b, bar, a.const(0))
    a.loop(WORDS // THREADS, complement)
    if fence:
        fence_proxy(a.b, "shared::cta")
    barrier_sync(a.b)
    a.first(finish)
    if rewrite:
        barrier_sync(a.b)
        a.loop(WORDS // THREADS, complement)
    return a


def data(rows: int) -> Values:
    """Words that differ."""
    return np.arange(rows * COLUMNS, dtype=np.uint32).reshape(rows, COLUMNS)


@pytest.mark.parametrize("order", ["linear", "shuffle"])
def test_load_and_store(order: str) -> None:
    """Boxes of three blocks, the last one over the edge, arrive and are stored without a hazard."""
    x, z = data(40), np.zeros((40, COLUMNS), np.uint32)
    result = negation().launch(3, {"x": x, "z": z}, order=order, seed=1)
    assert codes(result) == []
    np.testing.assert_array_equal(z, ~x)
    assert result.profile.totals["tma_boxes"] == 6
    assert result.profile.totals["tma_bytes"] == 6 * WORDS * 4


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"wait": False}, "inflight"),
        ({"fence": False}, "proxy"),
        ({"drain": False, "rewrite": True}, "inflight"),
    ],
)
def test_what_is_left_out_is_found(change: dict[str, bool], want: str) -> None:
    """A missing wait, proxy fence, or wait for the store's reads."""
    z = np.zeros((16, COLUMNS), np.uint32)
    assert want in codes(negation(**change).launch(1, {"x": data(16), "z": z}))


def test_rewriting_after_the_store_has_read() -> None:
    """Shared memory may change once the thread has waited for the store's reads."""
    x, z = data(16), np.zeros((16, COLUMNS), np.uint32)
    assert codes(negation(rewrite=True).launch(1, {"x": x, "z": z})) == []
    np.testing.assert_array_equal(z, ~x)


@pytest.mark.parametrize(("wait", "want"), [(True, []), (False, ["inflight"])])
def test_a_store_outside_of_its_tensor_is_waited_for(wait: bool, want: list[str]) -> None:
    """The unit may read the source of a box that it clips as a whole: the block must not end."""
    a = TmaAuthor(32, z="u32")
    z = a.tensor_map("z")
    tile = a.tile()

    def send() -> None:
        tma.store(a.b, z, (a.index(0), a.index(ROWS)), tile)
        tma.commit(a.b)
        if wait:
            tma.wait(a.b, 0, read=True)

    a.first(send)
    assert codes(a.launch(1, {"z": np.zeros((ROWS, COLUMNS), np.uint32)})) == want


def test_blocks_that_store_to_one_place_race() -> None:
    """Stores through a map are seen: two blocks must not write one box."""
    a = TmaAuthor(32, z="u32")
    z = a.tensor_map("z")
    tile = a.tile()

    def fill(i: Operand) -> None:
        at = a.word(tile, a.do("add", a.do("mul", i, 32), a.tid))
        a.put("shared", at, a.block)

    a.loop(WORDS // 32, fill)
    fence_proxy(a.b, "")
    barrier_sync(a.b)
    a.first(lambda: tma.store(a.b, z, (a.index(0), a.index(0)), tile))
    assert written_parameters(a.kernel) == {"z_map"}
    assert "race" in codes(a.launch(2, {"z": data(16)}))


def shared_load(*, meet: bool = True) -> TmaAuthor:
    """Each of two blocks of a cluster loads half of a tile for both, and both store all of it."""
    a = TmaAuthor(32, x="u32", z="u32")
    a.kernel.cluster_dim = (2, 1, 1)
    x, z = a.tensor_map("x"), a.tensor_map("z")
    alloc = a.kernel.allocate_shared("tile", 2 * WORDS * 4, 1024)
    tile = memory.shared_address(a.b, alloc)
    bar = a.shared("bar", 8)
    rank = special.special(a.b, "cluster_ctarank")

    def begin() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)
        mbarrier.arrive(a.b, bar, expect_bytes=a.const(2 * WORDS * 4))

    def load() -> None:
        here = a.word(tile, a.do("mul", rank, WORDS))
        row = a.index(a.do("mul", rank, ROWS))
        tma.load(a.b, x, (a.index(0), row), here, bar, multicast=Const(u16, 3))

    def finish() -> None:
        for half in range(2):
            row = a.do("add", a.do("mul", rank, 2 * ROWS), half * ROWS)
            tma.store(a.b, z, (a.index(0), a.index(row)), tile, half * WORDS * 4)
        tma.commit(a.b)
        tma.wait(a.b, 0, read=True)

    a.first(begin)
    if meet:
        cluster.arrive(a.b)
        cluster.wait(a.b)
    a.first(load)
    mbarrier.wait(a.b, bar, a.const(0))
    a.first(finish)
    cluster.arrive(a.b)
    cluster.wait(a.b)
    return a


@pytest.mark.parametrize("order", ["linear", "shuffle"])
def test_multicast(order: str) -> None:
    """Both blocks of each cluster receive both halves, at the same places."""
    x, z = data(32), np.zeros((64, COLUMNS), np.uint32)
    assert codes(shared_load().launch(2, {"x": x, "z": z}, order=order)) == []
    np.testing.assert_array_equal(z, np.concatenate([x, x]))


@pytest.mark.parametrize(
    ("blocks", "rows", "short"), [(3, 48, True), (3, 40, False), (1, 24, True), (2, 16, False)]
)
def test_boxes_that_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, blocks: int, rows: int, short: bool
) -> None:
    """Without checks, boxes that lie whole in the tensor go the short way, to the same bytes."""
    ways = []
    for name in ("load_boxes", "store_boxes"):
        way = mock.Mock(side_effect=getattr(TensorCopies, name))
        monkeypatch.setattr(TensorCopies, name, lambda *args, way=way: way(*args))
        ways.append(way)
    x, z = data(rows), np.zeros((rows, COLUMNS), np.uint32)
    result = negation().launch(blocks, {"x": x, "z": z}, checks=(), profile=False)
    assert codes(result) == [] and [way.called for way in ways] == [not short] * 2
    seen = min(rows, blocks * ROWS)
    np.testing.assert_array_equal(z[:seen], ~x[:seen])
    assert not z[seen:].any()


def test_a_store_to_what_may_not_be_written() -> None:
    """The short way leaves a read-only array alone, as the long one does."""
    x, z = data(48), np.zeros((48, COLUMNS), np.uint32)
    z.flags.writeable = False
    negation().launch(3, {"x": x, "z": z}, checks=(), profile=False)
    assert not z.any()


def test_multicasts_that_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters whose blocks load for each other, the short way."""
    monkeypatch.delattr(TensorCopies, "load_boxes")
    x, z = data(32), np.zeros((64, COLUMNS), np.uint32)
    shared_load().launch(4, {"x": x, "z": z}, checks=(), profile=False)
    np.testing.assert_array_equal(z, np.concatenate([x, x]))


def test_multicast_before_the_other_block_is_ready() -> None:
    """A block must not complete bytes at a barrier of which it does not know that it exists."""
    z = np.zeros((64, COLUMNS), np.uint32)
    assert codes(shared_load(meet=False).launch(2, {"x": data(32), "z": z})) != []


def test_loads_do_not_write_through_maps() -> None:
    """Only the stored map counts as written."""
    assert written_parameters(negation().kernel) == {"z_map"}
