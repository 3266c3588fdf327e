"""The driver that measures all shapes on a GPU: what it makes of its scripts' results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import scripts

RESULTS = Path(__file__).parents[2] / "results" / "gpu"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, os, pathlib, sys, time
words = sys.argv[1:]
result = {"name": "square 64x64x64 bf16", "flops": 1, "bytes": 2, "failures": {"x": "no\\nmore"},
          "sides": {"sm90 a": {"owner": "kdsl", "median": 2e-6, "low": 1.9e-6, "high": 2.2e-6},
                    "cuBLASLt #3": {"owner": "cuBLASLt", "median": 3e-6, "low": 3e-6, "high": 4e-6},
                    "cuBLASLt #4": {"owner": "cuBLASLt", "quick": 1e-6}}}
pathlib.Path(os.environ["OUT"], "gemm.json").write_text(json.dumps({"results": [result]}))
print("seconds", words[words.index("--seconds") + 1])
"""


@pytest.fixture(scope="module")
def gpu() -> Iterator[SimpleNamespace]:
    """The modules of the folder."""
    with scripts("gpu", "suite", "run", "records") as found:
        yield found


def group_of(gpu: SimpleNamespace, name: str) -> Any:
    """A group by its name."""
    return next(group for group in gpu.suite.GROUPS if group.name == name)


def test_every_script_is_here(gpu: SimpleNamespace) -> None:
    """Groups have names of their own, and scripts that exist; every set of products is measured."""
    names = [group.name for group in gpu.suite.GROUPS]
    assert len(set(names)) == len(names) and all(group.exists for group in gpu.suite.GROUPS)
    words = {word for group in gpu.suite.GROUPS for word in group.words}
    with scripts("gpu", "shapes") as found:
        assert set(found.shapes.load_cases()) <= words


@pytest.mark.parametrize(
    ("side", "owner", "program"),
    (
        ("sm90 128x256x64 s4 coop2 g8", "kdsl", "kdsl"), ("kdsl 128x128x128 s3+2", "", "kdsl"),
        ("cuBLAS", "torch", "cuBLAS"), ("cuBLASLt fast #3", "cuBLASLt", "cuBLASLt"),
        ("torch._scaled_mm fast", "torch", "cuBLAS"), ("torch cuDNN", "", "cuDNN"),
        ("torch flash", "", "flash attention"), ("torch eager, one weight", "", "torch eager"),
        ("torch.compile default", "torch", "torch.compile"), ("compile", "", "torch.compile"),
        ("eager", "", "torch eager"), ("held", "", None), ("best", "", None),
        ("Triton 128x128x64 w8 s4", "Triton", "Triton"),
    ),
)  # fmt: skip
def test_programs(side: str, owner: str, program: str | None, gpu: SimpleNamespace) -> None:
    """Every side belongs to a program, but variants of ours that nobody gets unasked."""
    assert gpu.suite.program_of(side, owner) == program


def test_the_chosen_plan_counts(gpu: SimpleNamespace) -> None:
    """Of ours what users get, of peers the fastest; times in µs."""
    sides = {
        name: {"median": us * 1e-6, "low": us * 0.99e-6, "high": us * 1.01e-6}
        for name, us in (
            ("kdsl a", 10.0), ("kdsl b", 8.0), ("torch cuDNN", 9.0), ("torch eager", 7.0),
            ("torch eager, one weight", 6.0),
        )
    }  # fmt: skip
    found = gpu.suite.timed({"chosen": "kdsl a", "sides": sides})
    assert {name: side["us"] for name, side in found.items()} == {
        "kdsl": 10.0, "cuDNN": 9.0, "torch eager": 6.0,
    }  # fmt: skip
    assert found["kdsl"]["spread_us"] == pytest.approx(0.2)
    shape = {"sides": found}
    assert gpu.records.best_peer(shape) == ("torch eager", 6.0)
    assert gpu.records.ratio(shape) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("name", "file", "shapes"),
    (
        ("large", "gemm_sm90-h200.json", 63), ("gated", "gated_mlp-h200.json", 4),
        ("attention", "attention-h200.json", 13), ("rows", "rows-h200.json", 46),
    ),
)  # fmt: skip
def test_what_scripts_wrote(
    name: str, file: str, shapes: int, gpu: SimpleNamespace, tmp_path: Path
) -> None:
    """The results of an H200 become a record: every shape with ours and a peer."""
    assert gpu.run.take(name, str(RESULTS / file), COMMIT, tmp_path) == 0
    (record,) = gpu.records.records(tmp_path)
    assert record.commit == COMMIT and record.device == "NVIDIA H200"
    assert record.content["driver"].startswith("580") and len(record.shapes) == shapes
    assert all(gpu.records.ratio(shape) for shape in record.shapes)
    assert len({(shape["kernel"], shape["shape"]) for shape in record.shapes}) == shapes


