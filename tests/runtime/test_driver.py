"""The driver: absent, failing, and what its answers become."""

from __future__ import annotations

import enum
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kdsl_core.errors import DriverError
from kdsl_runtime import driver


@pytest.fixture
def no_driver(monkeypatch):
    """A machine whose loader finds no CUDA driver."""
    monkeypatch.setattr(driver, "_LIBRARY", "libkdsl-no-such-driver.so.1")
    driver.require_driver.cache_clear()
    yield
    driver.require_driver.cache_clear()


def test_missing_driver(no_driver):
    """The message says what is missing and that the simulator remains."""
    with pytest.raises(DriverError, match="no CUDA driver") as caught:
        driver.device_count()
    assert caught.value.code == "K801"
    assert "simulator" in caught.value.fix
    assert not driver.is_available()


def test_nothing_cuda_is_imported_without_a_driver():
    """After a refused request no CUDA package is loaded, in a fresh process."""
    program = """
import sys
from kdsl_runtime import driver
driver._LIBRARY = "libkdsl-no-such-driver.so.1"
assert not driver.is_available()
assert not [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_missing_bindings(monkeypatch):
    """A driver without cuda-python names the extra to install."""
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    driver.require_driver.cache_clear()
    with pytest.raises(DriverError) as caught:
        driver.require_driver()
    driver.require_driver.cache_clear()
    assert caught.value.code == "K802"
    assert "kdsl-runtime[cuda]" in caught.value.fix


class _Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


_BINDINGS = SimpleNamespace(
    CUresult=_Result, cuGetErrorString=lambda code: (_Result.CUDA_SUCCESS, b"out of memory")
)


def test_every_answer_is_checked():
    """Success gives the results alone; a failure names the call, the code and its text."""
    assert driver.check(_BINDINGS, "cuX", (_Result.CUDA_SUCCESS,)) == ()
    assert driver.check(_BINDINGS, "cuX", (_Result.CUDA_SUCCESS, 7)) == 7
    assert driver.check(_BINDINGS, "cuX", (_Result.CUDA_SUCCESS, 7, 8)) == (7, 8)
    with pytest.raises(DriverError) as caught:
        driver.check(_BINDINGS, "cuMemAlloc", (_Result.CUDA_ERROR_OUT_OF_MEMORY, 0))
    assert "cuMemAlloc answered CUDA_ERROR_OUT_OF_MEMORY: out of memory" in caught.value.message
    assert (caught.value.code, caught.value.fix[:18]) == ("K803", "free device memory")


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((8, 0), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((12, 0), "sm_120"),
    ],
)
def test_target_of_a_device(capability, target):
    """Hopper and datacentre Blackwell get the target that has their instructions."""
    assert driver.target_of(capability) == target
