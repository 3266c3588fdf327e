"""Arrays of every kind, described without their framework."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdsl_core import dtypes as dt
from kdsl_core.errors import ArgumentError
from kdsl_runtime import dlpack
from kdsl_runtime.arrays import (
    common_device,
    contiguous_strides,
    current_stream,
    describe,
    is_array,
    launch_stream,
)


class OnlyDlpack:
    """NumPy's own DLPack export, with nothing else of NumPy to be seen."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class CudaInterface:
    """A GPU array as numba or CuPy shows it."""

    def __init__(self, **stated) -> None:
        self.__cuda_array_interface__ = {"version": 3, "data": (4096, False), **stated}

    __cuda_array_interface__: dict


VIEWS = [
    lambda x: x,
    lambda x: x.T,
    lambda x: x[1:, ::2],
    lambda x: x[::-1],
    lambda x: x[0],
    lambda x: x[2, 3, ...],
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint16, np.int64])
def test_dlpack_agrees_with_numpy(view, dtype):
    """The capsule's pointer, shape, strides and type are the array's own."""
    array = view(np.arange(60).reshape(5, 12).astype(dtype))
    own, read = describe(array), describe(OnlyDlpack(array))
    assert (own.pointer, own.shape, own.strides) == (read.pointer, read.shape, read.strides)
    assert own.dtype is read.dtype is dt.dtype_of(dtype)
    assert own.device == read.device == ("cpu", 0)
    assert own.pointer == array.__array_interface__["data"][0]


def test_dlpack_bool_and_versioned():
    """Truth values, and the capsule of DLPack 1.x where NumPy makes it."""
    array = np.array([True, False])
    assert describe(OnlyDlpack(array)).dtype is dt.boolean
    old, new = array.__dlpack__(), array.__dlpack__(max_version=(1, 0))
    assert dlpack.parse(old).pointer == dlpack.parse(new).pointer == array.ctypes.data


def _capsule(code: int, bits: int, lanes: int = 1, device: tuple[int, int] = (2, 3)):
    """A hand-made capsule of 2 × 3 elements, C-contiguous, 64 bytes into its memory."""
    shape = (ctypes.c_int64 * 2)(2, 3)
    tensor = dlpack._DLTensor(0x1000, *device, 2, code, bits, lanes, shape, None, 64)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(tensor), b"dltensor", None), (tensor, shape)


def _gpu_array(*arguments: object, **options: object) -> object:
    capsule, keep = _capsule(*arguments, **options)

    class GpuArray:
        asked: dict

        def __dlpack_device__(self):
            return keep[0].device_type, keep[0].device_id

        def __dlpack__(self, **options):
            type(self).asked = options
            return capsule

    return GpuArray()


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [(4, 16, dt.bf16), (10, 8, dt.e4m3), (12, 8, dt.e5m2), (2, 32, dt.f32), (1, 8, dt.u8)],
)
def test_dlpack_on_a_gpu(code, bits, dtype):
    """Types that NumPy lacks, the byte offset, the device, and no synchronisation."""
    array = _gpu_array(code, bits)
    info = describe(array)
    assert (info.pointer, info.dtype, info.device) == (0x1040, dtype, ("cuda", 3))
    assert (info.shape, info.strides) == ((2, 3), (3, 1))
    assert array.asked == {"stream": -1}
    assert info.owner[0] is array


def test_dlpack_refusals():
    """Complex numbers, vector elements and other makers' devices are named."""
    for arguments, code in [((5, 64), "K651"), ((2, 32, 4), "K651"), ((2, 32, 1, (10, 0)), "K655")]:
        with pytest.raises(ArgumentError, match="x: expected") as caught:
            describe(_gpu_array(*arguments), "x")
        assert caught.value.code == code


def test_cuda_array_interface():
    """Strides in elements, C-contiguous where none are stated, and the producer's stream."""
    info = describe(CudaInterface(shape=(4, 6), typestr="<f4", strides=None, stream=7))
    assert (info.pointer, info.shape, info.strides) == (4096, (4, 6), (6, 1))
    assert (info.dtype, info.device, info.stream) == (dt.f32, ("cuda", 0), 7)
    info = describe(CudaInterface(shape=(4, 6), typestr="<f2", strides=(2, 8)))
    assert (info.strides, info.stream) == ((1, 4), None)


def test_strides_between_elements_are_refused():
    """A field of a record array has strides that no kernel can use."""
    with pytest.raises(ArgumentError, match=r"x: strides of \(6,\) bytes") as caught:
        describe(np.zeros(4, dtype=[("a", "<f4"), ("b", "<i2")])["a"], "x")
    assert caught.value.code == "K652"


def test_torch_by_its_looks():
    """A tensor is read through data_ptr, stride, dtype and device; torch is not imported."""

    class Tensor:
        dtype, device = "torch.bfloat16", SimpleNamespace(type="cuda", index=1)
        shape = (2, 8)

        def data_ptr(self):
            return 512

        def stride(self):
            return (8, 1)

    info = describe(Tensor())
    assert (info.pointer, info.dtype, info.device) == (512, dt.bf16, ("cuda", 1))
    assert (info.shape, info.strides) == ((2, 8), (8, 1))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.bool_])
def test_numpy_extension_types(dtype):
    """Types of ml_dtypes are known as such."""
    assert describe(np.zeros(3, dtype)).dtype.numpy == np.dtype(dtype)


@pytest.mark.parametrize("value", [3, 2.5, "text", None, [1, 2], object()])
def test_no_array(value):
    """Something that is no array is shown with its type."""
    assert not is_array(value)
    with pytest.raises(ArgumentError, match="bias: expected an array") as caught:
        describe(value, "bias")
    assert caught.value.code == "K650"


def test_unknown_dtype():
    """A type that kdsl lacks is named with those it has."""
    with pytest.raises(ArgumentError, match=r"bf16.*complex64") as caught:
        describe(np.zeros(2, np.complex64))
    assert caught.value.code == "K651"


def test_stream_of_the_caller(monkeypatch):
    """torch's current stream where torch uses CUDA, else CuPy's, else the default stream."""
    asked = []

    def torch_stream(index):
        asked.append(index)
        return SimpleNamespace(cuda_stream=11)

    started = SimpleNamespace(is_initialized=lambda: True, current_stream=torch_stream)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=started))
    assert (current_stream(2), asked) == (11, [2])
    idle = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=idle))
    assert current_stream() == 0


def test_stream_of_the_producer():
    """Without a framework the stream that an array states is used, else the default one."""
    stated = [describe(CudaInterface(shape=(2,), typestr="<f4", stream=s)) for s in (None, 7, 8)]
    assert launch_stream(stated) in (7, current_stream())
    assert launch_stream(stated[:1]) == current_stream()


def test_mixed_devices_name_both():
    """A NumPy array beside a CUDA array is an error with both names and places."""
    infos = {"x": describe(np.zeros(2)), "out": describe(CudaInterface(shape=(2,), typestr="<f8"))}
    with pytest.raises(ArgumentError, match="x is on cpu, out on cuda:0") as caught:
        common_device(infos)
    assert caught.value.code == "K659"
    del infos["x"]
    assert common_device(infos) == ("cuda", 0)
    assert common_device({}) == ("cpu", 0)


@given(st.lists(st.integers(1, 9), max_size=4))
def test_contiguous_strides(shape):
    """They are those of a fresh NumPy array."""
    array = np.empty(shape, np.int8)
    assert contiguous_strides(array.shape) == array.strides
