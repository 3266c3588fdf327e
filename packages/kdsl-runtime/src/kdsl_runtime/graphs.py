"""Work of a stream recorded once and replayed: the driver's graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from kdsl_runtime.driver import call, on_device, require_driver
from kdsl_runtime.streams import Stream, destroy


class Graph:
    """What `enqueue` puts on `stream`, recorded without being run; freed when no longer used.

    Kernels and their arguments must be loaded and encoded before, by a first launch.
    Memory: the arrays that it was recorded with must live as long as it does.
    Raises: DriverError, and what `enqueue` raises.
    """

    def __init__(self, enqueue: Callable[[], None], stream: Stream, index: int = 0) -> None:
        self.stream = stream
        self.index = index
        with on_device(index):
            graph = _recorded(enqueue, stream)
            self.handle = call("cuGraphInstantiate", graph, 0)
            call("cuGraphDestroy", graph)
        self._free = weakref.finalize(self, destroy, "cuGraphExecDestroy", self.handle, index)

    def replay(self) -> None:
        """Put all of it on its stream; nothing is waited for."""
        with on_device(self.index):
            call("cuGraphLaunch", self.handle, self.stream.handle)


def _recorded(enqueue: Callable[[], None], stream: Stream) -> Any:
    # Relaxed: the garbage collector may free arrays meanwhile, which others forbid.
    mode = require_driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call("cuStreamBeginCapture", stream.handle, mode)
    try:
        enqueue()
    except BaseException:
        destroy("cuStreamEndCapture", stream.handle, stream.index)  # it is of no use, and may fail
        raise
    return call("cuStreamEndCapture", stream.handle)
