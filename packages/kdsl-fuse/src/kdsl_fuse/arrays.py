"""Arrays of the caller's library: their types, and views and buffers made with that library.

Nothing is imported: torch and CuPy are found in `sys.modules` when the caller uses them. Arrays of
other libraries are known by their protocols.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kdsl_core.dtypes import BY_NAME, DType, dtype_of
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.arguments import facts_of
from kdsl_core.records import dataclass
from kdsl_fuse import device_views
from kdsl_fuse.strided import Strided, row_major

if TYPE_CHECKING:
    from kdsl_runtime.driver import Device

_TORCH_NAMES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "bool": "boolean",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    "uint8": "u8",
}
_TO_TORCH = {name: torch_name for torch_name, name in _TORCH_NAMES.items()}


@dataclass(frozen=True)
class Spec:
    """What a plan depends on in an array: dtype, shape, strides in elements."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def library(array: Any) -> str | None:
    """ "numpy", "torch", "cupy", or "foreign" for another array; None for everything else."""
    if isinstance(array, np.ndarray | np.generic):
        return "numpy"
    for name, kind in (("torch", "Tensor"), ("cupy", "ndarray")):
        module = sys.modules.get(name)
        if module is not None and isinstance(array, getattr(module, kind, ())):
            return name
    return "foreign" if device_views.is_foreign(array) else None


def device_index(array: Any) -> int | None:
    """The number of the GPU that holds the array; None for an array on the host."""
    kind = library(array)
    if kind == "torch":
        name, _, index = str(array.device).partition(":")
        return int(index or 0) if name == "cuda" else None
    if kind == "cupy":
        return int(array.device.id)
    if kind == "foreign":
        name, number = device_views.facts(array).device
        return number if name == "cuda" else None
    return None


def place(array: Any) -> str:
    """Library and memory of an array in words, equal for arrays that one plan can take."""
    kind, index = library(array), device_index(array)
    where = "the host" if index is None else f"cuda:{index}"
    return f"{'an' if kind == 'foreign' else f'a {kind}'} array on {where}"


def gpu_of(array: Any) -> Device | None:
    """The GPU that holds the array; None for an array on the host.

    Raises: DriverError when there is no such GPU here.
    """
    index = device_index(array)
    if index is None:
        return None
    from kdsl_runtime.driver import device

    return device(index)


def spec_of(array: Any) -> Spec | None:
    """The Spec of an array, or of a `kd.spec`; None for anything else.

    Raises: ArgumentError K924 for strides that step backwards or by parts of an element.
    """
    kind = library(array)
    if kind == "torch":
        dtype = dtype_from_torch(array.dtype)
        return Spec(dtype, tuple(array.shape), tuple(array.stride()))
    if kind in ("numpy", "cupy"):
        return _spec_of_numpy(array)
    if kind == "foreign":
        info = device_views.facts(array)
        return Spec(info.dtype, info.shape, info.strides)
    if all(hasattr(array, name) for name in ("dtype", "shape", "strides")):
        shape = tuple(array.shape)
        return Spec(dtype_of(array.dtype), shape, tuple(array.strides or row_major(shape)))
    return None


def _spec_of_numpy(array: Any) -> Spec:
    item = array.dtype.itemsize
    if any(stride < 0 or stride % item for stride in array.strides):
        raise ArgumentError(
            f"strides must be whole, non-negative numbers of elements, got {array.strides} bytes "
            f"for elements of {item} bytes",
            code="K924",
            fix="copy it first: numpy.ascontiguousarray(x)",
        )
    strides = tuple(stride // item for stride in array.strides)
    return Spec(dtype_of(array.dtype), tuple(array.shape), strides)


def dtype_from_torch(dtype: Any) -> DType:
    """The type that torch calls `dtype`.

    Raises: ArgumentError K925 for one that kdsl does not have.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _TORCH_NAMES:
        raise ArgumentError(
            f"{dtype} is not a numeric type of kdsl",
            code="K925",
            fix=f"use one of {', '.join(_TORCH_NAMES)}",
        )
    return BY_NAME[_TORCH_NAMES[name]]


def transposed(array: Any) -> Any:
    """The matrix with its axes swapped, as a view."""
    kind = library(array)
    if kind == "foreign":
        return device_views.transposed(array)
    return array.t() if kind == "torch" else array.T


def first_columns(matrix: Any, columns: int) -> Any:
    """A view of the matrix without the columns behind the first ones."""
    if library(matrix) == "foreign":
        return device_views.first_columns(matrix, columns)
    return matrix[:, :columns]


def permuted(array: Any, axes: tuple[int, ...]) -> Any:
    """The array with its axes in another order, as a view."""
    kind = library(array)
    if kind == "foreign":
        return device_views.permuted(array, axes)
    return array.permute(axes) if kind == "torch" else array.transpose(axes)


def strided(array: Any) -> Strided:
    """How the elements of an array lie in its memory."""
    return Strided.of(facts_of(array, "operand"))


def view(array: Any, layout: Strided) -> Any:
    """Elements of the array's memory by shape, strides and offset, without a copy."""
    kind = library(array)
    if kind == "foreign":
        return device_views.strided(array, layout)
    if kind == "torch":
        start = array.storage_offset() + layout.offset
        return array.as_strided(layout.shape, layout.strides, start)
    module = sys.modules["cupy"] if kind == "cupy" else np
    as_strided, item = module.lib.stride_tricks.as_strided, array.dtype.itemsize
    if layout.offset:
        array = as_strided(array, (layout.offset + 1,), (item,))[layout.offset :]
    return as_strided(array, layout.shape, tuple(stride * item for stride in layout.strides))


def part(memory: Any, start_bytes: int, shape: tuple[int, ...], dtype: DType) -> Any:
    """A row-major array in a part of `memory`, an array of bytes."""
    if library(memory) == "foreign":
        return device_views.part(memory, start_bytes, dtype, shape)
    held = memory[start_bytes : start_bytes + math.prod(shape) * dtype.bytes]
    if library(memory) == "torch":
        return held.view(getattr(sys.modules["torch"], _TO_TORCH[dtype.name])).view(shape)
    return held.view(dtype.numpy).reshape(shape)


def empty(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    """An uninitialised row-major array of the library, and on the device, of `like`."""
    kind = library(like)
    if kind == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, _TO_TORCH[dtype.name]), device=like.device)
    if kind == "foreign":
        from kdsl_runtime.device_array import DeviceArray

        return DeviceArray(shape, dtype, device_index(like) or 0)
    module = sys.modules["cupy"] if kind == "cupy" else np
    return module.empty(shape, dtype.numpy)


