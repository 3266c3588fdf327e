"""From measurements of the Hopper GEMM to its dispatch table, and the judgement of its model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kdsl_fuse.kernels import gemm_sm90_table as table
from scripts import scripts

FAST, SLOW = "128x128x64 s6 ping2 g8", "64x64x64 s12 coop1 p2 k2 g8 swap"


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The scripts."""
    with scripts("", "sm90_tuning", "make_table", "fit_sm90_model") as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> list[Path]:
    """A journal of two products, and a benchmark's file: one of them again, and one with a tail."""
    journal, benchmark = tmp_path / "tune.jsonl", tmp_path / "gemm.json"
    lines = [
        {"shape": [512, 512, 4096], "cublas": 9.0, "us": {SLOW: 8.0, FAST: 9.0}, "fails": {}},
        {"shape": [2048, 2048, 2048], "cublas": 26.0, "us": {SLOW: 70.0, FAST: 25.0}, "fails": {}},
    ]
    journal.write_text("\n".join(map(json.dumps, lines)))
    sides = {
        f"sm90 {SLOW}": {"owner": "kdsl", "median": 9e-6},
        f"sm90 {FAST}": {"owner": "kdsl", "median": 7e-6},
        "cuBLAS": {"owner": "torch", "median": 5e-6},
    }
    case = {"m": 512, "n": 512, "k": 4096, "dtype": "f16", "epilogue": "none", "sides": sides}
    fused = {**case, "m": 77, "epilogue": "gelu"}
    benchmark.write_text(json.dumps({"results": [case, fused]}))
    return [journal, benchmark]


def test_table_of_measurements(
    tools: SimpleNamespace, data: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest plan of each product; the last file counts; a file of all gives the same."""
    out, whole, again = (tmp_path / name for name in ("table.json", "all.json", "again.json"))
    words = ["make_table.py", *map(str, data), "--out", str(out), "--tuning", str(whole)]
    monkeypatch.setattr(sys, "argv", words)
    tools.make_table.main()
    found = {(e.key.m, e.key.tail, e.us) for e in table.read_table(out).values()}
    assert found == {(512, "", 7.0), (2048, "", 25.0), (77, "pointwise", 7.0)}
    assert {e.config.schedule for e in table.read_table(out).values()} == {"pingpong"}
    monkeypatch.setattr(sys, "argv", ["make_table.py", str(whole), "--out", str(again)])
    tools.make_table.main()
    assert table.read_table(again) == table.read_table(out)


def test_regret_of_the_model(tools: SimpleNamespace, data: list[Path]) -> None:
    """The model's first plan against the fastest; fitting never makes the loss larger."""
    fit = tools.fit_sm90_model
    products = [fit.product_of(measured) for measured in tools.sm90_tuning.read(data[:1])]
    assert all(fit.regret(product) >= 1 for product in products)
    assert "2048 × 2048 × 2048" in fit.table(products, fit.H200)
    fitted = fit.fit(products, fit.H200, seconds=0.05)
    assert fit.loss(products, fitted) <= fit.loss(products, fit.H200)
