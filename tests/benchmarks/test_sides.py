"""Programs of a case beside each other: what is left out, what is kept, with times made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import scripts

torch = pytest.importorskip("torch")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """`sides` with a clock of its own: a side's time is what its result says."""
    with scripts("gpu", "sides", "timing") as found:
        timing = found.timing
        monkeypatch.setattr(timing, "prepared", lambda launch, sets: float(launch(0)[0]))
        monkeypatch.setattr(timing, "quick", timing.prepared)
        monkeypatch.setattr(timing, "device_record", lambda: {"device": "none"})
        monkeypatch.setattr(
            timing, "interleaved", lambda sides, seconds: {n: Timed(s) for n, s in sides.items()}
        )
        yield found


class Timed(SimpleNamespace):
    """Times of a side."""

    def __init__(self, median: float) -> None:
        super().__init__(median=median, low=median, high=median)

    def record(self) -> dict[str, float]:
        """For the JSON."""
        return vars(self)


def sides_of(gpu: SimpleNamespace, exact: float) -> Any:
    """Sides whose exact result is a number."""
    return gpu.sides.Sides([None], torch.tensor([exact]).double(), lambda y: y, lambda s: ())


def test_sides_that_fail_are_named(gpu: SimpleNamespace) -> None:
    """One that is wrong, one that raises, one whose graph cannot be made; the others are timed."""
    calls = iter((torch.ones(1),))

    def once(_: Any) -> Any:
        found = next(calls, None)
        if found is None:
            raise RuntimeError("not permitted\nwhile capturing")
        return found

    def refused(_: Any) -> Any:
        raise RuntimeError("no such plan")

    sides = sides_of(gpu, 1.0)
    sides.add("kdsl a", lambda _: torch.tensor([1.0]))
    sides.add("torch wrong", lambda _: torch.tensor([2.0]))
    sides.add("torch refused", refused)
    sides.add("Triton once", once)
    assert sides.quickest("kdsl", 1) == ["kdsl a"]
    result = sides.timed(sides.launches, 0.1)
    assert set(result["sides"]) == {"kdsl a"}
    assert result["failures"] == {
        "torch wrong": "error 1.0e+00", "torch refused": "RuntimeError: no such plan",
        "Triton once": "RuntimeError: not permitted",
    }  # fmt: skip


def test_the_quickest_counts(gpu: SimpleNamespace) -> None:
    """Of some configurations one is kept, and the ratio is to the best of all other programs."""
    sides = sides_of(gpu, 1.0)
    for name, us in (("Triton a", 1.005), ("Triton b", 1.002), ("torch", 1.004), ("kdsl", 1.001)):
        sides.add(name, lambda _, us=us: torch.tensor([us]))
    assert sides.quickest("Triton", 1) == ["Triton b"]
    result = sides.timed(["kdsl", "torch", "Triton b"], 0.1)
    assert gpu.sides.ratio(result) == pytest.approx(1.002 / 1.001)


def test_a_case_that_fails_costs_only_itself(
    gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its error is a result, the file is whole after each case, and the table has both."""
    monkeypatch.setenv("OUT", str(tmp_path))
    path, seen = tmp_path / "some.json", []

    def measure(case: Any) -> dict[str, Any]:
        seen.append(len(json.loads(path.read_text())["results"]) if path.exists() else 0)
        if case.name == "bad":
            raise RuntimeError("out of memory")
        facts = {"name": case.name, "flops": 1, "bytes": 1, "chosen": "kdsl a"}
        return {**facts, "sides": {"kdsl a": {"median": 1.0}}, "failures": {}}

    cases = [SimpleNamespace(name=name) for name in ("bad", "good")]
    gpu.sides.run(cases, measure, 60.0, "some")
    results = json.loads(path.read_text())["results"]
    assert seen == [0, 1] and [r["name"] for r in results] == ["bad", "good"]
    assert results[0]["error"] == "RuntimeError: out of memory"
    assert "failed: RuntimeError: out of memory" in capsys.readouterr().out
    with scripts("gpu", "suite") as found:
        shape = found.suite.of_sides("attention")(results[0])
    assert shape["sides"] == {} and shape["failures"] == {"kdsl": "RuntimeError: out of memory"}
