"""Copies of NumPy arrays on a GPU that keep the order of their modes and their broadcasts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_runtime.arrays import ArrayInfo
from kdsl_runtime.device_array import to_device


class DeviceCopy:
    """A copy of an array in global memory, whose strides have the order of the array's.

    Memory: compact; a mode of stride 0 is stored once.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        stored = stored_once(array)
        self.shape = array.shape
        order = np.argsort([-abs(step) for step in stored.strides], kind="stable")
        self._back = [int(axis) for axis in np.argsort(order)]
        self._base = to_device(np.ascontiguousarray(stored.transpose(order)))

    def __kdsl_array__(self) -> ArrayInfo:
        """Where and what this array is, for a launch."""
        info = self._base.__kdsl_array__()
        here = [(info.shape[axis], info.strides[axis]) for axis in self._back]
        wanted = zip(self.shape, here, strict=True)
        strides = tuple(step if size == extent else 0 for extent, (size, step) in wanted)
        return replace(info, shape=self.shape, strides=strides)

    def read(self) -> np.ndarray[Any, Any]:
        """The array, back on the host; waits for it."""
        return np.broadcast_to(self._base.read().transpose(self._back), self.shape)


def stored_once(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One element of each mode that is broadcast, all of the others."""
    return array[tuple(slice(1) if step == 0 else slice(None) for step in array.strides)]
