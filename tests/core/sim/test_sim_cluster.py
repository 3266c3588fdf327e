"""Clusters: ranks, shared memory of other blocks, the cluster's barrier, and blocks that end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author, found
from kdsl_core.dtypes import u32
from kdsl_core.ir import Operand
from kdsl_core.isa import cluster, mbarrier, special

Values = np.ndarray[Any, Any]


def author(size: tuple[int, int, int] = (2, 1, 1), **pointers: str) -> Author:
    """An author of a kernel whose blocks stand in clusters."""
    a = Author(32, **pointers)
    a.kernel.cluster_dim = size
    return a


def meet(a: Author) -> None:
    """All threads of the cluster wait for each other."""
    cluster.arrive(a.b)
    cluster.wait(a.b)


def test_special_registers() -> None:
    """Ranks count x first; the cluster's place and the grid of clusters are known."""
    names = ("cluster_ctarank", "cluster_ctaid.y", "clusterid.x", "nclusterid.x", "clusterid.y")
    a = author((2, 2, 1), z="u32")
    block = a.do("add", a.do("mul", special.special(a.b, "ctaid.y"), 4), a.block)
    for at, name in enumerate(names):
        place = a.do("add", a.do("mul", block, len(names)), at)
        value = special.special(a.b, name)
        a.when(
            a.test("eq", a.tid, 0),
            lambda place=place, value=value: a.put("global", a.address("z", place, 4), value),
        )
    z = np.zeros((4, 4, len(names)), np.uint32)
    a.run((4, 4, 1), z=z)(order="shuffle")
    y, x = np.mgrid[:4, :4]
    want = np.stack([x % 2 + 2 * (y % 2), y % 2, x // 2, np.full_like(x, 2), y // 2], axis=-1)
    np.testing.assert_array_equal(z, want)


def test_shared_addresses_name_their_block() -> None:
    """In a cluster the bits above a block's shared memory say whose it is, and only there."""
    for size, ranks in ((2, {1, 2}), (1, {0})):
        a = author((size, 1, 1), z="u32")
        address = a.do("add", a.shared("s", 128), 4)
        a.put("global", a.address("z", a.block, 4), address)
        z = np.zeros(4, np.uint32)
        assert found(a.run(4, z=z), checks=("oob",)) == []
        assert set((z >> 24).tolist()) == ranks
        assert len(set((z & 0xFFFFFF).tolist())) == 1


def swap(*, before: bool = True, after: bool = True) -> Author:
    """Each block writes its rank and reads the other block's."""
    a = author(z="u32")
    s = a.shared("s", 128)
    rank = special.special(a.b, "cluster_ctarank")
    a.put("shared", a.word(s, a.tid), a.do("add", a.do("mul", rank, 100), a.tid))
    if before:
        meet(a)
    there = cluster.map_address(a.b, s, a.do("xor", rank, 1))
    got = a.get("cluster", a.word(there, a.tid))
    index = a.do("add", a.do("mul", a.block, 32), a.tid)
    a.put("global", a.address("z", index, 4), got)
    if after:
        meet(a)
    return a


@pytest.mark.parametrize("options", [{}, *({"order": "shuffle", "seed": i} for i in range(3))])
def test_reading_the_other_block(options: dict[str, Any]) -> None:
    """After the cluster's barrier a block sees what the other one wrote."""
    z = np.zeros(128, np.uint32)
    assert found(swap().run(4, z=z), **options) == []
    want = np.arange(32) + 100 * np.array([1, 0, 1, 0])[:, None]
    np.testing.assert_array_equal(z.reshape(4, 32), want)


@pytest.mark.parametrize("options", [{}, *({"order": "shuffle", "seed": i} for i in range(3))])
@pytest.mark.parametrize(
    ("left_out", "want"), [("before", {"race", "uninit", "exited"}), ("after", {"exited"})]
)
def test_without_a_barrier(left_out: str, want: set[str], options: dict[str, Any]) -> None:
    """Reading too early is a race (or reads nothing); leaving too early takes the memory away."""
    hazards = found(swap(**{left_out: False}).run(2, z=np.zeros(64, np.uint32)), **options)
    assert hazards and set(hazards) <= want


def test_a_block_that_ended_has_a_code_of_its_own() -> None:
    """The report says whose memory it was, and at which line it was accessed."""
    result = swap(after=False).run(2, z=np.zeros(64, np.uint32))(on_hazard="collect")
    (hazard, *_) = result.hazards
    assert hazard.error().code == "K513"
    assert "of its cluster, which may have ended" in hazard.message
    assert hazard.lines


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("order", ["linear", "shuffle"])
def test_a_block_must_have_begun(release: bool, waits: bool, order: str) -> None:
    """Nobody writes to a block that may not run yet; a relaxed arrival tells that it does."""
    a = author()
    s = a.shared("s", 128)
    rank = special.special(a.b, "cluster_ctarank")
    there = cluster.map_address(a.b, s, a.do("xor", rank, 1))
    cluster.arrive(a.b, release=release)
    if waits:
        cluster.wait(a.b)
    a.put("cluster", a.word(there, a.tid), rank)
    if not waits:
        cluster.wait(a.b)
    meet(a)
    hazards = a.run(2)(on_hazard="collect", order=order).hazards
    texts = ["which may not have begun" in hazard.message for hazard in hazards]
    assert texts == [True] * (not waits)


def test_barrier_used_wrongly() -> None:
    """Waiting needs an arrival, and two arrivals need a wait between them."""
    a = author()
    cluster.wait(a.b)
    assert found(a.run(2)) == ["barrier"]
    a = author()
    cluster.arrive(a.b)
    cluster.arrive(a.b)
    cluster.wait(a.b)
    assert found(a.run(2)) == ["barrier"]


def test_a_block_that_never_arrives() -> None:
    """The report says how many warps have come."""
    a = author()
    rank = special.special(a.b, "cluster_ctarank")
    bar = a.shared("bar", 8)

    def stay() -> None:
        mbarrier.init(a.b, bar, a.const(2))
        mbarrier.wait(a.b, bar, a.const(0))

    a.when(a.test("eq", a.do("add", rank, a.tid), 1 + 31), stay)
    meet(a)
    (hazard,) = a.run(2)(on_hazard="collect", checks=("deadlock",)).hazards
    assert hazard.code == "deadlock"


def test_rank_beyond_the_cluster() -> None:
    """There is no block 2 in a cluster of two."""
    a = author()
    s = a.shared("s", 128)
    a.put("shared", a.word(s, a.tid), a.tid)
    cluster.map_address(a.b, s, a.const(2))
    meet(a)
    assert found(a.run(2)) == ["oob"]


def remote_arrival(*, fence: bool = True, drain: bool = True) -> Author:
    """Block 1 tells block 0, through an mbarrier there, that words in its own memory are ready."""
    a = author(z="u32")
    s, bar = a.shared("s", 128), a.shared("bar", 8)
    rank = special.special(a.b, "cluster_ctarank")

    def init() -> None:
        mbarrier.init(a.b, bar, a.const(32))
        if fence:
            mbarrier.fence_init(a.b)

    a.when(a.test("eq", a.tid, 0), init)
    meet(a)

    def tell() -> None:
        a.put("shared", a.word(s, a.tid), a.do("add", a.tid, 5))
        there = cluster.map_address(a.b, bar, a.const(0))
        mbarrier.arrive(a.b, there, remote=True)

    def listen() -> None:
        mbarrier.wait(a.b, bar, a.const(0))
        there = cluster.map_address(a.b, s, a.const(1))
        a.put("global", a.address("z", a.tid, 4), a.get("cluster", a.word(there, a.tid)))

    def ask(condition: Operand) -> None:
        a.when(condition, tell, listen if drain else None)

    ask(a.test("eq", rank, 1))
    if drain:
        meet(a)
    return a


@pytest.mark.parametrize("options", [{}, {"order": "shuffle", "seed": 2}])
def test_remote_arrival(options: dict[str, Any]) -> None:
    """A remote arrival orders memory as a local one does."""
    z = np.zeros(32, np.uint32)
    assert found(remote_arrival().run(2, z=z), **options) == []
    np.testing.assert_array_equal(z, np.arange(32) + 5)


@pytest.mark.parametrize(("left_out", "want"), [("fence", "barrier"), ("drain", "exited")])
def test_remote_arrival_without(left_out: str, want: str) -> None:
    """Other blocks need the fence of the initialisation, and that the block has not ended."""
    assert want in found(remote_arrival(**{left_out: False}).run(2, z=np.zeros(32, u32.numpy)))


@pytest.mark.parametrize(("scope", "want"), [("cluster", []), ("cta", ["barrier"])])
@pytest.mark.parametrize("far", [False, True])
def test_scope_of_a_wait(scope: str, want: list[str], far: bool) -> None:
    """Who waits at the block's scope is not ordered behind arrivals of another block."""
    a = author()
    bar = a.shared("bar", 8)
    rank = special.special(a.b, "cluster_ctarank")

    def init() -> None:
        mbarrier.init(a.b, bar, a.const(1))
        mbarrier.fence_init(a.b)

    a.when(a.test("eq", a.tid, 0), init)
    meet(a)
    there = cluster.map_address(a.b, bar, a.do("xor", rank, int(far)))
    first = a.test("eq", a.tid, 0)
    a.when(first, lambda: mbarrier.arrive(a.b, there, remote=True))
    a.b.append(mbarrier.MbarrierWaitOp(address=bar, parity=a.const(0), scope=scope))
    meet(a)
    assert found(a.run(2)) == (want if far else [])
