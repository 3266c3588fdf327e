"""What every test can ask for: goldens that one flag rewrites, and GPU tests only where one is."""

from __future__ import annotations

import ctypes
import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from execution import Executor
from gpu.agreement.comparison import Array, compared, note
from kdsl_core.dtypes import dtype_of

pytest_plugins = ("traps", "agreement_table")

GOLDEN = Path(__file__).parent / "golden"
_written = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that rewrites the goldens."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/ from what the code gives now; runs only tests that use `golden`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start with no golden written, and without what the user of this machine has tuned."""
    config.stash[_written] = []
    os.environ["KDSL_TABLES"] = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out GPU tests where there is no GPU, and all but golden tests while updating."""
    updating = config.getoption("--update-golden")
    gpu_here = has_gpu()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        runs = gpu_here or item.get_closest_marker("gpu") is None
        if updating:
            runs = runs and "golden" in getattr(item, "fixturenames", ())
        (kept if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def has_gpu() -> bool:
    """Whether the CUDA driver loads and counts a device."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return False
    return count.value > 0


@pytest.fixture(params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def execute(request: pytest.FixtureRequest) -> Executor:
    """Runs kernels in the simulator; once more, where there is a GPU, on both."""
    family = request.path.stem.removeprefix("test_").removesuffix("_gpu")

    def noted(simulated: Array, measured: Array) -> None:
        dtype, name = dtype_of(simulated.dtype), request.node.name
        note(request, [compared(family, name, simulated, measured, dtype)])

    return Executor(gpu=request.param == "gpu", note=noted)


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """`golden("ptx/gemm_sm80.ptx", text)` compares with that file of tests/golden, or writes it."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == text:
            return
        if pytestconfig.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            pytestconfig.stash[_written].append(name)
            return
        was, now = (before or "").splitlines(), text.splitlines()
        difference = difflib.unified_diff(was, now, f"golden/{name}", "now", lineterm="", n=2)
        shown = "\n".join(list(difference)[:60])
        pytest.fail(f"{shown}\nif this is meant: python3 dev.py golden", pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the goldens that were written."""
    for name in terminalreporter.config.stash[_written]:
        terminalreporter.write_line(f"wrote tests/golden/{name}")
