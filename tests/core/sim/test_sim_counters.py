"""Counters: sectors, requests, bank conflicts and branches, as the hardware counts them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from core.sim.author import Author
from house.census import ROOT
from kdsl_core.dtypes import i32, u32
from kdsl_core.ir import Const
from kdsl_core.ir.cost import Cost
from kdsl_core.isa import atomic, matrix_copy, memory
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait
from kdsl_core.isa.barrier import barrier_sync
from kdsl_core.isa.special import special
from kdsl_core.ptx.costs import PIPES
from kdsl_core.sim import METRICS
from kdsl_core.sim.footprint import Footprint
from kdsl_core.sim.metrics import Metric
from kdsl_core.sim.traffic import count_sectors, count_tag_requests, count_wavefronts

PIPES_OF_COSTS = {*PIPES.values(), "fp64", "tensor_op_imma"}
LANE = np.arange(32, dtype=np.int64)[None, :]


def wavefronts_one_by_one(address: Any, size: int) -> tuple[int, int]:
    """Wavefronts and their ideal, by the rule in words: distinct words per bank, per phase."""
    per_phase = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[size]
    total = ideal = 0
    for row in address:
        for start in range(0, row.size, per_phase):
            words = {
                (int(a) + byte) // 4
                for a in row[start : start + per_phase]
                for byte in range(0, size, 4)
            }
            banks = [word % 32 for word in words]
            total += max(banks.count(bank) for bank in set(banks))
            ideal += 1
    return total, ideal


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("stride", [0, 1, 2, 3, 17, 32, 33])
def test_wavefronts(size: int, stride: int) -> None:
    """Strided accesses of each width, against the rule applied lane by lane."""
    address = np.concatenate([LANE, LANE[:, ::-1] + 3]) * stride * size
    assert count_wavefronts(address, None, size) == wavefronts_one_by_one(address, size)


def test_wavefronts_of_random_bytes_and_masks() -> None:
    """Masked-off lanes take no part; bytes of one word share it."""
    rng = np.random.default_rng(0)
    address = rng.integers(0, 4096, (3, 32))
    assert count_wavefronts(address, None, 1) == wavefronts_one_by_one(address, 1)
    active = np.zeros((3, 32), bool)
    active[1, 4] = True
    assert count_wavefronts(address, active, 4) == (1, 1)


@pytest.mark.parametrize(
    ("address", "size", "want"),
    [
        (LANE * 4, 4, (1, 4, 4, 128)),
        (LANE * 4 + 16, 4, (1, 5, 4, 128)),
        (LANE * 16, 16, (1, 16, 16, 512)),
        (LANE * 32, 4, (1, 32, 4, 128)),
        (LANE * 0, 4, (1, 1, 1, 128)),
        (LANE * 2, 2, (1, 2, 2, 64)),
    ],
)
def test_sectors(address: Any, size: int, want: tuple[int, int, int, int]) -> None:
    """(requests, sectors, least sectors, bytes) of typical patterns."""
    assert count_sectors(address, None, size) == want


@pytest.mark.parametrize(
    ("address", "size", "want"),
    [
        (LANE * 4, 4, 1),
        (LANE * 4 + 64, 4, 2),
        (LANE * 12, 4, 3),
        (LANE * 16, 16, 4),
        (LANE * 0, 16, 1),
        (LANE * 128, 4, 32),
        (np.concatenate([LANE * 4, LANE * 8]), 4, 1 + 2),
    ],
)
def test_tag_requests(address: Any, size: int, want: int) -> None:
    """Each warp has one for each line of 128 bytes that it touches, however often."""
    assert count_tag_requests(address, None, size) == want
    first = np.zeros(address.shape, bool)
    first[:, 0] = True
    assert count_tag_requests(address, first, size) == len(address)


def transpose(pitch: int) -> Author:
    """A 32×32 transpose through shared memory whose rows are `pitch` words apart."""
    a = Author((32, 8, 1), x="u32", z="u32")
    row = special(a.b, "tid.y")
    s = a.shared("tile", 32 * pitch * 4)
    for part in range(4):
        r = a.do("add", row, part * 8)
        got = a.get("global", a.address("x", a.do("add", a.do("mul", r, 32), a.tid), 4))
        a.put("shared", a.word(s, a.do("add", a.do("mul", r, pitch), a.tid)), got)
    barrier_sync(a.b)
    for part in range(4):
        r = a.do("add", row, part * 8)
        got = a.get("shared", a.word(s, a.do("add", a.do("mul", a.tid, pitch), r)))
        a.put("global", a.address("z", a.do("add", a.do("mul", r, 32), a.tid), 4), got)
    return a


@pytest.mark.parametrize(("pitch", "conflicts"), [(32, 32 * 31), (33, 0)])
def test_transpose_counts_bank_conflicts(pitch: int, conflicts: int) -> None:
    """Reading columns of a 32-word pitch conflicts 32 ways; one word of padding cures it."""
    x, z = np.arange(1024, dtype=np.uint32), np.zeros(1024, np.uint32)
    result = transpose(pitch).run(x=x, z=z)()
    np.testing.assert_array_equal(z.reshape(32, 32), x.reshape(32, 32).T)
    assert result.profile.bank_conflicts == conflicts
    assert result.profile.totals["sectors"] == 2 * 128
    assert result.profile.sector_efficiency == 1.0


def test_profile_is_a_table_of_lines() -> None:
    """Each source line has a row; the rows add up to the totals."""
    a = Author(64, x="u32")
    (got,) = memory.load(a.b, "global", a.address("x", a.tid, 4), u32)
    memory.store(a.b, "global", a.address("x", a.tid, 4), (got,))
    profile = a.run(2, x=np.zeros(64, np.uint32))(checks=()).profile
    text = str(profile).splitlines()
    assert text[0].split()[:3] == ["line", "instructions", "requests"]
    assert len(text) == len(profile.lines) + 2
    for name, total in profile.totals.items():
        assert total == sum(getattr(line, name) for line in profile.lines)
    assert profile.totals["requests"] == 8


def totals_of(a: Author, blocks: int = 1, **arrays: Any) -> dict[str, float]:
    """The counters of a run that looks for no hazards."""
    return a.run(blocks, **arrays)(checks=(), footprint=True).profile.totals


def test_kinds_of_access_are_apart() -> None:
    """Loads, stores and atomics of each space have their own counters; the sums have all."""
    a = Author(64, x="u32")
    s = a.shared("s", 256)
    got = a.get("global", a.address("x", a.tid, 4))
    a.put("shared", a.word(s, a.tid), got)
    a.put("global", a.address("x", a.tid, 4), a.get("shared", a.word(s, a.tid)))
    atomic.reduce(a.b, "global", a.pointers["x"], "add", got)
    atomic.reduce(a.b, "shared", s, "add", got)
    found = totals_of(a, x=np.zeros(64, np.uint32))
    one = {f"global_{kind}_requests": 2 for kind in ("load", "store", "atomic")}
    one |= {"global_load_sectors": 8, "global_store_sectors": 8, "global_atomic_sectors": 2}
    one |= {"shared_load_wavefronts": 2, "shared_store_wavefronts": 2}
    assert {name: found[name] for name in one} == one
    assert found["requests"] == found["tag_requests"] == 6 and found["sectors"] == 18
    assert found["wavefronts"] == 4 + found["shared_atomic_wavefronts"]


def atomics(op: str, value: Any, *, step: int = 0, read: bool = False) -> dict[str, float]:
    """The counters of a warp whose lanes update words that lie `step` apart; None is the lane."""
    a = Author(32, z="u32")
    address = a.word(a.shared("s", 512), a.do("mul", a.tid, step))
    old = atomic.atomic(a.b, "shared", address, op, a.tid if value is None else value)
    if read:
        a.put("global", a.address("z", a.tid, 4), old)
    return totals_of(a, z=np.zeros(32, np.uint32))


@pytest.mark.parametrize(("step", "passes"), [(0, 32), (1, 1), (2, 2)])
def test_lanes_update_one_word_in_turn(step: int, passes: int) -> None:
    """Atomics on one word take a pass for each lane, on words of their own one for all."""
    found = atomics("add", None, step=step)
    assert found["shared_atomic_wavefronts"] == passes
    assert found["shared_atomic_ideal_wavefronts"] == 1


@pytest.mark.parametrize(
    ("op", "value", "read", "passes"),
    [
        ("add", Const(u32, 1), False, 1),
        ("add", Const(u32, 1), True, 32),
        ("add", Const(u32, 2), False, 32),
        ("add", Const(i32, 1), False, 32),
        ("or", Const(u32, 1), False, 32),
    ],
)
def test_lanes_that_are_counted(op: str, value: Const, read: bool, passes: int) -> None:
    """Where 1 is added to u32 and nobody reads the result, an instruction counts the lanes."""
    assert atomics(op, value, read=read)["shared_atomic_wavefronts"] == passes


def test_atomics_have_a_line() -> None:
    """That of the author, although "op" is the name of a field of theirs."""
    a = Author(32, x="u32")
    atomic.reduce(a.b, "global", a.pointers["x"], "max", a.tid)
    (row,) = [
        row
        for row in a.run(x=np.zeros(1, np.uint32))(checks=()).profile.lines
        if row.global_atomic_requests
    ]
    assert row.file == __file__ and row.line > 0


def test_matrix_copies_are_apart() -> None:
    """`ldmatrix` and `stmatrix` count as such: a wavefront for each matrix without conflicts."""
    a = Author(32)
    s = a.shared("s", 512)
    row = a.word(s, a.tid, 16)
    registers = tuple(a.b.value(u32) for _ in range(4))
    matrix_copy.stmatrix(a.b, row, (a.tid,) * 4)
    matrix_copy.ldmatrix(a.b, row, registers)
    found = totals_of(a)
    for name in ("ldmatrix", "stmatrix"):
        assert found[f"{name}_wavefronts"] == found[f"{name}_ideal_wavefronts"] == 4
    assert found["wavefronts"] == 8 and not any(name.startswith("shared") for name in found)


def test_asynchronous_copies_are_apart() -> None:
    """Both sides of `cp.async` count as such, not as loads and stores of threads."""
    a = Author(32, x="u32")
    s = a.shared("s", 512)
    cp_async(a.b, a.do("add", s, a.do("mul", a.tid, 16)), a.address("x", a.tid, 16), 16)
    cp_async_commit(a.b)
    cp_async_wait(a.b, 0)
    found = totals_of(a, x=np.zeros(128, np.uint32))
    names = ("requests", "tag_requests", "sectors", "bytes", "wavefronts", "ideal_wavefronts")
    assert [found[f"async_copy_{name}"] for name in names] == [1, 4, 16, 512, 4, 4]
    assert not any(name.startswith(("global", "shared")) for name in found)


def test_lanes_that_take_part() -> None:
    """Threads are counted where lanes are masked off, and where the last warp is not full."""
    a = Author(40)
    a.when(a.test("lt", a.tid, 8), lambda: a.do("add", a.tid, 3))
    rows = a.run()().profile.rows
    lanes = {(c["instructions"], c["threads"]) for _, c in rows if "branches" not in c}
    assert lanes == {(2, 40), (1, 8)}


def test_footprint_counts_a_sector_once() -> None:
    """However often and by whomever a sector is read or written."""
    a = Author(64, x="u32", z="u32")
    for _ in range(2):
        got = a.get("global", a.address("x", a.tid, 4))
        a.put("global", a.address("z", a.do("mul", a.tid, 8), 4), got)
    found = totals_of(a, 3, x=np.zeros(64, np.uint32), z=np.zeros(512, np.uint32))
    assert found["footprint_read_bytes"] == 64 * 4
    assert found["footprint_written_bytes"] == 64 * 32
    assert found["global_load_sectors"] == 3 * 2 * 8


def test_footprint_of_many_accesses() -> None:
    """Sectors stay distinct when parts of the list were put together on the way."""
    footprint = Footprint()
    for start in range(0, 3 << 20, 1 << 19):
        address = np.arange(start, start + (1 << 20), dtype=np.int64) * 32
        footprint.access("ld", address, None, 4)
    assert footprint.bytes_read == ((5 << 19) + (1 << 20)) * 32
    assert footprint.bytes_written == 0


def test_nothing_is_counted_unasked() -> None:
    """Without a profile only executed instructions are known."""
    a = Author(32, x="u32")
    a.put("global", a.address("x", a.tid, 4), a.tid)
    found = a.run(x=np.zeros(32, np.uint32))(profile=False, footprint=True).profile.totals
    assert set(found) == {"instructions", "threads"}


def test_costs_are_asked_for_when_somebody_looks() -> None:
    """A warp's costs count per execution, a lane's per active lane, and only on demand."""
    asked = []
    a = Author(40)

    def costs() -> list[Cost]:
        asked.append(True)
        return [Cost({"pipe_alu": 1}, {"flops_f32": 2})] * 9

    profile = a.run()(costs=costs).profile
    assert not asked
    executed = profile.totals["instructions"]
    assert asked and profile.totals["pipe_alu"] == executed == 2 * len(profile.rows)
    assert profile.totals["flops_f32"] == 2 * 40 * len(profile.rows)


def test_profiles_add_up() -> None:
    """Two launches together, and lines by another place than their innermost frame."""
    a = Author(64, x="u32")
    a.put("global", a.address("x", a.tid, 4), a.tid)
    one = a.run(x=np.zeros(64, np.uint32))().profile
    both = one + one
    assert both.totals == {name: 2 * amount for name, amount in one.totals.items()}
    (line,) = [row for row in both.by(lambda loc: ("all", 1)) if row.file]
    assert line.file == "all" and line.requests == 4


def test_metrics_name_counters_that_exist() -> None:
    """Names are spelled as a profile spells them; no comparison stands there twice."""
    measures = ("requests", "sectors", "bytes", "wavefronts")
    plain = ("instructions", "threads", "divergent_branches", "ideal_wavefronts", *measures)
    for metric in METRICS:
        for name in metric.names:
            known = name in plain or name.endswith(measures)
            assert known or name.startswith(("pipe_", "tensor_flops_", "thread_"))
            assert not name.startswith("pipe_") or name.removeprefix("pipe_") in PIPES_OF_COSTS
        assert metric.exact or metric.why
    every = [metric.ncu for metric in METRICS]
    assert len(set(every)) == len(every)


def test_a_metric_that_does_not_always_bind() -> None:
    """What is equal but for some accesses is an estimate where there are any of those."""
    metric = Metric(("wavefronts",), ("one",), True, unless=("async_copy_wavefronts",))
    assert metric.binds({"wavefronts": 3}) and metric.binds({"async_copy_wavefronts": 0})
    assert not metric.binds({"wavefronts": 3, "async_copy_wavefronts": 1})
    assert not Metric(("wavefronts",), ("one",), False).binds({})


def test_a_metric_that_binds_in_total_only() -> None:
    """Where ncu books a part elsewhere, no line need be equal, also not one without that part."""
    metric = Metric(("wavefronts",), ("one",), True, beside=("wgmma_wavefronts",))
    alone, among = {"wavefronts": 3}, {"wavefronts": 35, "wgmma_wavefronts": 32}
    assert metric.binds(among) and metric.binds_by_line(alone, alone)
    assert not metric.binds_by_line(alone, among)


def test_branches_are_counted() -> None:
    """Warps that split at a branch are counted apart from those that agree."""
    a = Author(128)
    a.when(a.test("lt", a.tid, 40), lambda: a.shared("s", 16))
    totals = a.run()().profile.totals
    assert (totals["branches"], totals["divergent_branches"]) == (4, 1)


def test_the_page_has_every_metric() -> None:
    """docs/machine.md says of each comparison what `METRICS` says."""
    page = (ROOT / "docs" / "machine.md").read_text(encoding="utf-8")
    row_of_table = re.compile(r"\| `\w+`.*`\w+(\.sum)?` \| (yes|no)")
    table = [line for line in page.splitlines() if row_of_table.match(line)]
    assert len(table) == len(METRICS)
    for metric, row in zip(METRICS, table, strict=True):
        names, ncu, equal, why = (cell.strip() for cell in row.strip("|").split("|"))
        assert names == " + ".join(f"`{name}`" for name in metric.names)
        assert ncu == " + ".join(f"`{name}`" for name in metric.ncu)
        assert equal == ("yes" if metric.exact else "no") and why.startswith(metric.why)
        assert metric.page in why
