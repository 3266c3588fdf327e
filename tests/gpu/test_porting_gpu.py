"""Ported kernels on a GPU: the bits of the simulator, which are those of CuTe C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from execution import Executor
from kdsl_runtime.cli import main
from porting import NAMES, RECORDED, SHORT, Case, modelled, recorded, tiled_copy
from scripts import EXAMPLES


def multiplied(execute: Executor, case: Case) -> np.ndarray:
    """C of a case."""
    arrays = case.arrays
    launch = case.launch(*arrays)
    return execute(case.kernel, launch["grid"], launch["block"], *arrays, **launch["kwargs"])[2]


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_bits_are_those_of_cute_cpp(execute: Executor, case: Case) -> None:
    """Every bit of C is the recorded one."""
    got, want = multiplied(execute, case), recorded(case)
    assert np.array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_k_shorter_than_the_pipeline(execute: Executor, case: Case) -> None:
    """Fewer tiles along K than stages give the sums that the model says."""
    got, want = multiplied(execute, case), modelled(*case.arrays[:2])
    assert np.array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


@pytest.mark.parametrize(
    "shape",
    [(256, 128), (256, 100), (131, 67), (100, 70, 4, 2)],
    ids=lambda s: "x".join(map(str, s)),
)
def test_tiled_copy_copies_all_and_nothing_else(execute: Executor, shape: tuple[int, ...]) -> None:
    """Whole tiles and tiles that hang over, neighbours and elements with gaps between them."""
    source, target = tiled_copy.matrices(*shape)
    launch = tiled_copy.launch_tiled_copy(source, target)
    got = execute(tiled_copy.tiled_copy, launch["grid"], launch["block"], source, target)
    np.testing.assert_array_equal(got[1], source)


@pytest.mark.gpu
@pytest.mark.parametrize("port", NAMES)
def test_kdsl_compare_runs_on_the_gpu(port: str, tmp_path: Path) -> None:
    """`--on gpu`: five launches with the recorded bits."""
    case = Case(port, "NT", 256, 256, 192)
    a, b, _ = case.arrays
    np.savez(tmp_path / "run.npz", **{"A": a, "B": b, "C.out": recorded(case)})
    files = [str(tmp_path / "run.npz"), str(EXAMPLES / "porting" / f"{port}.py")]
    said = CliRunner().invoke(main, ["compare", *files, "--on", "gpu", "--runs", "5"])
    assert said.exit_code == 0 and "launch 1: all 65,536 elements are equal" in said.output
