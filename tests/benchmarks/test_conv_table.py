"""From measurements of convolutions to their dispatch table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import kdsl_core as kd
from kdsl_fuse.kernels import conv_sm90_table as table
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_tables import TABLES, key_of
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE
from kdsl_runtime import dispatch
from scripts import scripts

PROBLEM = ConvProblem(256, 28, 28, 128, 128, (3, 3), padding=(1, 1))
FAST, SLOW = "128x192x64 s4 ping2 r232 g8 swap panel 64", "128x128x64 s6 ping2 g8 panel 64"


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The script."""
    with scripts("", "make_conv_table") as found:
        yield found


def result(fused: bool, sides: dict[str, float]) -> dict[str, object]:
    """One case as benchmarks/gpu/conv.py leaves it."""
    timed = {name: {"median": seconds} for name, seconds in sides.items()}
    return {"problem": asdict(PROBLEM), "fused": fused, "sides": timed}


def test_fastest_plans(
    tools: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest of kdsl's plans in all files, apart for tails; neither PyTorch's nor stems."""
    sides = {"torch cuDNN": 1e-6, "kdsl stem 384x64 s4 coop3": 2e-6, f"kdsl {SLOW}": 9.3e-5}
    first = {"results": [result(False, sides), result(True, {f"kdsl {SLOW}": 1.5e-4})]}
    second = {"results": [result(False, {f"kdsl {FAST}": 9.2e-5})]}
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, data in zip(files, (first, second), strict=True):
        path.write_text(json.dumps(data))
    out = tmp_path / "table.json"
    monkeypatch.setattr(sys, "argv", ["make", *map(str, files), "--out", str(out)])
    tools.make_conv_table.main()
    stored = dispatch.read_table(out, table.Entry.read)
    found = {key["tail"]: table.Entry.read(stored[key]) for key in stored}
    assert found["none"].config.tile == (128, 192, 64) and found["none"].swap
    assert (found["none"].us, found["matrix"].us) == (92.0, 150.0)
    assert found["matrix"].key == key_of(PROBLEM, kd.f16, kd.f16, True)


@pytest.mark.parametrize(
    ("kernel", "data"),
    (
        ("conv_grouped", "conv-grouped-h200.json"),
        ("conv_depthwise", "e5960301e470-nvidia-h200.json"),
    ),
)
def test_grouped_plans(
    tools: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, data: str
) -> None:
    """The package's tables of convolutions in groups are what their measurements give."""
    measured = Path(__file__).parents[2] / "results/gpu" / data
    out = tmp_path / "table.json"
    words = ["make", "--kernel", kernel, str(measured), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    tools.make_conv_table.main()
    packaged = dispatch.read_table(TABLES / dispatch.file_name(kernel, DEVICE))
    assert packaged and dispatch.read_table(out) == packaged
