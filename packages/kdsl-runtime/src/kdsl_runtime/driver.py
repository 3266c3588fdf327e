"""The CUDA driver: imported only after its library was found, every answer checked."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from kdsl_core.errors import DriverError
from kdsl_runtime import opening

_LIBRARY = opening.LIBRARY
_SIMULATE = "pass NumPy arrays instead: they run in the simulator"
# Instructions of these generations need the architecture-specific target.
_SPECIFIC_TARGETS = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
_guard = threading.Lock()
_contexts: dict[int, Any] = {}


@cache
def require_driver() -> ModuleType:
    """The module `cuda.bindings.driver`, with the driver initialised.

    Raises: DriverError K801 (no driver library), K802 (no Python bindings), K803 (it failed).
    """
    opening.wait()
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as problem:
        raise DriverError(
            f"no CUDA driver: {problem}",
            code="K801",
            fix=f"install NVIDIA's driver on a machine with a GPU, or {_SIMULATE}",
        ) from problem
    # Only now: cuda.bindings and above all cuda.core can hang where there is no driver.
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError as problem:
        raise DriverError(
            f"there is a CUDA driver, but not its Python bindings: {problem}",
            code="K802",
            fix="pip install 'kdsl-runtime[cuda]'",
        ) from problem
    check(bindings, "cuInit", bindings.cuInit(0))
    return bindings


@cache
def launcher() -> Callable[..., int]:
    """The driver's own `cuLaunchKernelEx`: from prepared memory it costs less than the bindings'.

    It takes `ctypes` values and gives the answer as a number.
    Raises: DriverError K801–K803.
    """
    require_driver()
    function: Callable[..., int] = ctypes.CDLL(_LIBRARY).cuLaunchKernelEx
    return function


def is_available() -> bool:
    """Whether kernels can be launched here: driver, bindings and at least one device."""
    try:
        return device_count() > 0
    except DriverError:
        return False


def check(bindings: ModuleType, name: str, answer: tuple[Any, ...]) -> Any:
    """The results in `answer` of the driver call `name`, without its return code.

    Raises: DriverError K803 with the code's name.
    """
    code, *results = answer
    if code != bindings.CUresult.CUDA_SUCCESS:
        raise failure(bindings, name, code)
    return results[0] if len(results) == 1 else tuple(results)


def failure(bindings: ModuleType, name: str, code: Any) -> DriverError:
    """The error for a driver call that answered `code`."""
    label = getattr(code, "name", str(code))
    _, text = bindings.cuGetErrorString(code)
    said = text.decode() if isinstance(text, bytes) else "no description"
    return DriverError(f"{name} answered {label}: {said}", code="K803", fix=_advice(label))


def call(name: str, *arguments: Any) -> Any:
    """Call the driver function `name`, checked.

    Raises: DriverError K801–K803.
    """
    bindings = require_driver()
    return check(bindings, name, getattr(bindings, name)(*arguments))


def _advice(label: str) -> str:
    if label == "CUDA_ERROR_NO_DEVICE":
        return f"make a GPU visible (CUDA_VISIBLE_DEVICES), or {_SIMULATE}"
    if label == "CUDA_ERROR_OUT_OF_MEMORY":
        return "free device memory, or use smaller arrays"
    if label in ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS"):
        return "run the kernel with NumPy arrays: the simulator names the line and the address"
    if label in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        return "build for this device's target and a driver as new as the assembler"
    return "see `kdsl doctor`"


@dataclass(frozen=True)
class Device:
    """One GPU. Units: `memory_bytes` in all; `shared_bytes` the most that one block may use."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    shared_bytes: int

    @property
    def target(self) -> str:
        """The PTX target of this device, "sm_90a" for a Hopper chip."""
        return target_of(self.capability)


def target_of(capability: tuple[int, int]) -> str:
    """The PTX target of a compute capability."""
    return _SPECIFIC_TARGETS.get(capability, f"sm_{capability[0]}{capability[1]}")


def device_count() -> int:
    """Number of devices that this process sees.

    Raises: DriverError K801–K803.
    """
    return int(call("cuDeviceGetCount"))


@cache
def device(index: int = 0) -> Device:
    """The properties of device `index`.

    Raises: DriverError K804 when there is no such device, K801–K803.
    """
    count = device_count()
    if not 0 <= index < count:
        raise DriverError(
            f"expected a device from 0 to {count - 1}, got {index}",
            code="K804",
            fix="see `kdsl doctor` for the devices",
        )
    attribute = require_driver().CUdevice_attribute
    handle = call("cuDeviceGet", index)

    def ask(name: str) -> int:
        number = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call("cuDeviceGetAttribute", number, handle))

    return Device(
        index=index,
        name=call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(),
        capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=ask("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(call("cuDeviceTotalMem", handle)),
        shared_bytes=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def primary_context(index: int) -> Any:
    """The primary context of device `index`, shared with torch and the CUDA runtime.

    Threads: safe; retained once and kept for the life of the process.
    """
    with _guard:
        if index not in _contexts:
            device(index)
            handle = call("cuDeviceGet", index)
            _contexts[index] = call("cuDevicePrimaryCtxRetain", handle)
        return _contexts[index]


@contextlib.contextmanager
def on_device(index: int) -> Iterator[None]:
    """Make the primary context of device `index` current, and the former one again at the end.

    Threads: for the calling thread alone. A thread that had no context keeps this one.
    """
    wanted = primary_context(index)
    current = call("cuCtxGetCurrent")
    if int(current) == int(wanted):
        yield
    elif int(current) == 0:
        call("cuCtxSetCurrent", wanted)
        yield
    else:
        call("cuCtxPushCurrent", wanted)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")


def load_module(image: bytes, index: int) -> Any:
    """The module made of a cubin (or PTX) on device `index`; allowed during graph capture."""
    bindings = require_driver()
    relaxed = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    with on_device(index):
        former = call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            return call("cuModuleLoadData", image if image.endswith(b"\0") else image + b"\0")
        finally:
            call("cuThreadExchangeStreamCaptureMode", former)


def kernel_function(module: Any, entry: str, index: int, shared_bytes: int) -> Any:
    """The kernel `entry` of `module`, allowed to use `shared_bytes` of dynamic shared memory."""
    attribute = require_driver().CUfunction_attribute
    dynamic = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    with on_device(index):
        function = call("cuModuleGetFunction", module, entry.encode())
        if shared_bytes:
            call("cuFuncSetAttribute", function, dynamic, shared_bytes)
    return function


def pointer_device(pointer: int) -> int:
    """The index of the device that holds the memory at `pointer`."""
    attribute = require_driver().CUpointer_attribute
    ordinal = attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", ordinal, pointer))
