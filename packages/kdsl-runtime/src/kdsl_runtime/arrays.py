"""Anybody's array as pointer, dtype, shape, strides and device, without importing its framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdsl_core.dtypes import BY_NAME, DType, dtype_of
from kdsl_core.errors import ArgumentError, DriverError, TypeMismatch
from kdsl_runtime import dlpack, driver

Place = tuple[str, int]
CPU: Place = ("cpu", 0)

_TORCH_NAMES = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "e4m3",
    "torch.float8_e5m2": "e5m2",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.int16": "i16",
    "torch.int8": "i8",
    "torch.uint64": "u64",
    "torch.uint32": "u32",
    "torch.uint16": "u16",
    "torch.uint8": "u8",
    "torch.bool": "boolean",
}


@dataclass(frozen=True)
class ArrayInfo:
    """What a launch needs to know of one array. `owner` keeps the memory alive.

    Units: `strides` in elements. `device` is ("cpu", 0) or ("cuda", index). `stream` is the one
    that the array's producer works on, where it says so; None otherwise.
    """

    pointer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: Place
    owner: Any
    stream: int | None = None


def describe(array: Any, name: str = "argument") -> ArrayInfo:
    """The facts about a NumPy, torch, CuPy, JAX or other array; nothing is copied.

    Raises: ArgumentError K650 (no array), K651 (type), K652 (strides), K655 (device).
    """
    kind = type(array)
    describer = _describers.get(kind)
    if describer is None:
        describer = _describers[kind] = _choose(array, name)
    return describer(array, name)


def is_array(value: Any) -> bool:
    """Whether `describe` can say what `value` is; an attribute look-up, nothing is read."""
    return type(value) in _describers or _protocol(value) is not None


def is_torch(kind: type) -> bool:
    """Whether arrays of a type are read as torch's are."""
    return _describers.get(kind) is _from_torch


