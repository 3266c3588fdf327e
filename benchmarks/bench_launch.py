"""What a launch costs in Python: on a driver that does nothing, for three and eight arrays."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from launch_kernels import KERNELS, SHAPE, THREADS

import kdsl_core as kd
from kdsl_runtime import driver, launch
from kdsl_runtime.device_array import DeviceArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def array(number: int) -> DeviceArray:
    """An array without memory."""
    made = DeviceArray.__new__(DeviceArray)
    made.shape, made.dtype, made.index, made.pointer = SHAPE, kd.f32, 0, 4096 * (number + 1)
    return made


class Launches:
    """Launches like one before, with all guards, and bound ones."""

    params = (3, 8)
    param_names = ("arrays",)

    def setup(self, count: int) -> None:
        """A kernel that was launched before; loading and launching give at once."""
        from runtime.fake_gpu import FakeDriver

        fake = FakeDriver()
        nothing = ctypes.CDLL(None).htonl  # no system call; only the first argument is read
        nothing.restype = None
        chip = driver.Device(0, "H200", (9, 0), 132, 1 << 37, 232448)
        self._replaced: list[tuple[Any, str, Any]] = []
        for where, name, value in (
            (driver, "device", lambda index: chip),
            (driver, "load_module", lambda image, index: 1),
            (driver, "kernel_function", lambda *arguments: 1),
            (driver, "require_driver", lambda: fake),
            (driver, "launcher", lambda: nothing),
            (launch, "_loaded", {}),
        ):
            self._replaced.append((where, name, getattr(where, name)))
            setattr(where, name, value)
        self.kernel = KERNELS[count]
        self.kernel.clear()
        self.arrays = [array(i) for i in range(count)]
        self.bound = self.kernel[1, THREADS].bind(*self.arrays)
        for _ in range(8):
            self.time_unbound(count)

    def teardown(self, count: int) -> None:
        """The driver as it was."""
        for where, name, value in self._replaced:
            setattr(where, name, value)

    def time_unbound(self, count: int) -> None:
        """`kernel[grid, block](…)`."""
        self.kernel[1, THREADS](*self.arrays)

    def time_bound(self, count: int) -> None:
        """The function that `bind` gave."""
        self.bound(*self.arrays)


for _benchmark in vars(Launches).values():
    if getattr(_benchmark, "__name__", "").startswith("time_"):
        _benchmark.version = "2"
del _benchmark