def test_records_that_are_here(gpu: SimpleNamespace) -> None:
    """Those of the repository are read, and other results are left alone."""
    kept = list(gpu.records.records(RESULTS))
    assert kept and all(record.path.name.startswith(record.commit[:12]) for record in kept)
    assert len(kept) < len(list(RESULTS.glob("*.json")))


def test_a_group_is_run(
    gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script gets a time and a folder; later shapes replace earlier ones of the same name."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(gpu.run, "HERE", tmp_path)
    group = replace(group_of(gpu, "large"), script="script.py")
    (shape,), output = gpu.run.measure(group, 12.5)
    assert "seconds 12.5" in output and shape["kernel"] == "gemm square"
    assert shape["sides"]["kdsl"] == {"us": 2.0, "spread_us": 0.3, "variant": "sm90 a"}
    assert shape["sides"]["cuBLASLt"]["us"] == 3.0 and shape["failures"] == {"x": "no\nmore"}
    path = tmp_path / "out/record.json"
    for us in (5.0, 4.0):
        sides = {"kdsl": {"us": us}}
        gpu.run.add(path, {"commit": COMMIT}, [shape, {**shape, "shape": "other", "sides": sides}])
    shapes = json.loads(path.read_text())["shapes"]
    assert [s["sides"]["kdsl"]["us"] for s in shapes] == [2.0, 4.0]


def test_a_script_that_hangs_or_fails(
    gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with its time, and what it said is told."""
    (tmp_path / "script.py").write_text("import signal; print('begun', flush=True); signal.pause()")
    monkeypatch.setattr(gpu.run, "HERE", tmp_path)
    monkeypatch.setattr(gpu.run, "GRACE_SECONDS", 1.0)
    group = replace(group_of(gpu, "large"), script="script.py")
    assert gpu.run.measure(group, 0.5) == ([], "begun\n")
    (tmp_path / "script.py").write_text("raise SystemExit('no GPU')")
    assert gpu.run.measure(group, 5.0) == ([], "no GPU\n")


def test_what_a_script_leaves_is_ended(
    gpu: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that outlives its script would disturb the next group."""
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "words = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(words).pid, flush=True)\n"
    )
    monkeypatch.setattr(gpu.run, "HERE", tmp_path)
    group = replace(group_of(gpu, "large"), script="script.py")
    _, output = gpu.run.measure(group, 30.0)
    state = Path(f"/proc/{int(output)}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":  # the kill is on its way
        pass


def test_time_is_shared_by_weight(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a group leaves goes to the later ones; none is left when the time is over."""
    clock = iter((0.0, 10.0, 100.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    groups = [replace(group_of(gpu, "large"), weight=w) for w in (1.0, 1.0, 2.0)]
    seconds = [s for _, s in gpu.run.shares(groups, 100.0)]
    assert seconds == [25.0, 30.0, 0.0]


def test_a_machine_without_a_gpu(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what failed."""
    failing = [sys.executable, "-c", "raise SystemExit('no devices')"]
    run = gpu.run.subprocess.run
    monkeypatch.setattr(gpu.run.subprocess, "run", lambda words, **more: run(failing, **more))
    with pytest.raises(SystemExit, match="no devices"):
        gpu.run.machine()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="nvidia-smi"):
        gpu.run.machine()
