"""Static counts equal the simulator's counters, and the rules of memory in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdsl_core as kd
from core.inspect.accesses import (
    addresses,
    sectors_in_words,
    totals,
    warp_rows,
    wavefronts_in_words,
)
from kdsl_core import atoms

FLOATS = {1: kd.e4m3, 2: kd.bf16, 4: kd.f32, 8: kd.f64}
FEW = settings(max_examples=120, deadline=None, derandomize=True)


@st.composite
def accesses(draw: Any) -> tuple[Any, int, int, int, int]:
    """(layout, threads, values, element bytes, width): vectors along mode 1, swizzled or not."""
    size = draw(st.sampled_from([1, 2, 4, 8]))
    width = draw(st.sampled_from([w for w in (1, 2, 4, 8, 16) if w >= size]))
    per = width // size
    low, high = draw(st.sampled_from([(32, 1), (8, 4), (4, 8), (2, 32), (20, 1), (3, 11)]))
    rest = draw(st.integers(1, 2))
    steps = [
        per * draw(st.integers(0, 9)),
        per * draw(st.integers(0, 9)),
        per * draw(st.integers(0, 9)),
    ]
    layout: Any = kd.Layout(((low, high), (per, rest)), ((steps[0], steps[1]), (1, steps[2])))
    if draw(st.booleans()):
        base, bits = (per - 1).bit_length(), draw(st.integers(1, 3))
        swizzle = kd.Swizzle(bits, base + draw(st.integers(0, 2)), bits + draw(st.integers(0, 2)))
        layout = kd.ComposedLayout(swizzle, 0, layout)
    return layout, low * high, per * rest, size, width


@FEW
@given(accesses(), st.sampled_from(["ld", "st"]))
def test_bank_conflicts_are_what_the_simulator_counts(access: Any, op: Any) -> None:
    """Wavefronts and ideal of loads and stores of 1 to 16 bytes, swizzled or not."""
    layout, threads, values, size, width = access
    found = kd.inspect.bank_conflicts(layout, FLOATS[size], width=width, op=op)
    first = addresses(layout, threads, values, size)[:, :: width // size]
    counted = totals("shared", op, first, width)
    assert (found.wavefronts, found.ideal) == (
        counted["wavefronts"],
        counted["ideal_wavefronts"],
    )
    want = [wavefronts_in_words(row[None], width, op) for row in warp_rows(first)]
    assert found.wavefronts == sum(w for w, _, _ in want)
    assert found.ways == max(ways for _, _, ways in want)


@FEW
@given(accesses(), st.sampled_from(["ld", "st"]))
def test_sectors_are_what_the_simulator_counts(access: Any, op: Any) -> None:
    """Requests, sectors, ideal sectors and bytes of global loads and stores."""
    layout, threads, values, size, width = access
    found = kd.inspect.coalescing(layout, FLOATS[size], width=width, op=op)
    first = addresses(layout, threads, values, size)[:, :: width // size]
    counted = totals("global", op, first, width)
    for name in ("requests", "sectors", "ideal_sectors", "bytes"):
        assert getattr(found, name) == counted[name], name
    assert found.sectors == sum(sectors_in_words(row[None], width) for row in warp_rows(first))
    assert sum(found.per_warp) == found.sectors


@settings(FEW, max_examples=60)
@given(
    st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(0, 3), st.sampled_from(["ld", "st"])
)
def test_matrix_rows_are_what_the_simulator_counts(
    matrices: int, pitch: int, bits: int, kind: str
) -> None:
    """ldmatrix and stmatrix of 1, 2 and 4 matrices over rows any 16-byte pitch apart."""
    op: Any = f"{kind}matrix"
    rows = 8 * matrices
    plain = kd.Layout((rows, 8), (8 * pitch, 1))
    layout = kd.ComposedLayout(kd.Swizzle(bits, 3, 3), 0, plain)
    found = kd.inspect.bank_conflicts(layout, kd.bf16, op=op)
    table = np.zeros((32, 1), np.int64)  # the simulator reads the first `rows` lanes alone
    table[:rows] = addresses(layout, rows, 8, 2)[:, ::8]
    counted = totals("shared", op, table, 16 * matrices)
    assert (found.wavefronts, found.ideal) == (counted["wavefronts"], counted["ideal_wavefronts"])
    assert found.free is (counted["wavefronts"] == counted["ideal_wavefronts"])


def test_collisions_name_lanes_that_share_a_bank() -> None:
    """Each tuple of lanes wants one word, all words lie in the bank, and there are `ways`."""
    layout = kd.Layout(((4, 8), 1), ((1, 64), 0))
    found = kd.inspect.bank_conflicts(layout, kd.bf16)
    assert found.worst is not None and len(found.worst.lanes) == found.ways == 8
    for together in found.worst.lanes:
        words = {layout((lane, 0)) * 2 // 4 for lane in together}
        assert len(words) == 1 and words.pop() % 32 == found.worst.bank
    assert kd.inspect.bank_conflicts(kd.Layout(32), kd.f32).worst is None


def test_offsets_may_run_backwards() -> None:
    """A warp that reads memory from its end on moves what it moves forwards."""
    back = kd.Layout(32, -4)
    assert kd.inspect.bank_conflicts(back, kd.f32).wavefronts == 4
    assert kd.inspect.coalescing(back, kd.f32, start=16).sectors == 16


def test_the_worst_warp_is_found() -> None:
    """The second warp strides, and its first value is named."""
    layout = kd.Layout(((32, 2), 1), ((1, 0), 0))
    assert kd.inspect.coalescing(layout, kd.f32).per_warp == (4, 4)
    skewed = kd.coalesce(kd.Layout((2, 32)))
    assert kd.inspect.coalescing(skewed, kd.f32).worst_warp == 0
    spread = kd.Layout((64, 2), (1, 33 * 32))
    found = kd.inspect.coalescing(spread, kd.f32, start=4)
    assert (found.sectors, found.worst_sectors, found.worst_value) == (20, 5, 0)


# -- tiled copies and mmas against whole kernels --------------------------------------------------
@kd.kernel
def stage(
    x: kd.Tensor["bf16", "m k"],
    y: kd.Tensor["bf16", "t"],
    shared: kd.Static,
    fill: kd.Static,
    read: kd.Static,
    mma: kd.Static,
):
    """Global to shared memory by `fill`, and shared memory to fragments by `read`."""
    tile = kd.smem(kd.bf16, shared)
    part = fill.get_slice(kd.thread_rank())
    source = kd.local_tile(x, (64, 64), (0, 0))
    kd.copy(part.partition_S(source), part.partition_D(tile), atom=fill)
    kd.cp_async_commit()
    kd.cp_async_wait(0)
    kd.sync_threads()
    rows = read.get_slice(kd.thread_rank())
    fragment = mma.make_fragment_A((64, 64))
    kd.copy(rows.partition_S(tile), rows.retile(fragment), atom=read)
    y[kd.thread_rank()] = fragment[0]


MMA = kd.tiled_mma(atoms.SM80_16x8x16_F32BF16BF16F32_TN, (2, 2))
FILL = kd.tiled_copy(atoms.cp_async(16), kd.bf16, kd.Layout((16, 8), (8, 1)), kd.Layout((1, 8)))
READ = kd.tiled_copy_A(atoms.ldmatrix(4), MMA)
PLAIN = kd.Layout((64, 64), (64, 1))
SWIZZLED = kd.ComposedLayout(kd.Swizzle(3, 3, 3), 0, PLAIN)


@pytest.mark.parametrize("shared", [PLAIN, SWIZZLED, kd.Layout((64, 64), (72, 1))], ids=str)
def test_tiled_copies_are_what_the_simulator_counts(shared: Any) -> None:
    """A kernel's cp.async stores plus ldmatrix loads, and its sectors of global memory."""
    x, y = np.zeros((64, 64), kd.bf16.numpy), np.zeros(128, kd.bf16.numpy)
    kwargs = {"shared": shared, "fill": FILL, "read": READ, "mma": MMA}
    profile = kd.simulate(stage, grid=1, block=128, args=(x, y), kwargs=kwargs).profile
    parts = [kd.inspect.bank_conflicts(copy, shared, kd.bf16) for copy in (FILL, READ)]
    assert [part.op for part in parts] == ["st", "ldmatrix"]
    assert sum(part.wavefronts for part in parts) == profile.totals["wavefronts"]
    assert sum(part.ideal for part in parts) == profile.totals["ideal_wavefronts"]
    loads = kd.inspect.coalescing(FILL, PLAIN)
    stores = kd.inspect.coalescing(kd.Layout(128), kd.bf16, op="st")
    assert loads.width == 16 and loads.efficiency == 1
    assert loads.sectors + stores.sectors == profile.totals["sectors"]
    assert loads.requests + stores.requests == profile.totals["requests"]


