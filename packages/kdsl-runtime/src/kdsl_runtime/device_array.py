"""NumPy arrays copied to a GPU and back, for programs that use no array framework there."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import ArgumentError, DriverError
from kdsl_runtime.arrays import ArrayInfo, contiguous_strides
from kdsl_runtime.driver import call, on_device


class DeviceArray:
    """A C-contiguous array in device memory, freed when it is closed or no longer used.

    Memory: global memory of device `index`, aligned to 256 bytes.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, index: int = 0) -> None:
        self.shape = shape
        self.dtype = dtype
        self.index = index
        self.bytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.bytes)
        with on_device(index):
            self.pointer = int(call("cuMemAlloc", self.bytes))
        self._free = weakref.finalize(self, _free, self.pointer, index)

    def __kdsl_array__(self) -> ArrayInfo:
        """Where and what this array is, for a launch."""
        strides = contiguous_strides(self.shape)
        return ArrayInfo(
            self.pointer, self.dtype, self.shape, strides, ("cuda", self.index), owner=self
        )

    def close(self) -> None:
        """Free the memory; a second time does nothing."""
        self._free()

    def write(self, values: np.ndarray[Any, Any], stream: int = 0) -> None:
        """Copy a NumPy array of the same size here, in order with `stream`; waits for it.

        Raises: ArgumentError K657 for another shape.
        """
        data = np.asarray(values, dtype=self.dtype.numpy, order="C")
        if data.shape != self.shape:
            raise ArgumentError(
                f"expected an array of shape {self.shape} to copy, got {data.shape}",
                code="K657",
                fix="make a DeviceArray of that shape",
            )
        if data.size:
            with on_device(self.index):
                source = data.ctypes.data
                call("cuMemcpyHtoDAsync", self.pointer, source, data.nbytes, stream)
                call("cuStreamSynchronize", stream)

    def read(self, stream: int = 0) -> np.ndarray[Any, Any]:
        """A NumPy copy, taken in order with `stream`; waits for it."""
        data = np.empty(self.shape, dtype=self.dtype.numpy)
        if data.size:
            with on_device(self.index):
                goal = data.ctypes.data
                call("cuMemcpyDtoHAsync", goal, self.pointer, data.nbytes, stream)
                call("cuStreamSynchronize", stream)
        return data


def _free(pointer: int, index: int) -> None:
    # At interpreter exit the driver may be gone already, and the memory with it.
    with contextlib.suppress(DriverError), on_device(index):
        call("cuMemFree", pointer)


def to_device(
    values: np.ndarray[Any, Any], index: int = 0, *, dtype: DType | None = None, stream: int = 0
) -> DeviceArray:
    """A copy of a NumPy array in the memory of device `index`."""
    array = DeviceArray(values.shape, dtype or dtype_of(values.dtype), index)
    array.write(values, stream)
    return array
