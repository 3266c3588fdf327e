"""Dispatch tables: which entry a problem gets, whose entries win, and files that survive."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdsl_core.errors import CacheError
from kdsl_runtime import dispatch
from kdsl_runtime.dispatch import Dispatch, Entry
from kdsl_runtime.problem import Problem

DEVICE = "NVIDIA H200"


def entry(m: int, tile: int, us: float = 1.0, backend: str = "cuda", dtype: str = "bf16") -> Entry:
    """An entry for m × 64."""
    return Entry(Problem.of(m=m, n=64, dtype=dtype), {"tile": (tile, 8)}, us, backend)


@pytest.fixture
def tables(tmp_path, monkeypatch) -> tuple[Dispatch, Path, Path]:
    """A dispatch with a package's directory and the user's."""
    packaged, own = tmp_path / "package", tmp_path / "user"
    monkeypatch.setenv("KDSL_TABLES", str(own))
    return Dispatch("gemm", packaged), packaged, own


def fill(folder: Path, *entries: Entry) -> Path:
    """Write a table."""
    path = folder / dispatch.file_name("gemm", DEVICE)
    dispatch.write_table(path, entries, device=DEVICE)
    return path


def choose(tables: Dispatch, m: int, dtype: str = "bf16", usable=None):
    """The choice for m × 64; the model's tile is 0."""
    problem = Problem.of(m=m, n=64, dtype=dtype)
    return tables.choose(DEVICE, problem, lambda: {"tile": (0, 0)}, usable)


def test_exact_then_nearest_then_model(tables):
    """The entry itself, else the nearest within a factor of two and of the same traits."""
    dispatching, packaged, _ = tables
    fill(packaged, entry(1024, 1), entry(4096, 2))
    found = [choose(dispatching, m) for m in (1024, 1300, 2047, 3000, 8192, 8193)]
    assert [(c.how, c.config["tile"][0]) for c in found] == [
        ("exact", 1), ("nearest", 1), ("nearest", 1 if 2047 < 2048 else 2), ("nearest", 2),
        ("nearest", 2), ("model", 0),
    ]  # fmt: skip
    assert choose(dispatching, 1024, "f16").how == "model"
    assert found[4].distance == 1.0


@given(
    listed=st.lists(st.integers(1, 1 << 14), unique=True, max_size=8), asked=st.integers(1, 1 << 14)
)
def test_nothing_nearer_is_passed_over(tmp_path_factory, listed, asked):
    """Of all entries within the distance the nearest one is found, and else none."""
    folder = tmp_path_factory.mktemp("tables")
    fill(folder, *(entry(m, m) for m in listed))
    problem = Problem.of(m=asked, n=64, dtype="bf16")
    found = Dispatch("gemm", folder).find(DEVICE, problem)
    apart = [problem.distance(entry(m, m).problem) for m in listed]
    if min(apart, default=9) > 1:
        assert found is None
    else:
        assert found.distance == min(apart)
        assert found.config["tile"][0] == found.entry.problem["m"]


def test_without_neighbours_only_exact_ones_count(tables):
    """`within=0` leaves everything else to the model."""
    _, packaged, _ = tables
    fill(packaged, entry(1024, 1))
    strict = Dispatch("gemm", packaged, within=0.0)
    assert [choose(strict, m).how for m in (1024, 1025)] == ["exact", "model"]
    assert strict.find("another device", Problem.of(m=1024, n=64, dtype="bf16")) is None


def test_users_entries_win(tables):
    """The user's file is above the package's; several directories win in their order."""
    dispatching, packaged, own = tables
    fill(packaged, entry(1024, 1), entry(4096, 2))
    fill(own, entry(1024, 7))
    assert [choose(dispatching, m).config["tile"] for m in (1024, 4096)] == [(7, 8), (2, 8)]
    above = own.parent / "above"
    fill(above, entry(1024, 9))
    os.environ["KDSL_TABLES"] = os.pathsep.join(map(str, (above, own)))
    assert choose(dispatching, 1024).config["tile"] == (9, 8)


def test_prediction_hides_no_measurement(tables):
    """A user's predicted entry counts where nothing was measured."""
    dispatching, packaged, own = tables
    fill(packaged, entry(1024, 1), entry(16, 3, backend="predicted"))
    fill(own, entry(1024, 7, backend="predicted"), entry(65536, 8, backend="predicted"),
         entry(16, 4))  # fmt: skip
    tiles = [choose(dispatching, m).config["tile"][0] for m in (1024, 65536, 16)]
    assert tiles == [1, 8, 4]


def test_entries_that_cannot_serve_are_passed_over(tables):
    """The next nearest is taken, at last the model's choice."""
    dispatching, packaged, _ = tables
    fill(packaged, entry(1024, 1), entry(1500, 2))

    def small(config):
        return None if config["tile"][0] == 2 else "too large"

    assert choose(dispatching, 1024, usable=small).config["tile"] == (2, 8)
    assert choose(dispatching, 1024, usable=lambda config: "never").how == "model"


