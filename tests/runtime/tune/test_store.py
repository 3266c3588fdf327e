"""The journal: on disk at once, whole after a kill, and true to what was measured."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from kdsl_core.errors import CacheError
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Journal, Record, Trial


def record(us: float = 1.0, **fields) -> Record:
    """A record of a right candidate."""
    known = {
        "kernel": "scaled",
        "problem": Problem.of(n=64, dtype="f32"),
        "config": {"tile": (64, 8), "swap": True},
        "device": "NVIDIA H200",
        "toolchain": "abc",
        "backend": "cuda",
        "code": "123",
        "rung": 0,
        "bound": 1e-3,
        "trial": Trial.timed([us], 1e-4),
    }
    return Record(**{**known, **fields})


def test_records_are_read_back(tmp_path):
    """What was added is there in the next run, tuples and all."""
    path = tmp_path / "new" / "journal.jsonl"
    right, broken = record(), record(config={"tile": (8, 8)}, trial=Trial("broken", reason="died"))
    with Journal(path) as journal:
        journal.add(right)
        journal.add(broken)
    with Journal(path) as journal:
        assert list(journal) == [right, broken]
        assert journal.get(right.key) == right and len(journal) == 2


def test_each_record_is_synced(tmp_path, monkeypatch):
    """One fsync a record, after its line was written."""
    path, seen = tmp_path / "journal.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(path.read_bytes().count(b"\n")))
    with Journal(path) as journal:
        for us in (1.0, 2.0):
            journal.add(record(us))
    assert seen == [1, 2]


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_torn_last_line_is_dropped(tmp_path, kept):
    """A run killed while writing costs its last record; the file goes on behind the others."""
    path = tmp_path / "journal.jsonl"
    first, second, third = (record(config={"tile": n}) for n in range(3))
    path.write_text(f"{first.line()}\n" + second.line()[:kept])
    with Journal(path) as journal:
        assert list(journal) == [first]
        journal.add(third)
    with Journal(path) as journal:
        assert list(journal) == [first, third]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"kernel": 1}'])
def test_other_bad_lines_are_named(tmp_path, line):
    """A file that is no journal is not written to."""
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{record().line()}\n{line}\n")
    with pytest.raises(CacheError, match=r"journal\.jsonl:2") as caught:
        Journal(path)
    assert caught.value.code == "K765"


def test_one_process_at_a_time(tmp_path):
    """Two runs would drop each other's lines."""
    path = tmp_path / "journal.jsonl"
    with Journal(path), pytest.raises(CacheError) as caught:
        Journal(path)
    assert caught.value.code == "K766"
    Journal(path).close()


def test_prediction_replaces_no_measurement():
    """Of the same code; of other code the old record says nothing."""
    journal = Journal()
    measured, predicted = record(5.0), record(1.0, backend="predicted")
    for one in (predicted, measured, predicted):
        journal.add(one)
    assert journal.get(measured.key) == measured
    changed = replace(predicted, code="456")
    journal.add(changed)
    assert journal.get(measured.key) == changed


def test_order_of_records():
    """Measured before predicted, careful before quick, then the faster one."""
    predicted, quick, careful, slow = (
        record(1.0, backend="predicted"), record(2.0), record(3.0, rung=2), record(4.0, rung=2)
    )  # fmt: skip
    found = sorted([predicted, slow, quick, careful], key=lambda r: r.order)
    assert found == [careful, slow, quick, predicted]


def test_entry_of_a_record():
    """What goes to a dispatch table."""
    entry = record(1.23456, backend="predicted").entry()
    assert (entry.us, entry.backend, entry.config["tile"]) == (1.235, "predicted", (64, 8))
