"""The DLPack capsule, read without consuming it.

Source: dmlc/dlpack, include/dlpack/dlpack.h, versions 0.8 and 1.x.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_CUDA, _CUDA_MANAGED = 2, 13
DEVICE_KINDS = {1: "cpu", _CUDA: "cuda", _CUDA_MANAGED: "cuda"}
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 6, 10, 12
DTYPE_NAMES = {
    **{(_INT, bits): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): f"u{bits}" for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): f"f{bits}" for bits in (16, 32, 64)},
    (_BFLOAT, 16): "bf16",
    (_BOOL, 8): "boolean",
    (_E4M3FN, 8): "e4m3",
    (_E5M2, 8): "e5m2",
}
_NO_SYNCHRONISATION = -1


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True)
class DlpackTensor:
    """What a capsule says. `strides` in elements, None when C-contiguous.

    Memory: valid as long as `capsule` lives; it is not renamed, so its destructor frees it.
    """

    pointer: int
    device_type: int
    device_index: int
    type_code: int
    bits: int
    lanes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    capsule: Any


def read(array: Any) -> DlpackTensor:
    """What `array.__dlpack__()` says.

    Memory: no synchronisation is asked for, because kernels go to the caller's current stream.
    """
    device_type, _ = array.__dlpack_device__()
    on_gpu = DEVICE_KINDS.get(int(device_type)) == "cuda"
    capsule = array.__dlpack__(stream=_NO_SYNCHRONISATION) if on_gpu else array.__dlpack__()
    return parse(capsule)


def parse(capsule: Any) -> DlpackTensor:
    """The contents of a DLPack capsule, versioned or not."""
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _get_pointer(capsule, b"dltensor_versioned")
        tensor = _DLManagedTensorVersioned.from_address(address).dl_tensor
    else:
        tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    rank = tensor.ndim
    return DlpackTensor(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        device_type=tensor.device_type,
        device_index=tensor.device_id,
        type_code=tensor.code,
        bits=tensor.bits,
        lanes=tensor.lanes,
        shape=tuple(tensor.shape[:rank]) if rank else (),
        strides=tuple(tensor.strides[:rank]) if rank and tensor.strides else None,
        capsule=capsule,
    )