def test_explanation_names_choice_and_files(tables):
    """How, the time, where from; and the files that are not there."""
    dispatching, packaged, own = tables
    path = fill(packaged, entry(1024, 1, 12.5))
    text = dispatching.explain(DEVICE, Problem.of(m=1100, n=64, dtype="bf16"), dict)
    assert "nearest, 12.5 µs measured" in text and f"{path}: 1 entries" in text
    assert f"{own / path.name}: not there" in text
    alone = dispatching.explain(DEVICE, Problem.of(m=9, n=64, dtype="bf16"), dict)
    assert "model, no table of NVIDIA H200 has an entry for m=9" in alone


def test_put_keeps_measurements(tmp_path):
    """A new entry is added, a better one replaces, a prediction does not."""
    path = tmp_path / "new" / dispatch.file_name("a/b c", DEVICE)
    assert path.name == "a_b_c-NVIDIA_H200.json"
    assert dispatch.put(path, DEVICE, entry(1, 1, backend="predicted"))
    assert dispatch.put(path, DEVICE, entry(1, 2))
    assert not dispatch.put(path, DEVICE, entry(1, 3, backend="predicted"))
    assert dispatch.put(path, DEVICE, entry(2, 4))
    found = dispatch.read_table(path)
    assert [e.config["tile"][0] for e in found.values()] == [2, 4]
    assert json.loads(path.read_text())["device"] == DEVICE
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_writers_take_turns(tmp_path):
    """Entries that many threads put at once are all there."""
    path = tmp_path / "table.json"
    threads = [
        threading.Thread(target=dispatch.put, args=(path, DEVICE, entry(m, m)))
        for m in range(1, 13)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {e.problem.size("m") for e in dispatch.read_table(path).values()} == set(range(1, 13))


@pytest.mark.parametrize(
    "text",
    [
        "entries",
        "{}",
        '{"entries": [{"m": 1, "us": 1.0}]}',
        '{"entries": [{"m": 0, "us": 1.0, "config": {}}]}',
        '{"entries": [{"m": 1, "us": "fast", "config": {}}]}',
        '{"entries": [{"m": 1, "us": 1.0, "config": 3}]}',
        '{"entries": [4]}',
    ],
)
def test_bad_tables_are_refused(tmp_path, text):
    """The file is named; a missing one is empty."""
    path = tmp_path / "table.json"
    assert dispatch.read_table(path) == {}
    path.write_text(text)
    with pytest.raises(CacheError, match=r"table\.json") as caught:
        dispatch.read_table(path)
    assert caught.value.code == "K761"


def test_checked_entries(tmp_path):
    """What a kernel refuses is refused as the table is read."""

    def no_large_tiles(found: Entry) -> None:
        if found.config["tile"][0] > 8:
            raise ValueError("does not fit")

    path = tmp_path / "table.json"
    dispatch.write_table(path, [entry(1, 8)])
    assert len(dispatch.read_table(path, no_large_tiles)) == 1
    dispatch.write_table(path, [entry(1, 8), entry(2, 16)])
    with pytest.raises(CacheError, match=r"entry 1 .*does not fit"):
        dispatch.read_table(path, no_large_tiles)


def test_refused_entries_are_not_taken(tmp_path, monkeypatch):
    """One that its kernel refuses is named when it is to be taken; it is not in others' way."""

    def no_large_tiles(found: Entry) -> None:
        if found.config["tile"][0] > 8:
            raise ValueError("does not fit")

    monkeypatch.setenv("KDSL_TABLES", str(tmp_path))
    found = Dispatch("gemm", within=1.0, check=no_large_tiles)
    path = tmp_path / dispatch.file_name("gemm", DEVICE)
    dispatch.write_table(path, [entry(8, 8), entry(512, 16)])
    assert found.find(DEVICE, entry(8, 8).problem).config["tile"] == (8, 8)
    for m in (512, 500):
        with pytest.raises(CacheError, match=r"the one for m=512.*does not fit") as caught:
            found.find(DEVICE, entry(m, 8).problem)
        assert caught.value.code == "K761" and str(path) in caught.value.message


def test_where_the_users_tables_are():
    """$KDSL_TABLES, else the data directory; empty means none."""
    where = dispatch.user_directories
    assert where({"KDSL_TABLES": "/a:/b", "HOME": "/h"}) == ["/a", "/b"]
    assert where({"KDSL_TABLES": "", "HOME": "/h"}) == []
    assert where({"XDG_DATA_HOME": "/x", "HOME": "/h"}) == ["/x/kdsl/tables"]
    assert where({"HOME": "/h"}) == ["/h/.local/share/kdsl/tables"]
    assert where({}) == []
