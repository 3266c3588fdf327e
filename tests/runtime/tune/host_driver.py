"""A CUDA driver without a GPU: memory is the host's, launches run at once, time is stated."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class Answer(enum.IntEnum):
    """What the driver answers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_LAUNCH_FAILED = 719


OK = Answer.CUDA_SUCCESS
L2_BYTES = 1 << 16


@dataclass
class HostDriver:
    """`clock_us` runs on by what launches take; in a capture they wait for the graph's replay.

    `log` tells what became of graphs. The call that `fails` names does.
    """

    clock_us: float = 0.0
    fails: str = ""
    log: list[str] = field(default_factory=list)
    capture: list[Callable[[], None]] | None = None
    CUresult: Any = Answer
    CUdevice_attribute: Any = field(default_factory=lambda: _Names())
    CUstreamCaptureMode: Any = field(default_factory=lambda: _Names())
    CUstream_flags: Any = field(default_factory=lambda: _Names())

    def __post_init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._events: dict[int, float] = {}
        self._graphs: list[list[Callable[[], None]]] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        """What a launch does: now, or when its graph is replayed."""
        if self.capture is None:
            work()
        else:
            self.capture.append(work)

    # -- devices, contexts and memory -----------------------------------------------------------
    def cuGetErrorString(self, code):
        return OK, b"said the driver"

    def cuDeviceGetCount(self):
        return OK, 1

    def cuDeviceGet(self, index):
        return OK, index

    def cuDeviceGetAttribute(self, name, device):
        return OK, {"L2_CACHE_SIZE": L2_BYTES, "COMPUTE_CAPABILITY_MAJOR": 9}.get(name, 0)

    def cuDeviceGetName(self, size, device):
        return OK, b"Host\0"

    def cuDeviceTotalMem(self, device):
        return OK, 1 << 30

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, 1

    def cuCtxGetCurrent(self):
        return OK, 1

    def cuMemAlloc(self, size):
        buffer = ctypes.create_string_buffer(size)
        self._memory[ctypes.addressof(buffer)] = buffer
        return OK, ctypes.addressof(buffer)

    def cuMemFree(self, pointer):
        self._memory.pop(pointer, None)  # an earlier test's traceback may have kept an array
        return (OK,)

    def cuMemcpyHtoDAsync(self, goal, source, size, stream):
        ctypes.memmove(goal, source, size)
        return (OK,)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    # -- streams, events, graphs ----------------------------------------------------------------
    def cuStreamCreate(self, flags):
        return OK, 7

    def cuStreamSynchronize(self, stream):
        return (OK,)

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuEventCreate(self, flags):
        self._events[len(self._events)] = 0.0
        return OK, len(self._events) - 1

    def cuEventRecord(self, event, stream):
        self._events[event] = self.clock_us
        return (OK,)

    def cuEventSynchronize(self, event):
        return (OK,)

    def cuEventElapsedTime(self, begin, end):
        return OK, (self._events[end] - self._events[begin]) / 1e3

    def cuEventDestroy(self, event):
        return (OK,)

    def cuStreamBeginCapture(self, stream, mode):
        self.capture = []
        return (OK,)

    def cuStreamEndCapture(self, stream):
        self._graphs.append(self.capture)
        self.capture = None
        self.log.append(f"captured {len(self._graphs[-1])}")
        return OK, len(self._graphs) - 1

    def cuGraphInstantiate(self, graph, flags):
        return OK, graph

    def cuGraphDestroy(self, graph):
        return (OK,)

    def cuGraphExecDestroy(self, graph):
        self.log.append("destroyed")
        return (OK,)

    def cuGraphLaunch(self, graph, stream):
        if self.fails == "cuGraphLaunch":
            return (Answer.CUDA_ERROR_LAUNCH_FAILED,)
        self.log.append(f"replayed {graph}")
        for work in self._graphs[graph]:
            work()
        return (OK,)


class _Names(SimpleNamespace):
    """An enumeration of the driver: each name stands for its last part."""

    def __getattr__(self, name: str) -> str:
        return name.removeprefix("CU_DEVICE_ATTRIBUTE_")
