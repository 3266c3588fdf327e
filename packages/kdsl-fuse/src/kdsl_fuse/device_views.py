"""CUDA arrays of libraries that kdsl_fuse has no words for: their facts, and views of them.

They are JAX arrays, `kdsl_runtime.DeviceArray`s, and everything else with DLPack or
`__cuda_array_interface__`. What a plan makes for them is a `DeviceArray`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kdsl_core.dtypes import DType
from kdsl_core.records import dataclass
from kdsl_fuse.strided import Shape, Strided, row_major

if TYPE_CHECKING:
    from kdsl_runtime.arrays import ArrayInfo


@dataclass(frozen=True, eq=False)
class DeviceView:
    """An array's memory with another shape and other strides, which a launch takes for an array."""

    info: ArrayInfo

    def __kdsl_array__(self) -> ArrayInfo:
        """Where and what this view is."""
        return self.info


def facts(array: Any) -> ArrayInfo:
    """Pointer, dtype, shape, strides and device."""
    from kdsl_runtime.arrays import describe

    return describe(array)


def is_foreign(value: Any) -> bool:
    """Whether it is an array by one of the protocols."""
    if isinstance(value, bool | int | float | str | tuple | list | dict) or callable(value):
        return False
    from kdsl_runtime.arrays import is_array

    return is_array(value)


def transposed(array: Any) -> DeviceView:
    """The matrix with its axes swapped."""
    info = facts(array)
    return DeviceView(replace(info, shape=info.shape[::-1], strides=info.strides[::-1]))


def permuted(array: Any, axes: tuple[int, ...]) -> DeviceView:
    """The array with its axes in another order."""
    info = facts(array)
    shape, strides = (tuple(x[axis] for axis in axes) for x in (info.shape, info.strides))
    return DeviceView(replace(info, shape=shape, strides=strides))


def first_columns(array: Any, columns: int) -> DeviceView:
    """The matrix without the columns behind the first ones."""
    info = facts(array)
    return DeviceView(replace(info, shape=(info.shape[0], columns)))


def strided(array: Any, layout: Strided) -> DeviceView:
    """Elements of the array's memory by shape, strides and offset."""
    info = facts(array)
    pointer = info.pointer + layout.offset * info.dtype.bytes
    found = replace(info, pointer=pointer, shape=layout.shape, strides=layout.strides)
    return DeviceView(found)


def part(memory: Any, start_bytes: int, dtype: DType, shape: Shape) -> DeviceView:
    """A row-major array in a part of an array of bytes."""
    info = facts(memory)
    pointer, strides = info.pointer + start_bytes, row_major(shape)
    return DeviceView(replace(info, pointer=pointer, dtype=dtype, shape=shape, strides=strides))