@kd.kernel
def fragments(
    x: kd.Tensor["bf16", "m k"], y: kd.Tensor["bf16", "t"], shared: kd.Static, mma: kd.Static
):
    """Shared memory to fragments of A without matrix loads."""
    tile = kd.smem(kd.bf16, shared)
    for i in range(32):
        tile[kd.thread_rank() // 2, kd.thread_rank() % 2 * 32 + i] = x[0, i]
    kd.sync_threads()
    fragment = mma.make_fragment_A((64, 64))
    kd.copy(mma.get_slice(kd.thread_rank()).partition_A(tile), fragment)
    y[kd.thread_rank()] = fragment[0]


@pytest.mark.parametrize("shared", [PLAIN, SWIZZLED], ids=str)
def test_tiled_mma_reads_are_what_the_simulator_counts(shared: Any) -> None:
    """Fragments read in pairs straight from shared memory."""
    x, y = np.zeros((64, 64), kd.bf16.numpy), np.zeros(128, kd.bf16.numpy)
    kwargs = {"shared": shared, "mma": MMA}
    profile = kd.simulate(fragments, grid=1, block=128, args=(x, y), kwargs=kwargs).profile
    fill = kd.inspect.bank_conflicts(kd.Layout((128, 32), (32, 1)), kd.bf16, width=2, op="st")
    if isinstance(shared, kd.ComposedLayout):
        swizzled = kd.ComposedLayout(shared.outer, 0, kd.Layout((128, 32), (32, 1)))
        fill = kd.inspect.bank_conflicts(swizzled, kd.bf16, width=2, op="st")
    reads = kd.inspect.bank_conflicts(MMA, shared, operand="A")
    assert reads.width == 4
    assert fill.wavefronts + reads.wavefronts == profile.totals["wavefronts"]
    assert fill.ideal + reads.ideal == profile.totals["ideal_wavefronts"]


def test_refusals_say_what_is_missing() -> None:
    """No dtype, no memory, no tiles, a width that does not fit, an atom, run-time sizes."""
    with pytest.raises(kd.LayoutError, match="K189"):
        kd.inspect.bank_conflicts(kd.Layout(32))
    with pytest.raises(kd.LayoutError, match="K188"):
        kd.inspect.bank_conflicts(FILL)
    with pytest.raises(kd.LayoutError, match="K188"):
        kd.inspect.bank_conflicts(FILL, kd.Layout((8, 64), (64, 1)))
    with pytest.raises(kd.LayoutError, match="K188"):
        kd.inspect.coalescing(kd.Layout(32), kd.Layout(16), kd.f32)
    with pytest.raises(kd.LayoutError, match="K187"):
        kd.inspect.bank_conflicts(kd.Layout((32, 4), (5, 1)), kd.f32, width=16)
    with pytest.raises(kd.LayoutError, match="K187"):
        kd.inspect.coalescing(kd.Layout(32), kd.f32, start=2)
    with pytest.raises(kd.LayoutError, match="K187"):
        kd.inspect.coalescing(kd.make_identity_layout((32, 1)), kd.f32)
    with pytest.raises(kd.LayoutError, match="K102"):
        kd.inspect.coalescing(kd.Layout((32, kd.sym("n"))), kd.f32)
    with pytest.raises(kd.LayoutError, match="K187"):
        kd.inspect.coalescing(atoms.cp_async(16), kd.f32)  # type: ignore[arg-type] # the mistake under test


PAIRS: dict[str, tuple[Any, Any, tuple[int, int, int]]] = {
    "the lane beside": (kd.Layout(((2, 16), 2), ((0, 2), 1)), "ld", (1, 1, 1)),
    "the lane two further": (kd.Layout(((2, 2, 8), 2), ((2, 0, 4), 1)), "ld", (1, 1, 1)),
    "the lane four further": (kd.Layout(((4, 2, 4), 2), ((2, 0, 8), 1)), "ld", (2, 2, 1)),
    "quarters in pairs": (kd.Layout(((2, 16), 4), ((0, 4), 1)), "ld", (2, 2, 1)),
    "pairs that collide": (kd.Layout(((2, 16), 2), ((0, 4), 1)), "ld", (2, 1, 2)),
    "stores": (kd.Layout(((2, 16), 2), ((0, 2), 1)), "st", (2, 2, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_lanes_that_share_in_pairs(name: str) -> None:
    """Parts of a warp go together where loads of lanes are the same in pairs (facts of an H200)."""
    access, op, expected = PAIRS[name]
    found = kd.inspect.bank_conflicts(access, kd.f32, op=op)
    assert (found.wavefronts, found.ideal, found.ways) == expected
