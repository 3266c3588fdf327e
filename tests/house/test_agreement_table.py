"""What is compared between simulator and GPU is counted rightly, with a machine that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import execution
from execution import Executor
from gpu.agreement import programs
from gpu.agreement.cases import CASES
from gpu.agreement.comparison import Array, Outcome, compared, summed
from gpu.agreement.programs import Dim3, simulator
from kdsl_core.dtypes import bf16, u32
from kdsl_core.ir import Kernel
from kdsl_runtime import device_array, driver, launch

TESTS = Path(__file__).parents[1]
SUITE = """
from gpu.agreement.comparison import Outcome, note

def test_right(request):
    note(request, [Outcome("mma", 2, 100), Outcome("lanes", 1, 7)])

def test_wrong(request):
    note(request, [Outcome("mma", 1, 10, 3, 2, ("three",))])
    assert False
"""


def test_file_has_the_sums_of_what_workers_note(tmp_path: Path) -> None:
    """A row for each family, also from tests that failed, is in the file and on the screen."""
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n1", "-p", "agreement_table"]
    command += ["-p", "no:cacheprovider", "--agreement-json", "table.json"]
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    rows = [Outcome.of_record(row) for row in json.loads((tmp_path / "table.json").read_text())]
    assert rows == [Outcome("lanes", 1, 7), Outcome("mma", 3, 110, 3, 2, ("three",))]
    assert "mma                       3         110       3" in done.stdout, done.stdout


class FakeDevice:
    """A GPU that runs kernels in the simulator: memory is the host's, its address the array's."""

    target = "sm_90a"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrays: dict[int, Array] = {}
        self.launches: list[tuple[Any, ...]] = []
        monkeypatch.setattr(driver, "device", lambda index: self)
        monkeypatch.setattr(device_array, "to_device", self.hold)
        monkeypatch.setattr(launch, "load", lambda kernel: SimpleNamespace(launch=self.run(kernel)))
        monkeypatch.setattr(programs, "emit", lambda kernel, target: kernel)

    def hold(self, array: Array) -> Any:
        """A copy "on the GPU"."""
        copy = array.copy()
        self.arrays[id(copy)] = copy
        return SimpleNamespace(pointer=id(copy), read=copy.copy)

    def run(self, kernel: Kernel) -> Any:
        """What launches a kernel."""

        def start(grid: Dim3, block: Dim3, pointers: list[int], cluster: Dim3 | None) -> None:
            names = [param.name for param in kernel.params]
            given = {n: self.arrays[p] for n, p in zip(names, pointers, strict=True)}
            self.launches.append((grid, block, cluster))
            simulator(kernel, grid, given)

        return start


def test_way_to_the_gpu_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner hands arrays over by name, launches with grid, block and cluster, reads back."""
    device, case = FakeDevice(monkeypatch), CASES["specials"]
    expected, got = (case.outputs("specials", runner) for runner in (simulator, programs.gpu))
    assert device.launches == [((4, 3, 2), (8, 4, 2), (2, 1, 1))] and got.any()
    np.testing.assert_array_equal(got, expected)


def flips_a_bit(kernel: Kernel, grid: Dim3, arrays: dict[str, Array]) -> None:
    """A machine whose thread 9 gets one bit wrong."""
    simulator(kernel, grid, arrays)
    arrays["y"][9, 4] ^= 2


def test_one_wrong_bit_is_found() -> None:
    """Of all lanes of a case exactly the one that is wrong is counted, and it is named."""
    right, wrong = (CASES["shuffles"].outputs("s", runner) for runner in (simulator, flips_a_bit))
    words = [array.view(np.uint32) for array in (right, wrong)]
    outcome = compared("shuffle", "s", *words, u32)
    assert (outcome.lanes, outcome.differ, outcome.payloads) == (256 * 64, 1, 0)
    assert outcome.shown[0].startswith(f"s: 1 of 16384, at {9 * 64 + 1} expected ")


def test_payloads_of_nan_are_counted_apart() -> None:
    """Zero of another sign differs; NaN of another payload is no difference; NaN for 1 is one."""
    kind = ml_dtypes.bfloat16
    expected = np.array([0x7FFF, 0x7FC0, 0x0000, 0x3F80], np.uint16).view(kind)
    got = np.array([0x7FC0, 0xFFC1, 0x8000, 0x7FC0], np.uint16).view(kind)
    outcome = compared("x", "y", expected, got, bf16)
    assert (outcome.differ, outcome.payloads) == (2, 2)
    assert outcome.shown == ("y: 2 of 4, at 2 expected 0x0, got 0x8000",)
    assert outcome.payloads_shown == ("y: 2 of 4, at 0 expected 0x7fff, got 0x7fc0",)
    assert Outcome.of_record(json.loads(json.dumps(outcome.record()))) == outcome


def test_what_tests_of_the_language_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor notes both results before it finds that they differ."""
    monkeypatch.setattr(execution, "_on_gpu", lambda action, arrays: [arrays[0] + 1])
    noted: list[Any] = []
    execute = Executor(gpu=True, note=lambda *seen: noted.append(seen))
    with pytest.raises(AssertionError, match="3 of 3 elements differ"):
        execute.run(lambda array: None, np.zeros(3, np.int32))
    ((simulated, measured),) = noted
    assert (measured - simulated).tolist() == [1, 1, 1]


def test_sums_keep_what_differs() -> None:
    """Outcomes of one family add up, and the first examples stay."""
    shown = ("first",), ("a NaN",)
    parts = [Outcome("b", 1, 5, 1, 0, *shown), Outcome("a", 1, 1), Outcome("b", 1, 5)]
    assert summed(parts) == [Outcome("a", 1, 1), Outcome("b", 2, 10, 1, 0, *shown)]
