"""From PTX to a launch: toolchain, assembler, cache, driver, arrays, launch and doctor.

Nothing is imported until it is used, and no CUDA package before the driver library was found.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "AssembleOptions": "assemble",
    "Cubin": "assemble",
    "KdslBuildWarning": "assemble",
    "ResourceReport": "assemble",
    "ArrayInfo": "arrays",
    "common_device": "arrays",
    "current_stream": "arrays",
    "describe": "arrays",
    "launch_stream": "arrays",
    "Cache": "cache",
    "DiskCache": "cache",
    "KdslCacheWarning": "cache",
    "default_cache": "cache",
    "DeviceArray": "device_array",
    "Freeze": "frozen",
    "KdslFrozenWarning": "frozen",
    "freeze": "frozen",
    "thaw": "frozen",
    "KdslRecordWarning": "recording",
    "Recording": "recording",
    "record": "recording",
    "Manifest": "manifest",
    "Sample": "manifest",
    "Variant": "manifest",
    "KdslLockWarning": "locking",
    "lock": "locking",
    "unlock": "locking",
    "KdslPinWarning": "pins",
    "Lock": "pins",
    "Pin": "pins",
    "pin": "pins",
    "Dispatch": "dispatch",
    "Event": "streams",
    "Graph": "graphs",
    "Problem": "problem",
    "Stream": "streams",
    "require_driver": "driver",
    "to_device": "device_array",
    "build": "builds",
    "recall": "builds",
    "noted": "cache.notes",
    "bound": "bound",
    "open_device": "opening",
    "bound_addresses": "ready",
    "remember": "call_forms",
    "LoadedKernel": "launch",
    "load": "launch",
    "run": "launch",
    "Toolchain": "toolchain",
    "find_toolchain": "toolchain",
    "toolchain_named": "toolchain",
    "build_manifest": "warming",
    "warm_up": "warming",
}
_MODULES = (
    "arrays",
    "assemble",
    "cache",
    "dispatch",
    "doctor",
    "driver",
    "launch",
    "metrics",
    "prometheus",
    "toolchain",
    "tune",
)

__all__ = [*_HOME, *(name for name in _MODULES if name not in _HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