def current_stream(index: int = 0) -> int:
    """The stream that the caller's framework works on now: torch's, CuPy's, or the default 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(index).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(index):
            return int(cupy.cuda.get_current_stream().ptr)
    return 0


def launch_stream(infos: Iterable[ArrayInfo], index: int = 0) -> int:
    """The stream for a launch on these arrays: the framework's current one, else a producer's own.

    Memory: in order with the work that made the arrays, when all were made on one stream.
    """
    current = current_stream(index)
    if current:
        return current
    return next((info.stream for info in infos if info.stream is not None), 0)


def common_device(infos: Mapping[str, ArrayInfo]) -> Place:
    """The one device of all arrays, by argument name; the CPU when there is none.

    Raises: ArgumentError K659 naming the first two that differ.
    """
    first: tuple[str, Place] | None = None
    for name, info in infos.items():
        if first is None:
            first = (name, info.device)
        elif info.device != first[1]:
            raise ArgumentError(
                f"expected all arrays on one device: {first[0]} is on {_spelled(first[1])}, "
                f"{name} on {_spelled(info.device)}",
                code="K659",
                fix="copy one of them; NumPy arrays run in the simulator, CUDA arrays on the GPU",
            )
    return CPU if first is None else first[1]


def _spelled(place: Place) -> str:
    return place[0] if place == CPU else f"{place[0]}:{place[1]}"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


_Describer = Callable[[Any, str], ArrayInfo]
_describers: dict[type, _Describer] = {}


def _protocol(array: Any) -> _Describer | None:
    kind = type(array)
    if isinstance(array, np.ndarray):
        return _from_numpy
    if hasattr(kind, "__kdsl_array__"):
        return _from_own
    if hasattr(kind, "data_ptr") and hasattr(kind, "stride"):
        return _from_torch
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_interface
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _from_dlpack
    return None


def _choose(array: Any, name: str) -> _Describer:
    describer = _protocol(array)
    if describer is None:
        raise _no_array(array, name)
    return describer


def _from_own(array: Any, name: str) -> ArrayInfo:
    info: ArrayInfo = array.__kdsl_array__()
    return info


def _from_numpy(array: np.ndarray[Any, Any], name: str) -> ArrayInfo:
    dtype = _dtype(array.dtype, name)
    strides = _in_elements(array.strides, array.itemsize, name)
    return ArrayInfo(array.ctypes.data, dtype, array.shape, strides, CPU, array)


def _from_torch(tensor: Any, name: str) -> ArrayInfo:
    spelled = str(tensor.dtype)
    if spelled not in _TORCH_NAMES:
        raise _unknown_dtype(spelled, name)
    device = tensor.device
    place: Place = CPU if device.type == "cpu" else (device.type, device.index or 0)
    if place[0] not in ("cpu", "cuda"):
        raise _unknown_device(place[0], name)
    return ArrayInfo(
        tensor.data_ptr(),
        BY_NAME[_TORCH_NAMES[spelled]],
        tuple(tensor.shape),
        tuple(tensor.stride()),
        place,
        tensor,
    )


def _from_cuda_interface(array: Any, name: str) -> ArrayInfo:
    # JAX has the attribute on its type and refuses it per array, for bf16 and on the CPU.
    stated = getattr(array, "__cuda_array_interface__", None)
    if stated is None:
        return _from_dlpack(array, name)
    item = np.dtype(stated["typestr"])
    if item.kind == "V" and hasattr(type(array), "__dlpack__"):
        return _from_dlpack(array, name)
    shape, pointer = tuple(stated["shape"]), int(stated["data"][0])
    in_bytes = stated.get("strides")
    strides = contiguous_strides(shape)
    if in_bytes is not None:
        strides = _in_elements(in_bytes, item.itemsize, name)
    return ArrayInfo(
        pointer,
        _dtype(item, name),
        shape,
        strides,
        ("cuda", _device_index(array, pointer)),
        array,
        stated.get("stream"),
    )


def _device_index(array: Any, pointer: int) -> int:
    if hasattr(type(array), "__dlpack_device__"):
        return int(array.__dlpack_device__()[1])
    # An empty array's pointer is null, and without a driver no pointer is a device's.
    try:
        return driver.pointer_device(pointer) if pointer else 0
    except DriverError:
        return 0


def _from_dlpack(array: Any, name: str) -> ArrayInfo:
    if not hasattr(type(array), "__dlpack__"):
        raise _no_array(array, name)
    tensor = dlpack.read(array)
    if tensor.device_type not in dlpack.DEVICE_KINDS:
        raise _unknown_device(f"DLPack device {tensor.device_type}", name)
    dtype_name = dlpack.DTYPE_NAMES.get((tensor.type_code, tensor.bits))
    if dtype_name is None or tensor.lanes != 1:
        raise _unknown_dtype(
            f"DLPack type (code {tensor.type_code}, {tensor.bits} bits, {tensor.lanes} lanes)", name
        )
    kind = dlpack.DEVICE_KINDS[tensor.device_type]
    place = CPU if kind == "cpu" else (kind, tensor.device_index)
    strides = contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides
    owner = (array, tensor.capsule)
    return ArrayInfo(tensor.pointer, BY_NAME[dtype_name], tensor.shape, strides, place, owner)


def _dtype(spec: Any, name: str) -> DType:
    try:
        return dtype_of(spec)
    except TypeMismatch as problem:
        raise _unknown_dtype(str(spec), name) from problem


def _in_elements(strides: Sequence[int], item_bytes: int, name: str) -> tuple[int, ...]:
    if any(stride % item_bytes for stride in strides):
        raise ArgumentError(
            f"{name}: strides of {tuple(strides)} bytes are no whole number of elements of "
            f"{item_bytes} bytes",
            code="K652",
            fix="pass a contiguous copy",
        )
    return tuple(stride // item_bytes for stride in strides)


def _no_array(value: Any, name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}: expected an array, got {type(value).__name__} {repr(value)[:80]}",
        code="K650",
        fix="pass a NumPy array, or one with DLPack or __cuda_array_interface__",
    )


def _unknown_dtype(spelled: str, name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}: expected a numeric type of kdsl ({', '.join(BY_NAME)}), got {spelled}",
        code="K651",
        fix="convert it before the call",
    )


def _unknown_device(spelled: str, name: str) -> ArgumentError:
    return ArgumentError(
        f"{name}: expected an array on the CPU or a CUDA device, got {spelled}",
        code="K655",
        fix="copy it to the CPU or to a CUDA device",
    )
