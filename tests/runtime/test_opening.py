"""A device is opened in a thread of its own, and whoever needs the driver waits for it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from typing import Any

import pytest

from kdsl_core.errors import DriverError
from kdsl_runtime import driver, opening


class SlowDriver:
    """A library whose `cuInit` takes until `goes_on` is set; notes what is called."""

    def __init__(self, answer: int = 0) -> None:
        self.goes_on = threading.Event()
        self.answer = answer
        self.called: list[tuple[Any, ...]] = []

    def cuInit(self, flags: int) -> int:
        """Waits."""
        assert self.goes_on.wait(60)
        self.called.append(("cuInit", flags))
        return self.answer

    def cuDeviceGet(self, device: Any, index: int) -> int:
        """Devices have the numbers of their indices."""
        device._obj.value = index
        self.called.append(("cuDeviceGet", index))
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:
        """Makes nothing."""
        self.called.append(("cuDevicePrimaryCtxRetain", device.value))
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SlowDriver:
    """The driver's library of a machine on which nothing is open."""
    slow = SlowDriver()
    monkeypatch.setattr(opening, "_openings", {})
    monkeypatch.setattr(opening.ctypes, "CDLL", lambda name: slow)
    return slow


def test_it_returns_at_once(library):
    """Each device is opened once; `wait` comes back when all are."""
    for index in (1, 1, 1):
        opening.open_device(index)
    assert not library.called
    library.goes_on.set()
    opening.wait()
    assert library.called == [
        ("cuInit", 0), ("cuDeviceGet", 1), ("cuDevicePrimaryCtxRetain", 1),
    ]  # fmt: skip


def test_a_driver_that_fails_is_left_alone(library):
    """The first use says what is wrong."""
    library.answer = 100
    library.goes_on.set()
    opening.open_device()
    opening.wait()
    assert library.called == [("cuInit", 0)]


def test_the_first_use_waits(library, monkeypatch):
    """The driver is not asked for before it is open."""
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    driver.require_driver.cache_clear()
    opening.open_device()
    asked: list[str] = []

    def ask() -> None:
        with pytest.raises(DriverError, match="not its Python bindings"):
            driver.require_driver()
        asked.append("answered")

    asks = threading.Thread(target=ask)
    asks.start()
    asks.join(0.05)
    assert not asked
    library.goes_on.set()
    asks.join(60)
    driver.require_driver.cache_clear()
    assert asked and library.called


def test_without_a_driver_nothing_happens(monkeypatch):
    """Neither an error nor a warning."""
    monkeypatch.setattr(opening, "_openings", {})
    monkeypatch.setattr(opening, "LIBRARY", "libkdsl-no-such-driver.so.1")
    opening.open_device()
    opening.wait()


def test_it_needs_no_other_import():
    """NumPy and the rest of kdsl are imported while the driver starts."""
    program = """
import sys
import kdsl_runtime as kr
kr.open_device()
assert not {"numpy", "kdsl_core", "cuda"} & {name.partition(".")[0] for name in sys.modules}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
