"""Counters: sectors, requests, bank conflicts and branches, as the hardware counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.sim.author import Author
from kdsl_core.dtypes import u32
from kdsl_core.isa import memory
from kdsl_core.isa.barrier import barrier_sync
from kdsl_core.isa.special import special
from kdsl_core.sim.counters import count_sectors, count_wavefronts

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


def test_nothing_is_counted_unasked() -> None:
    """Without a profile the numbers are the same and the profile is empty."""
    a = Author(64, x="u32")
    memory.store(a.b, "global", a.address("x", a.tid, 4), (a.tid,))
    out = np.zeros(64, np.uint32)
    profile = a.run(1, x=out)(profile=False).profile
    assert not profile.lines and not profile.totals
    np.testing.assert_array_equal(out, np.arange(64))


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


def test_branches_are_counted() -> None:
    """Warps that split at a branch are counted apart from those that agree."""
    a = Author(128)
    a.when(a.test("lt", a.tid, 40), lambda: a.shared("s", 16))
    totals = a.run()().profile.totals
    assert (totals["branches"], totals["divergent_branches"]) == (4, 1)