def zeros(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    """Zeros in a row-major array of the library, and on the device, of `like`.

    Memory: torch and CuPy write them on their current stream, and nothing is waited for.
    """
    kind = library(like)
    if kind == "torch":
        torch = sys.modules["torch"]
        return torch.zeros(shape, dtype=getattr(torch, _TO_TORCH[dtype.name]), device=like.device)
    if kind == "foreign":
        return constant(np.zeros(shape, dtype.numpy), like)
    module = sys.modules["cupy"] if kind == "cupy" else np
    return module.zeros(shape, dtype.numpy)


def constant(value: Any, like: Any) -> Any:
    """`value` in the library, and on the device, of `like`: the same object when it is already."""
    kind = library(like)
    if kind == library(value):
        if kind == "torch":
            return value.to(like.device)
        return np.asanyarray(value) if kind == "numpy" else value
    if kind == "torch" and library(value) == "numpy":
        return _torch_from_numpy(value).to(like.device)
    if kind == "cupy" and library(value) == "numpy":
        return sys.modules["cupy"].asarray(value)
    if kind == "foreign" and library(value) == "numpy":
        from kdsl_runtime.device_array import to_device

        return to_device(np.asarray(value), device_index(like) or 0)
    raise ArgumentError(
        f"a fused function holds a constant of {library(value)}, but its arguments are of {kind}",
        code="K926",
        fix="keep constants in NumPy, or in the library of the arguments",
    )


def numpy_from_torch(tensor: Any) -> Any:
    """The elements of a tensor on the host as a NumPy array with the same strides; no copy."""
    dtype = dtype_from_torch(tensor.dtype)
    if dtype.name not in _BY_BITS:
        return tensor.detach().numpy()
    bits = getattr(sys.modules["torch"], np.dtype(_BY_BITS[dtype.name]).name)
    return tensor.detach().view(bits).numpy().view(dtype.numpy)


# What torch's exchange with NumPy leaves out, and the type of the same size that carries the bits.
_BY_BITS = {"bf16": np.int16, "e4m3": np.uint8, "e5m2": np.uint8}


def _torch_from_numpy(value: Any) -> Any:
    torch = sys.modules["torch"]
    value = np.asarray(value)
    name = dtype_of(value.dtype).name
    held = value.copy(order="K")
    if name not in _BY_BITS:
        return torch.from_numpy(held)
    return torch.from_numpy(held.view(_BY_BITS[name])).view(getattr(torch, _TO_TORCH[name]))


def common_place(arrays: Sequence[Any]) -> Any:
    """The first of `arrays`, after checking that all belong to one library and one device.

    Raises: ArgumentError K913 naming the two that differ, K927 on the host for any but NumPy's.
    """
    first = arrays[0]
    for index, array in enumerate(arrays):
        if place(array) != place(first):
            raise ArgumentError(
                f"arguments must live in one place: argument 0 is {place(first)}, "
                f"argument {index} is {place(array)}",
                code="K913",
                fix="move them to one device before the call",
            )
    if device_index(first) is None and library(first) != "numpy":
        raise ArgumentError(
            f"kernels run on NumPy arrays in the simulator and on CUDA arrays, "
            f"got {place(first)} ({type(first).__name__})",
            code="K927",
            fix="pass numpy.asarray(x) for the simulator, or move it to a GPU, in torch: x.cuda()",
        )
    return first
