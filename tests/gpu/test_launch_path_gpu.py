"""Launches on a GPU: like those before, bound, captured, on streams, from threads, and many."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError
from kdsl_runtime.device_array import to_device

pytestmark = pytest.mark.gpu
COUNT = 1000
GRID = -(-COUNT // 64)


@kd.kernel
def added(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], by: kd.f32):
    """y = y + x + by."""
    i = kd.block_idx()[0] * 64 + kd.thread_idx()[0]
    if i < kd.size(x):
        y[i] = y[i] + x[i] + by


@kd.kernel
def numbered(y: kd.Tensor["f32", "n"], number: kd.Static):
    """One variant for each number."""
    i = kd.thread_idx()[0]
    y[i] = y[i] + float(number)


def test_many_launches_of_one_kind():
    """The first and the later ones do the same, with addresses and numbers of their own."""
    torch = pytest.importorskip("torch")
    pairs = [[torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0)] for _ in range(3)]
    for turn in range(5):
        for x, y in pairs:
            added[GRID, 64](x, y, float(turn))
    assert all(torch.all(y == 5 + 10).item() for _, y in pairs)


def test_bound_launches():
    """Only addresses vary; less alignment is refused."""
    torch = pytest.importorskip("torch")
    x, y = (torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0))
    run = added[GRID, 64].bind(x, y, 2.0)
    for _ in range(4):
        run(x, y)
    assert torch.all(y == 12).item()
    with pytest.raises(ArgumentError) as caught:
        run(torch.zeros(COUNT + 1, device="cuda")[1:], y)
    assert caught.value.code == "K628"


def test_streams_and_capture():
    """torch's current stream is followed, also into a CUDA graph; so is a stream of one's own."""
    torch = pytest.importorskip("torch")
    x, y = (torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0))
    launch = added[GRID, 64]
    run = launch.bind(x, y, 0.0)
    launch(x, y, 0.0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch(x, y, 0.0)
        run(x, y)
    launch.on(side.cuda_stream)(x, y, 0.0)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y, 0.0)
        run(x, y)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(y == 4 + 6).item()


def test_own_arrays_in_new_threads():
    """Threads that never touched CUDA launch what was loaded before."""
    x, y = (to_device(np.full(COUNT, v, np.float32)) for v in (1.0, 0.0))
    added[GRID, 64](x, y, 1.0)
    with ThreadPoolExecutor(4) as pool:
        for task in [pool.submit(added[GRID, 64], x, y, 1.0) for _ in range(8)]:
            task.result(60)
    assert np.all(y.read() == 2 * 9)


def test_two_devices():
    """Each device runs the kernel that was loaded for it, whichever is current."""
    torch = pytest.importorskip("torch")
    for turn in range(2 * kr.driver.device_count()):
        device = turn % kr.driver.device_count()
        x, y = (torch.full((COUNT,), v, device=f"cuda:{device}") for v in (1.0, 0.0))
        added[GRID, 64](x, y, 1.0)
        torch.cuda.synchronize(device)
        assert torch.all(y == 2).item()


VARIANTS, THREADS = 200, 8


def test_threads_that_compile_and_launch(tmp_path, monkeypatch):
    """8 threads build and launch 200 variants: each is built once, and no launch is lost."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path))
    numbered.clear()
    arrays = [to_device(np.zeros(32, np.float32)) for _ in range(VARIANTS)]
    start = threading.Barrier(THREADS)
    builds = kr.metrics.snapshot()["builds"]

    def work(first: int) -> None:
        start.wait()
        for i in range(VARIANTS):
            number = (first * 25 + i) % VARIANTS
            numbered[1, 32](arrays[number], number)

    with ThreadPoolExecutor(THREADS) as pool:
        for task in [pool.submit(work, i) for i in range(THREADS)]:
            task.result(240)
    for number, array in enumerate(arrays):
        assert np.all(array.read() == THREADS * number)
    assert kr.metrics.snapshot()["builds"] - builds == VARIANTS
