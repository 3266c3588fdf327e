"""The same on a real device; torch is its neighbour there."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kdsl_core.errors import DriverError
from kdsl_runtime import driver, launch
from kdsl_runtime.arrays import current_stream, describe
from kdsl_runtime.cache import Cache
from kdsl_runtime.device_array import to_device
from kdsl_runtime.streams import Event, Stream

pytestmark = pytest.mark.gpu
COUNT = 1000
GRID = -(-COUNT // 64)


@pytest.fixture
def kernel(add_one, tmp_path) -> launch.LoadedKernel:
    """The example kernel, built for the device that is here."""
    target = driver.device(0).target
    return launch.load(add_one(target), cache=Cache.at(tmp_path / "cache"))


def test_numpy_round_trip(kernel):
    """Copied there, incremented, copied back."""
    values = np.arange(COUNT, dtype=np.float32)
    array = to_device(values)
    kernel.launch(GRID, 64, [array.pointer, COUNT, 0.5])
    assert np.array_equal(array.read(), values + np.float32(0.5))
    array.close()


def test_stream_and_events(kernel):
    """Work on a stream of one's own, timed by events."""
    stream, begin, end = Stream(), Event(), Event()
    array = to_device(np.zeros(COUNT, np.float32))
    begin.record(stream.handle)
    for _ in range(10):
        kernel.launch(GRID, 64, [array.pointer, COUNT, 1.0], stream=stream.handle)
    end.record(stream.handle)
    end.wait()
    assert end.milliseconds_since(begin) > 0
    assert np.all(array.read(stream.handle) == 10)


def test_cluster_launch(kernel):
    """The extended launch with a cluster of two blocks gives the same result."""
    array = to_device(np.zeros(COUNT, np.float32))
    kernel.launch(16, 64, [array.pointer, COUNT, 1.0], cluster=2)
    assert np.all(array.read() == 1)


def test_new_thread_has_no_context(kernel):
    """A thread that never touched CUDA can launch."""
    array = to_device(np.zeros(COUNT, np.float32))
    errors: list[Exception] = []

    def work() -> None:
        try:
            kernel.launch(GRID, 64, [array.pointer, COUNT, 1.0])
        except DriverError as problem:
            errors.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert np.all(array.read() == 1)


def test_driver_jit(add_one, monkeypatch):
    """The driver compiles the PTX itself when there is no assembler."""
    from kdsl_runtime.toolchain import Toolchain

    jit = Toolchain(None, "test", "test", "driver JIT")
    kernel = launch.load(add_one(driver.device(0).target), toolchain=jit)
    array = to_device(np.zeros(COUNT, np.float32))
    kernel.launch(GRID, 64, [array.pointer, COUNT, 2.0])
    assert np.all(array.read() == 2)


def test_torch_tensor_stream_and_graph(kernel):
    """A tensor's facts, torch's current stream, and replay of a captured launch."""
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(COUNT, device="cuda")
    info = describe(tensor)
    assert info.device == ("cuda", 0) and info.pointer == tensor.data_ptr()
    values = [info.pointer, COUNT, 1.0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert current_stream(0) == side.cuda_stream
        kernel.launch(GRID, 64, values, stream=current_stream(0))
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(GRID, 64, values, stream=current_stream(0))
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(tensor == 4).item()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int8", "bool"])
def test_torch_through_dlpack_agrees(name):
    """The DLPack reading of a tensor is the same as the direct one."""
    torch = pytest.importorskip("torch")
    from kdsl_runtime.arrays import _from_dlpack

    tensor = torch.zeros((4, 6), device="cuda").to(getattr(torch, name)).t()
    direct = describe(tensor)
    read = _from_dlpack(tensor, "x")
    assert (direct.pointer, direct.dtype, direct.shape) == (read.pointer, read.dtype, read.shape)
    assert (direct.strides, direct.device) == (read.strides, read.device)


def test_out_of_range_device():
    """A device that is not there is named with those that are."""
    with pytest.raises(DriverError, match="expected a device from 0") as caught:
        driver.device(99)
    assert caught.value.code == "K804"
