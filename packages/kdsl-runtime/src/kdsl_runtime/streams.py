"""Streams and events of the driver."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from kdsl_core.errors import DriverError
from kdsl_runtime.driver import call, on_device, require_driver


class Event:
    """A point in a stream's work, with its time. Units: milliseconds, about 0.5 µs apart."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        with on_device(index):
            self.handle = call("cuEventCreate", 0)
        self._free = weakref.finalize(self, destroy, "cuEventDestroy", self.handle, index)

    def record(self, stream: int = 0) -> None:
        """Mark the work that `stream` has been given so far."""
        with on_device(self.index):
            call("cuEventRecord", self.handle, stream)

    def wait(self) -> None:
        """Block until the marked work is done."""
        call("cuEventSynchronize", self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two recorded events."""
        return float(call("cuEventElapsedTime", earlier.handle, self.handle))


class Stream:
    """A stream of its own, not ordered with the default stream."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        flags = require_driver().CUstream_flags.CU_STREAM_NON_BLOCKING
        with on_device(index):
            created = call("cuStreamCreate", flags)
        self.handle = int(created)
        self._free = weakref.finalize(self, destroy, "cuStreamDestroy", created, index)

    def wait(self) -> None:
        """Block until all its work is done."""
        call("cuStreamSynchronize", self.handle)


def destroy(name: str, handle: Any, index: int) -> None:
    """Call `name` on a driver's object that is no longer used; what it answers does not matter."""
    with contextlib.suppress(DriverError), on_device(index):
        call(name, handle)
